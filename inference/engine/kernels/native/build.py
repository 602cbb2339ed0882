"""Compiles the kernels once per source, torch, compiler and processor; later starts find the library in the cache.

The compiler is called directly: neither ninja nor Python's headers are needed, since the operators register
themselves with torch's dispatcher when the library is loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "src"
COMPILE_TIMEOUT_S = 300
COMPILERS = ("c++", "g++", "clang++")


class BuildError(Exception):
    """There is no library; the message is a short reason."""


def build(folder: Path) -> Path:
    """The library's path under ``folder``, compiled first (about 15 s) unless it is there; BuildError says why not."""
    compiler = _compiler()
    flags = _flags()
    library = folder / f"millm_native-{_key(compiler, flags)}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = Path(temporary) / library.name
            _compile([compiler, *flags, str(SOURCES / "kernels.cpp"), "-o", str(made), *_link_flags()])
            made.replace(library)  # at once: another process never sees half a library
    except OSError as error:
        raise BuildError(f"no writable cache folder: {error}") from error
    return library


def default_folder() -> Path:
    """In the virtual environment, whose torch the library belongs to; outside of one, the user's cache folder."""
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix) / "millm-kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millm" / "kernels"


def _compiler() -> str:
    """``CXX`` where it is set, as for other builds."""
    for name in (os.environ.get("CXX") or "", *COMPILERS):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise BuildError("no C++ compiler")


def _flags() -> list[str]:
    capability = torch.backends.cpu.get_cpu_capability()  # at::vec has code for these two; the rest is plain C++
    chosen = capability if capability in {"AVX2", "AVX512"} else "DEFAULT"
    native = "-march=native" if platform.machine() in {"x86_64", "AMD64"} else "-mcpu=native"
    include = Path(torch.__file__).parent / "include"
    return [
        *("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp", "-ffp-contract=fast", "-DNDEBUG", native),
        *(f"-DCPU_CAPABILITY={chosen}", f"-DCPU_CAPABILITY_{chosen}"),
        *(f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"),
    ]


def _link_flags() -> list[str]:
    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10", "-ltorch_cpu"]


def _key(compiler: str, flags: list[str]) -> str:
    """A digest of all that the library depends on."""
    parts = [path.read_bytes() for path in sorted(SOURCES.iterdir())]
    parts += [text.encode() for text in (torch.__version__, _version(compiler), _processor(), *flags)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603 - the machine's own compiler
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{Path(compiler).name} does not run") from error


def _processor() -> str:
    """What ``-march=native`` looks at, so that a cache shared by machines holds a library for each."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMPILE_TIMEOUT_S)  # noqa: S603 - the machine's own compiler
    except subprocess.CalledProcessError as error:
        problem = next((line for line in error.stderr.splitlines() if "error" in line), "no message")
        raise BuildError(f"the compiler failed: {problem.strip()[:200]}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"the compiler took more than {COMPILE_TIMEOUT_S} s") from error
