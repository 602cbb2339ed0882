"""The examples of docs/steering.md run, and its tables name what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inference.interventions import SITE_KINDS
from jobs.kinds import known_kinds
from steering.demo.install import install_demo
from steering.errors import ProfileModelMismatchError, ProfileNotFoundError, SAEUnavailableError
from steering.saes.architectures import ARCHITECTURES
from steering.saes.formats.registry import FORMATS
from steering.spec.edit import OPERATIONS, PHASES, SCOPES, UNITS
from steering.spec.units import MAX_PUSH, STRONG_PUSH

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "steering.md").read_text("utf-8")
SERVER = "http://127.0.0.1:8000"  # examples that ask it run in tests/e2e/test_steering_docs.py
EXAMPLES = [
    example for example in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL) if SERVER not in example
]


@pytest.mark.django_db
def test_examples_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    install_demo()
    assert len(EXAMPLES) >= 3
    for example in EXAMPLES:
        exec(compile(example, "docs/steering.md", "exec"), {})  # noqa: S102


@pytest.mark.parametrize("name", [*OPERATIONS, *UNITS, *PHASES, *SCOPES, *SITE_KINDS, *ARCHITECTURES])
def test_every_choice_is_described(name):
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("name", [kind.name for kind in known_kinds() if kind.name.startswith("steering.")])
def test_every_kind_of_job_is_described(name):
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
def test_formats_are_listed_with_what_recognises_them(known):
    (row,) = re.findall(rf"^\| `{known.name}` \|(.*)$", TEXT, re.MULTILINE)
    for name in known.required_files:
        assert f"`{name}`" in row or known.name == "llamascopium"  # “the same with …”


@pytest.mark.parametrize("error", [ProfileNotFoundError, ProfileModelMismatchError, SAEUnavailableError])
def test_errors_are_listed_with_their_status(error):
    assert f"| `{error.code}` | {error.status} |" in TEXT


def test_limits_are_the_real_ones():
    assert f"above\n{STRONG_PUSH:g}, and nothing above {MAX_PUSH:g} can be published" in TEXT
