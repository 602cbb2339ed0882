"""Peers that run as separate servers: vLLM and llama.cpp.

Each peer has its own environment, so it is given by a path: ``MILLM_BENCH_VLLM`` is vLLM's ``vllm`` program,
``MILLM_BENCH_LLAMA_SERVER`` llama.cpp's ``llama-server``. Other servers with the OpenAI API are measured by URL.

``MILLM_BENCH_VLLM_DTYPE`` is the dtype of vLLM if it differs from the model's. On a processor without bfloat16
instructions, vLLM is several times faster in float32, and peers are measured in their fastest configuration.
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

from benchmarks.gguf_file import write_gguf
from benchmarks.serve import HttpSubject
from benchmarks.shapes import Shape, shape_folder

VLLM, LLAMA_SERVER = "MILLM_BENCH_VLLM", "MILLM_BENCH_LLAMA_SERVER"
VLLM_DTYPE = "MILLM_BENCH_VLLM_DTYPE"
START_S = 600.0
SLOTS = 16
CONTEXT = 8192
CACHE_GIB = 4  # KV cache size of every server here, so that several fit into memory


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that serves one model on ``port``."""

    name: str
    command: tuple[str, ...]
    port: int
    model: str
    environment: Mapping[str, str] = field(default_factory=dict)


def peers(shape: Shape, folder: Path, environment: Mapping[str, str] = os.environ) -> list[Peer]:
    """Return the peers whose programs ``environment`` names."""
    found = []
    if environment.get(VLLM):
        dtype = environment.get(VLLM_DTYPE) or shape.dtype
        found.append(vllm(environment[VLLM], shape, shape_folder(shape, folder), dtype))
    if environment.get(LLAMA_SERVER):
        for kind in ("BF16", "Q8_0"):
            file = write_gguf(shape, shape_folder(shape, folder), kind)
            found.append(llama_server(environment[LLAMA_SERVER], shape, file, kind))
    return found


def vllm(program: str, shape: Shape, path: Path, dtype: str) -> Peer:
    port, cores = free_port(), len(os.sched_getaffinity(0))
    command = (
        program,
        "serve",
        str(path),
        "--served-model-name",
        shape.name,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        dtype,
        "--max-model-len",
        str(CONTEXT),
        "--max-num-seqs",
        str(SLOTS),
        "--no-enable-prefix-caching",
    )
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Peer("vLLM", command, port, shape.name, environment)


def llama_server(program: str, shape: Shape, file: Path, kind: str) -> Peer:
    port, cores = free_port(), len(os.sched_getaffinity(0))
    command = (
        program,
        "--model",
        str(file),
        "--alias",
        shape.name,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--ctx-size",
        str(CONTEXT * SLOTS // 4),
        "--parallel",
        str(SLOTS),
        "--threads",
        str(cores),
    )
    return Peer(f"llama.cpp {kind}", command, port, shape.name)


@contextmanager
def started(peer: Peer, log: Path) -> Iterator[HttpSubject]:
    """Start the peer, yield it when it is ready for requests, and stop it. Its output goes to ``log``."""
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: S603 - a program that the caller names
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
