"""docs/testing.md names tests that exist, and all cases that it is about."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.faults import fault_rows, fault_tests
from tests.live import PROJECT_DIR

PAGE = (PROJECT_DIR / "docs" / "testing.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+\.py(?:::\w+)*)`", PAGE)))
SCHEDULER_CASES = 10
RUNNER_CASES = 7
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
EXIT_CRITERIA = 12
MANY_FAULTS = 90
BAD_INPUTS = range(1, 48)


@cache
def definitions(file: str) -> frozenset[str]:
    """``test_x``, ``TestX`` and ``TestX::test_y`` of a file."""
    found: set[str] = set()
    for node in ast.parse((PROJECT_DIR / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name} | {f"{node.name}::{child.name}" for child in node.body if isinstance(child, FUNCTION)}
        elif isinstance(node, FUNCTION):
            found.add(node.name)
    return frozenset(found)


def test_named_tests_exist() -> None:
    missing = []
    for named in NAMED:
        file, _, name = named.partition("::")
        exists = (PROJECT_DIR / file).is_file() and any("test_" in each for each in definitions(file))
        if not exists or (name and name not in definitions(file)):
            missing.append(named)
    assert NAMED
    assert missing == []


def test_every_case_has_a_row() -> None:
    cases = [row.split("|")[1].strip().partition(":")[0] for row in rows_under("testing plan")]
    assert cases.count("Scheduler") == SCHEDULER_CASES
    assert cases.count("Runner") == RUNNER_CASES
    assert sorted(numbers_under("exit criteria")) == list(range(1, EXIT_CRITERIA + 1))
    assert sorted(numbers_under("Bad input")) == list(BAD_INPUTS)


def test_every_fault_has_one_row_of_its_own_that_make_faults_runs() -> None:
    faults = [row.split("|")[1] for row in fault_rows(PAGE)]
    assert len(set(faults)) == len(faults) >= MANY_FAULTS
    assert {name for row in fault_rows(PAGE) for name in NAMED if f"`{name}`" in row} >= set(fault_tests(PAGE))


def test_every_row_names_a_test() -> None:
    titles = ("testing plan", "exit criteria", "Greedy", "Bad input")
    rows = [*fault_rows(PAGE), *(row for title in titles for row in rows_under(title))]
    assert [row for row in rows if "`tests/" not in row and "every test there" not in row] == []


def rows_under(title: str) -> list[str]:
    """Of the table under the heading with these words, without its head."""
    heading = next(line for line in PAGE.splitlines() if line.startswith("## ") and title in line)
    text = PAGE.partition(heading)[2].partition("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


def numbers_under(title: str) -> list[int]:
    return [int(number) for row in rows_under(title) for number in re.findall(r"\d+", row.split("|")[1])]
