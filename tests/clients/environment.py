"""The environments that ``make clients`` installs, and what the programs that run there report."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millm_site.env import PROJECT_DIR
from tests.live import clean_environment

HOME = PROJECT_DIR / ".venv-clients"
PROGRAMS = Path(__file__).parent / "programs"
NODE_PROGRAMS = Path(__file__).parent / "node"
PINS = Path(__file__).parent / "environments"
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


def run_command(command: list[str], variables: Mapping[str, str], folder: Path) -> str:
    """What a client's own command prints; fails where it fails."""
    done = _process(command, variables, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(path: Path = HOME) -> Path:
    """The same path; skips the test where nothing is there."""
    if not path.exists():
        pytest.skip("the clients are not installed: `make clients` does it")
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
