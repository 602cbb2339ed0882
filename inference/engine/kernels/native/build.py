"""Compile the kernels once per source, torch, compiler and processor, and cache the library.

The compiler is called directly, for all source files at a time. Neither ninja nor Python's headers are needed, because
the operators register themselves with torch's dispatcher when the library is loaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from inference.engine.kernels.library_cache import NAME

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "src"
COMPILE_TIMEOUT_S = 300
LOCK = ".lock"
COMPILERS = ("c++", "g++", "clang++")


class BuildError(Exception):
    """The library could not be built. The message is a short reason."""


def build(folder: Path) -> Path:
    """Return the library's path under ``folder``, compiling it if it is missing. Raise BuildError."""
    compiler = _compiler()
    flags = _flags()
    library = folder / NAME.format(key=_key(compiler, flags))
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _turn(folder):
            if not library.exists():
                _make(library, compiler, flags)
    except OSError as error:
        raise BuildError(f"no writable cache folder: {error}") from error
    return library


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait while another process compiles. The kernel releases the lock however that process ends."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("Another process compiles the CPU kernels. The model waits for it.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(library: Path, compiler: str, flags: list[str]) -> None:
    logger.info("Compiling the CPU kernels, which takes about 15 seconds. Models wait for it.")
    units = sorted(SOURCES.glob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=library.parent) as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [Path(temporary) / f"{unit.stem}.o" for unit in units]
        list(pool.map(lambda unit, to: _run([compiler, *flags, "-c", str(unit), "-o", str(to)]), units, objects))
        made = Path(temporary) / library.name
        _run([compiler, "-shared", *map(str, objects), "-o", str(made), *_link_flags()])
        made.replace(library)  # atomically: another process never sees an incomplete library


def _compiler() -> str:
    """Return the compiler: ``CXX`` if it is set, as for other builds."""
    for name in (os.environ.get("CXX") or "", *COMPILERS):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise BuildError("no C++ compiler")


def _flags() -> list[str]:
    capability = torch.backends.cpu.get_cpu_capability()  # at::vec supports these two; otherwise plain C++
    chosen = capability if capability in {"AVX2", "AVX512"} else "DEFAULT"
    native = "-march=native" if platform.machine() in {"x86_64", "AMD64"} else "-mcpu=native"
    include = Path(torch.__file__).resolve().parent / "include"  # one library for all links to an environment
    # Without contraction: whether the compiler combines a product and a sum that are written separately, which changes
    # the rounding, depends on the processor and on the function around them. The kernels combine them explicitly.
    return [
        *("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-DNDEBUG", native),
        *(f"-DCPU_CAPABILITY={chosen}", f"-DCPU_CAPABILITY_{chosen}"),
        *(f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"),
    ]


def _link_flags() -> list[str]:
    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10", "-ltorch_cpu"]


def _key(compiler: str, flags: list[str]) -> str:
    """Return a digest of everything that the library depends on."""
    parts = [path.read_bytes() for path in sorted(SOURCES.iterdir())]
    parts += [text.encode() for text in (torch.__version__, _version(compiler), _processor(), *flags)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603 - the machine's own compiler
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{Path(compiler).name} does not run") from error


def _processor() -> str:
    """Return what ``-march=native`` depends on, so that machines that share a cache have separate libraries."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMPILE_TIMEOUT_S)  # noqa: S603 - the machine's own compiler
    except subprocess.CalledProcessError as error:
        problem = next((line for line in error.stderr.splitlines() if "error" in line), "no message")
        raise BuildError(f"the compiler failed: {problem.strip()[:200]}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"the compiler took more than {COMPILE_TIMEOUT_S} s") from error
