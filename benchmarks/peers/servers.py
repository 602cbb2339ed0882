"""Peers that run as servers of their own: vLLM, vLLM with AMD's zentorch, and llama.cpp.

``python -m benchmarks.peers.install`` puts them under .venv-peers/. Each is measured in its fastest configuration here:
the recipe of its documentation, all cores, and float32 for vLLM where the processor does not multiply in bfloat16.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import torch

from benchmarks.peers.gguf_file import write_gguf
from benchmarks.peers.w8a8 import write_w8a8
from benchmarks.serve import HttpSubject
from benchmarks.shapes import Shape, shape_folder

HOME = Path(__file__).resolve().parents[2] / ".venv-peers"
VLLM, ZENTORCH, OPENVINO, LLAMA_CPP = "vllm", "zentorch", "openvino", "llama-cpp"
FLOAT_PEERS = ("vLLM", "vLLM + zentorch", "OpenVINO", "llama.cpp BF16")
INT8_PEERS = ("vLLM W8A8", "OpenVINO int8", "llama.cpp Q8_0")
PEERS = frozenset((*FLOAT_PEERS, *INT8_PEERS))
LIBRARIES = tuple(Path(folder) for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"))
LLAMA_SOURCES = "llama-cpp-python==0.3.36"  # carries llama.cpp's sources
START_S = 900.0  # vLLM compiles its graph
SLOTS = 16
CONTEXT = 8192
CACHE_GIB = 2  # KV cache size of every server here, so that several fit into memory; the workloads need 1.4


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that serves one model on ``port``."""

    name: str
    command: tuple[str, ...]
    port: int
    model: str
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def servers(shape: Shape, folder: Path, quantization: str = "", home: Path = HOME) -> list[Peer]:
    """Return the installed servers that compute in the shape's dtype, or in 8 bits with ``quantization``."""
    path, found = shape_folder(shape, folder), []
    if _vllm_path(home, VLLM).exists():
        model = write_w8a8(path) if quantization else path
        found.append(vllm("vLLM W8A8" if quantization else "vLLM", home / VLLM, shape, model))
    if _vllm_path(home, ZENTORCH).exists() and not quantization:
        found.append(vllm("vLLM + zentorch", home / ZENTORCH, shape, path))
    if llama_server_path(home).exists():
        kind = "Q8_0" if quantization else "BF16"
        found.append(llama_server(llama_server_path(home), shape, write_gguf(shape, path, kind), kind))
    return found


def vllm(name: str, environment: Path, shape: Shape, path: Path) -> Peer:
    """Return vLLM's server on the model in ``path``, installed in a virtual environment."""
    port, cores = free_port(), len(os.sched_getaffinity(0))
    dtype = dtype_here(shape)
    options = {
        "served-model-name": shape.name,
        "host": "127.0.0.1",
        "port": port,
        "dtype": dtype,
        "max-model-len": CONTEXT,
        "max-num-seqs": SLOTS,
    }
    command = [str(_vllm_path(environment.parent, environment.name)), "serve", str(path), "--no-enable-prefix-caching"]
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    preloaded = [path for path in (tcmalloc(), environment / "lib" / "libiomp5.so") if path and path.exists()]
    variables = {
        "LD_PRELOAD": ":".join(map(str, preloaded)),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    missing = "" if len(preloaded) == 2 else f" It ran without {'tcmalloc' if tcmalloc() is None else 'libiomp5'}."
    note = f"{name}: vllm-cpu {version(environment, 'vllm_cpu')}, computed in {dtype}.{missing}"
    return Peer(name, tuple(command), port, shape.name, variables, note)


def llama_server(program: Path, shape: Shape, file: Path, kind: str) -> Peer:
    port, cores = free_port(), len(os.sched_getaffinity(0))
    options = {
        "model": file,
        "alias": shape.name,
        "host": "127.0.0.1",
        "port": port,
        "ctx-size": CONTEXT * SLOTS // 4,
        "parallel": SLOTS,
        "threads": cores,
    }
    command = [str(program)]
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    return Peer(f"llama.cpp {kind}", tuple(command), port, shape.name, note=f"llama.cpp {kind}: {LLAMA_SOURCES}.")


def version(environment: Path, distribution: str) -> str:
    """Return the version of a package in a virtual environment; empty if it is not there."""
    found = sorted(environment.glob(f"lib/python*/site-packages/{distribution}-*.dist-info"))
    return found[0].name.split("-")[1].removesuffix(".dist") if found else ""


def dtype_here(shape: Shape) -> str:
    """Return the dtype in which a peer is fastest on this processor."""
    multiplies = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "float32" if shape.dtype == "bfloat16" and not multiplies else shape.dtype


def tcmalloc() -> Path | None:
    """Return the library that vLLM's recipe preloads, or None if it is not installed."""
    found = [path for folder in LIBRARIES for path in sorted(folder.glob("libtcmalloc*.so.4"))]
    return found[0] if found else None


def llama_server_path(home: Path = HOME) -> Path:
    return home / LLAMA_CPP / "bin" / "llama-server"


def _vllm_path(home: Path, name: str) -> Path:
    return home / name / "bin" / "vllm"


@contextmanager
def started(peer: Peer, log: Path) -> Iterator[HttpSubject]:
    """Start the peer, yield it when it is ready for requests, and stop it. Its output goes to ``log``."""
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: S603 - a program that was installed for this
            peer.command, env={**os.environ, **peer.environment}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://127.0.0.1:{peer.port}/v1"
        _await_ready(process, url, peer.name, log)
        yield HttpSubject(url, peer.model, name=peer.name, pid=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(process: subprocess.Popen[bytes], url: str, name: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{name} exited with code {process.returncode}. Its output is in {log}.")
        try:
            if httpx2.get(f"{url}/models", timeout=2).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"{name} was not ready within {START_S:g} s. Its output is in {log}.")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
