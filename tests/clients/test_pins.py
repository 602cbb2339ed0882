"""What the environments of clients are made of. These tests need none of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from millm_site.env import PROJECT_DIR
from tests.clients.environment import NODE_PROGRAMS, PINS, pins

LISTS = sorted(PINS.glob("*.txt"))
PROGRAMS = {"aider": "aider-chat"}  # environments of one program, which chooses the versions of all others there
DEPENDENCIES = json.loads((NODE_PROGRAMS / "package.json").read_text())["dependencies"]
PAGE = (PROJECT_DIR / "docs" / "openai-compatibility.md").read_text()
TABLE = PAGE.partition("\n## Clients\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `([^`]+)`(?: \((\w+)\))? \| ([\d., ]+) \|", TABLE, re.MULTILINE)


def test_the_page_names_the_versions_that_are_tested() -> None:
    assert len(ROWS) == 20
    for name, language, versions in ROWS:
        assert versions.strip().split(", ") == pinned(name, language), name


def pinned(name: str, language: str) -> list[str]:
    if language == "JavaScript" or name.startswith("@") or name == "ai":
        return [DEPENDENCIES[name]]
    lists = [pins(path.stem) for path in reversed(LISTS) if PROGRAMS.get(path.stem, name) == name]
    versions = [found[name] for found in lists if name in found]
    return list(dict.fromkeys(versions))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_version_is_exact(path: Path) -> None:
    for line in path.read_text().splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.]+", line), line


def test_packages_for_node_have_a_version_and_a_digest() -> None:
    lock = json.loads((NODE_PROGRAMS / "package-lock.json").read_text())
    assert lock["packages"][""]["dependencies"] == DEPENDENCIES
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert all(package["license"] in LICENCES for package in packages.values()), packages


@pytest.mark.parametrize("path", [*LISTS, *NODE_PROGRAMS.glob("package*.json")], ids=lambda path: path.name)
def test_no_registry_and_no_path_of_a_machine(path: Path) -> None:
    assert not re.search(r"https?://|file:|--index-url|/home/|/root/", path.read_text())


def test_the_makefile_installs_each_list() -> None:
    (names,) = re.findall(r"^CLIENTS := (.*)$", (PROJECT_DIR / "Makefile").read_text(), re.MULTILINE)
    assert sorted(names.split()) == sorted(path.stem for path in LISTS)


LICENCES = {"MIT", "Apache-2.0", "Unlicense", "(AFL-2.1 OR BSD-3-Clause)", "BSD-3-Clause", "ISC"}
