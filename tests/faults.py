"""Run every test that docs/testing.md names for a fault: ``python -m tests.faults``; arguments go to pytest."""

from __future__ import annotations

import re
import sys

import pytest

from tests.live import PROJECT_DIR

PAGE = PROJECT_DIR / "docs" / "testing.md"
_SECTION = re.compile(r"^## Faults\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"`(tests/[\w/.]+\.py(?:::\w+)*)`")


def fault_rows(page: str) -> list[str]:
    """Return the rows of the tables under "Faults", without their heads."""
    section = _SECTION.search(page)
    assert section is not None, "docs/testing.md has no section named Faults"
    rows = [line for line in section[1].splitlines() if line.startswith("| ")]
    return [row for row in rows if not row.startswith("| fault |")]


def fault_tests(page: str) -> list[str]:
    """Return the ids of the named tests, each once, without those that another id's file covers."""
    named = list(dict.fromkeys(test for row in fault_rows(page) for test in _TEST.findall(row)))
    files = {name for name in named if "::" not in name}
    return [name for name in named if name in files or name.partition("::")[0] not in files]


if __name__ == "__main__":
    sys.exit(pytest.main([*fault_tests(PAGE.read_text("utf-8")), *sys.argv[1:]]))
