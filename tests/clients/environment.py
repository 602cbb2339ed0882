"""The environments that ``make clients`` installs, and what the programs that run there report."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from millm_site.env import PROJECT_DIR
from tests import live
from tests.live import clean_environment

HOME = PROJECT_DIR / ".venv-clients"
PROGRAMS = Path(__file__).parent / "programs"
NODE_PROGRAMS = Path(__file__).parent / "node"
AGENTS = Path(__file__).parent / "agents"
N8N = Path(__file__).parent / "n8n"
PINS = Path(__file__).parent / "environments"
ADMIN_KEY = "administrator-of-the-tests"
RUN_S = 300
RESOURCES_S = 3_600  # 1,305 tests


@dataclass(frozen=True)
class Report:
    """The outcomes of a program's cases, by their names."""

    outcomes: Mapping[str, Mapping[str, Any]]
    output: str

    def __call__(self, case: str) -> Any:
        """The result of a case; fails with the client's own traceback where it had none."""
        assert case in self.outcomes, f"{case} was not run:\n{self.output}"
        outcome = self.outcomes[case]
        assert "error" not in outcome, f"{case} failed:\n{outcome['error']}"
        return outcome["result"]


def pins(name: str) -> dict[str, str]:
    """The versions of an environment's packages."""
    return dict(line.split("==") for line in (PINS / f"{name}.txt").read_text().split())


def python_of(environment: str) -> Path:
    """The interpreter of an environment; skips the test where it is not installed."""
    return installed(HOME / environment / "bin" / "python")


def run_resources(url: str, *arguments: str) -> dict[str, Any]:
    """Return the report of programs/openai_resources.py, which passes ``arguments`` to pytest. Skip the test where the
    client's sources are not installed.
    """
    python = python_of("openai-resources")
    source = installed(HOME / "openai-resources" / "source" / ".unpacked").parent
    command = [str(python), str(PROGRAMS / "openai_resources.py"), url, str(source), *arguments]
    done = _process(command, {}, PROJECT_DIR, timeout_s=RESOURCES_S)
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-10_000:]
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def run_comply(url: str, form: str) -> dict[str, dict[str, Any]]:
    """What llm-comply says about the server, by the names of its cases."""
    program = python_of("llm-comply").parent / "llm-comply"
    command = [str(program), "--base-url", url, "-k", "none", "-m", "demo", "--format", form, "--json"]
    done = _process([*command, "--timeout", str(RUN_S)], {}, PROJECT_DIR)
    results = json.loads(done.stdout)["results"]
    return {result["id"]: result for result in results}


def run_python(environment: str, program: str, url: str, *arguments: str, **variables: str) -> Report:
    return _run([str(python_of(environment)), str(PROGRAMS / f"{program}.py"), url, *arguments], variables)


def run_node(program: str, url: str) -> Report:
    node = installed(HOME / "openai" / "bin" / "node")
    installed(NODE_PROGRAMS / "node_modules" / ".package-lock.json")
    return _run([str(node), str(NODE_PROGRAMS / f"{program}.mjs"), url], {})


def node_command(folder: Path, name: str) -> str:
    """Return the path of a command that npm installed in a folder. Skip the test where it is not installed."""
    installed(folder / "node_modules" / ".package-lock.json")
    return str(folder / "node_modules" / ".bin" / name)


def with_node(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a program that runs in the clients' Node."""
    return {"PATH": f"{installed(HOME / 'openai' / 'bin')}{os.pathsep}{os.environ['PATH']}", **variables}


@contextmanager
def serving(command: list[str], variables: Mapping[str, str], ready_url: str) -> Iterator[None]:
    """Run a server that is not ours until the block ends. Wait until it answers at ``ready_url``."""
    with live.running(command, {**OFFLINE, **variables}) as server:
        deadline = time.monotonic() + RUN_S
        while not _answers(ready_url):
            assert server.process.poll() is None, server.output
            assert time.monotonic() < deadline, server.output
            time.sleep(0.5)
        yield
        server.stop()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


class RequestRows:
    """The rows that a program adds to the request log of a server with :data:`ADMIN_KEY`."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.Client(base_url=f"{url}/api", headers={"Authorization": f"Bearer {ADMIN_KEY}"})
        self._known = {row["id"] for row in self._list()}

    def added(self, endpoint: str) -> list[dict[str, Any]]:
        """Return the new rows of an endpoint with their texts, newest first. Wait for the first of them."""
        deadline = time.monotonic() + RUN_S
        while not (found := [row["id"] for row in self._list() if self._is_new(row, endpoint)]):
            assert time.monotonic() < deadline, f"no request to {endpoint} was logged"
            time.sleep(0.2)
        return [self._client.get(f"/logs/{name}").raise_for_status().json() for name in found]

    def _list(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._client.get("/logs").raise_for_status().json()["data"]
        return rows

    def _is_new(self, row: dict[str, Any], endpoint: str) -> bool:
        return row["endpoint"] == endpoint and row["id"] not in self._known


def run_command(command: list[str], variables: Mapping[str, str], folder: Path) -> str:
    """What a client's own command prints; fails where it fails."""
    done = _process(command, variables, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(path: Path = HOME) -> Path:
    """The same path; skips the test where nothing is there."""
    if not path.exists():
        pytest.skip("not installed: `make clients` does it, or `make programs`")
    return path


def _run(command: list[str], variables: Mapping[str, str]) -> Report:
    done = _process(command, variables, PROJECT_DIR)
    output = done.stdout + done.stderr
    outcomes = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"case"'):
            outcome = json.loads(line)
            outcomes[outcome.pop("case")] = outcome
    assert done.returncode == 0, output
    return Report(outcomes, output)


def _process(
    command: list[str], variables: Mapping[str, str], folder: Path, *, timeout_s: float = RUN_S
) -> subprocess.CompletedProcess[str]:
    """Run without the settings of this process' Python and pytest, and without access to other machines."""
    inherited = {
        name: value for name, value in clean_environment().items() if not name.startswith(("PYTHON", "PYTEST"))
    }
    everything = {**inherited, **OFFLINE, **variables}
    return subprocess.run(
        command, cwd=folder, env=everything, capture_output=True, text=True, check=False, timeout=timeout_s
    )


OFFLINE = {
    "NO_PROXY": "127.0.0.1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LANGSMITH_TRACING": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "AI_SDK_LOG_WARNINGS": "false",
    "COLUMNS": "200",
}
