"""Building the kernels: found again in the cache, and a clear reason where they cannot be had."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from inference.engine.kernels.library_cache import compile_ahead, default_folder
from inference.engine.kernels.native.build import SOURCES, BuildError, build

REPORT = "from inference.engine.kernels import native; print(native.activate()); print(native.active().is_native)"


UNITS = len(list(SOURCES.glob("*.cpp")))
ONCE = "compile\n" * UNITS + "link\n"
GCC = shutil.which("g++")


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """A compiler that runs the given shell lines; returns how to write it."""

    def write(*lines: str) -> None:
        path = tmp_path / "fake-cxx"
        path.write_text("\n".join(["#!/bin/sh", '[ "$1" = --version ] && { echo fake; exit 0; }', *lines]))
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return write


def logged(log: Path) -> list[str]:
    """Lines of a compiler that writes to ``log`` and makes its output."""
    return [
        f'case " $* " in *" -shared "*) echo link >> {log};; *) echo compile >> {log};; esac',
        'while [ "$1" != -o ]; do shift; done',
        'echo library > "$2"',
    ]


def test_the_library_is_compiled_once(fake_compiler, tmp_path):
    log = tmp_path / "log"
    fake_compiler(*logged(log))
    folder = tmp_path / "a" / "b"
    assert build(folder) == build(folder)
    assert build(folder).read_text() == "library\n"
    assert log.read_text() == ONCE
    assert {path.suffix for path in folder.iterdir() if path.name != ".lock"} == {".so"}, "temporary files are left"


def test_whoever_needs_the_library_waits_for_one_that_compiles_it(fake_compiler, tmp_path):
    log, folder = tmp_path / "log", tmp_path / "cache"
    fake_compiler("sleep 0.3", *logged(log))
    with ThreadPoolExecutor(2) as pool:  # each has its own descriptor of the lock, as two processes have
        first, second = pool.map(build, [folder, folder])
    assert first == second
    assert log.read_text() == ONCE


def test_the_library_is_compiled_ahead_of_the_first_model_and_not_again(fake_compiler, tmp_path):
    log, folder = tmp_path / "log", tmp_path / "cache"
    fake_compiler(*logged(log))
    compilation = compile_ahead(folder)
    assert compilation is not None
    compilation.wait()
    assert log.read_text() == ONCE
    assert build(folder).read_text() == "library\n"
    assert log.read_text() == ONCE
    assert compile_ahead(folder) is None


ONLY_TORCH = """
import sys
for name in ("django", "llguidance", "numpy", "pydantic", "safetensors", "tokenizers", "transformers", "yaml"):
    sys.modules[name] = None
from inference.engine.kernels import native
print(native.active().is_native)
"""


def test_compiling_ahead_needs_no_package_but_torch():
    """make calls it while pip installs the others."""
    done = subprocess.run([sys.executable, "-c", ONLY_TORCH], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def test_nothing_is_compiled_ahead_where_torch_is_chosen(fake_compiler, tmp_path, monkeypatch):
    fake_compiler("exit 1")
    monkeypatch.setenv("MILLM_KERNELS", "torch")
    assert compile_ahead(tmp_path / "cache") is None


def test_another_torch_is_another_library(fake_compiler, tmp_path, monkeypatch):
    fake_compiler('while [ "$1" != -o ]; do shift; done', 'echo library > "$2"')
    first = build(tmp_path / "cache")
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert build(tmp_path / "cache") != first


@pytest.mark.parametrize("part", ["operators.cpp", "-shared"])
def test_a_compiler_that_fails(fake_compiler, tmp_path, part):
    fake_compiler(f"case \"$*\" in *{part}*) echo '{part}:1: error: no such header' >&2; exit 1;; esac")
    with pytest.raises(BuildError, match="no such header"):
        build(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler"):
        build(tmp_path / "cache")


def test_a_folder_that_cannot_be_written(fake_compiler, tmp_path):
    fake_compiler("exit 0")
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cache folder"):
        build(tmp_path / "file" / "cache")


def test_the_cache_is_in_the_virtual_environment_or_the_users(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert default_folder() == tmp_path / "millm-kernels"
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert str(default_folder()) == "/cache/millm/kernels"


@pytest.mark.parametrize(
    ("environment", "reason"), [({"MILLM_KERNELS": "torch"}, "MILLM_KERNELS=torch"), ({"PATH": ""}, "no C++ compiler")]
)
def test_a_process_without_them_says_why(environment, reason):
    done = subprocess.run([sys.executable, "-c", REPORT], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"torch: {reason}", "False"]


@pytest.mark.skipif(platform.machine() != "x86_64" or GCC is None, reason="needs GCC for x86-64")
@pytest.mark.parametrize(
    ("capability", "processor"),
    [
        ("AVX512", "sapphirerapids"),
        ("AVX512", "cooperlake"),
        ("AVX512", "skylake-avx512"),
        ("AVX2", "haswell"),
        ("AVX2", "sapphirerapids"),
        ("DEFAULT", "x86-64"),
    ],
)
def test_the_kernels_compile_for_other_processors(capability, processor):
    include = Path(torch.__file__).parent / "include"
    flags = (
        "-std=c++20",
        "-fsyntax-only",
        f"-march={processor}",
        f"-I{include}",
        f"-I{include}/torch/csrc/api/include",
    )
    kind = (f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}")
    compiled = subprocess.run(
        [str(GCC), *flags, *kind, *map(str, SOURCES.glob("*.cpp"))], capture_output=True, text=True, check=False
    )
    if "bad value" in compiled.stderr:
        pytest.skip("this compiler does not know the processor")
    assert compiled.returncode == 0, compiled.stderr[:2000]
