"""What the environments of clients are made of. These tests need none of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from millm_site.env import PROJECT_DIR
from tests.clients.environment import AGENTS, N8N, NODE_PROGRAMS, PINS, pins

LISTS = sorted(PINS.glob("*.txt"))
PROGRAMS = {
    "aider": "aider-chat",
    "litellm-proxy": "litellm",
    "open-webui": "open-webui",
}  # environments of one program, which chooses the versions of all others there
FOLDERS = (NODE_PROGRAMS, AGENTS, N8N)
PACKAGES = [json.loads((folder / "package.json").read_text()) for folder in FOLDERS]
DEPENDENCIES = {name: version for package in PACKAGES for name, version in package["dependencies"].items()}
FILES = [*LISTS, *(path for folder in FOLDERS for path in sorted(folder.glob("package*.json")))]
PAGE = (PROJECT_DIR / "docs" / "openai-compatibility.md").read_text()
TABLE = PAGE.partition("\n## Clients\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `([^`]+)`(?: \((\w+)\))? \| ([\d., ]+) \|", TABLE, re.MULTILINE)


def test_the_page_names_the_versions_that_are_tested() -> None:
    assert len(ROWS) == 25
    for name, language, versions in ROWS:
        assert versions.strip().split(", ") == pinned(name, language), name


def pinned(name: str, language: str) -> list[str]:
    if language == "JavaScript" or name.startswith("@") or name in {"ai", "cline", "n8n"}:
        return [DEPENDENCIES[name]]
    lists = [pins(path.stem) for path in reversed(LISTS) if PROGRAMS.get(path.stem, name) == name]
    versions = [found[name] for found in lists if name in found]
    return list(dict.fromkeys(versions))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_version_is_exact(path: Path) -> None:
    for line in path.read_text().splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.]+", line), line


@pytest.mark.parametrize(
    ("folder", "package"), [*zip(FOLDERS, PACKAGES, strict=True)], ids=[folder.name for folder in FOLDERS]
)
def test_packages_for_node_have_a_version_and_a_digest(folder: Path, package: dict[str, Any]) -> None:
    packages = locked(folder)
    assert packages.pop("")["dependencies"] == package["dependencies"]
    assert all(found["integrity"].startswith("sha512-") for found in packages.values())
    assert not any("resolved" in found for found in packages.values()), "a registry"


def test_clients_for_node_have_a_free_license() -> None:
    packages = locked(NODE_PROGRAMS)
    assert all(package["license"] in LICENCES for name, package in packages.items() if name), packages


def locked(folder: Path) -> dict[str, dict[str, Any]]:
    packages: dict[str, dict[str, Any]] = json.loads((folder / "package-lock.json").read_text())["packages"]
    return packages


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_no_registry_in_the_lists(path: Path) -> None:
    assert not re.search(r"https?://|--index-url", path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_path_of_a_machine(path: Path) -> None:
    assert not re.search(r"file:|/home/|/root/", path.read_text())


def test_the_makefile_installs_each_list() -> None:
    names = re.findall(r"^(?:CLIENTS|PROGRAMS) := (.*)$", (PROJECT_DIR / "Makefile").read_text(), re.MULTILINE)
    assert sorted(" ".join(names).split()) == sorted(path.stem for path in LISTS)


LICENCES = {"MIT", "Apache-2.0", "Unlicense", "(AFL-2.1 OR BSD-3-Clause)", "BSD-3-Clause", "ISC"}
