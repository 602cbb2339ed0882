"""The commands of the Makefile and what they install."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from millm_site.env import PROJECT_DIR
from tests.live import clean_environment

TARGETS = (
    "run",
    "test",
    "test-all",
    "test-fast",
    "faults",
    "test-clients",
    "clients",
    "check",
    "bench",
    "bench-full",
    "bench-gpu",
    "bench-check",
    "soak",
    "screenshots",
    "setup",
    "pins",
    "clean",
)
PINS = dict(
    line.split("==") for line in (PROJECT_DIR / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    environment = {
        name: value for name, value in clean_environment().items() if name not in {"HOST", "PORT", "MAKEFLAGS"}
    }
    return subprocess.run(command, cwd=PROJECT_DIR, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", TARGETS)
def test_target_exists(target: str) -> None:
    done = make("-n", target)
    assert done.returncode == 0, done.stderr


def test_run_serves_on_the_loopback_address_without_keys_for_this_machine() -> None:
    plan = make("-n", "run").stdout
    assert "MILLM_HOST='127.0.0.1' MILLM_PORT='8000' MILLM_AUTH=\"${MILLM_AUTH:-loopback}\"" in plan
    assert "manage.py serve --setup --measure-demo" in plan


def test_run_takes_host_and_port() -> None:
    plan = make("-n", "run", "HOST=0.0.0.0", "PORT=9000").stdout
    assert "MILLM_HOST='0.0.0.0' MILLM_PORT='9000'" in plan


def test_run_installs_no_developer_tools() -> None:
    plan = make("-n", "-W", "pyproject.toml", "run").stdout
    assert 'p["dependencies"]' in plan
    assert '"dev"' not in plan


def test_old_python_is_refused_with_a_sentence(tmp_path: Path) -> None:
    done = make(f"VENV={tmp_path / 'venv'}", "PYTHON=false", "run")
    assert done.returncode != 0
    assert "needs Python 3.11" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_every_dependency_is_pinned_within_its_range() -> None:
    project = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text())["project"]
    names = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    for requirement in map(Requirement, names):
        pinned = {normal(name): version for name, version in PINS.items()}[normal(requirement.name)]
        assert requirement.specifier.contains(pinned), requirement


def test_pins_are_what_is_installed() -> None:
    """Versions without the local part: torch's CPU and CUDA builds are one version."""
    differing = {name for name, version in PINS.items() if installed(name) not in {version, None}}
    assert differing == set()
    assert PINS["torch"] == "2.13.0"


@pytest.mark.parametrize(
    "name", ["Makefile", "constraints.txt", "pyproject.toml", ".ci/run", ".pre-commit-config.yaml"]
)
def test_no_registry_host_and_no_path_of_a_machine(name: str) -> None:
    text = (PROJECT_DIR / name).read_text()
    assert not re.search(r"https?://|file://|--index-url|--find-links|/home/|/root/", text)


def test_ci_runs_check_then_test() -> None:
    script = PROJECT_DIR / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "set -euo pipefail"
    assert lines[-2:] == ["make --jobs=2 --output-sync check clients", "make test"]


def test_commit_hooks_are_the_projects_own_tools() -> None:
    configuration = yaml.safe_load((PROJECT_DIR / ".pre-commit-config.yaml").read_text())
    for repository in configuration["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert (PROJECT_DIR / hook["entry"].split()[0]).exists(), hook["entry"]


@pytest.fixture(scope="module")
def shared() -> None:
    """A fixture that only one worker may set up."""


@pytest.mark.usefixtures("shared")
def test_tests_that_share_a_fixture_are_one_group(request: pytest.FixtureRequest) -> None:
    """pytest-xdist tells the groups by the ends of the tests' ids; with pytest 9.2 it silently did not."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("not in a worker of pytest-xdist")
    assert request.node.nodeid.endswith(f"@{request.path}")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(name: str) -> str | None:
    """None where the package is for other platforms."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
