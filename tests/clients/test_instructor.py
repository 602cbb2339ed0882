"""instructor: answers as objects of pydantic models."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.environment import Report, run_python


@pytest.fixture(scope="module")
def report(site: str) -> Report:
    return run_python("litellm", "instructor_client", site)


def check(animal: dict[str, Any]) -> None:
    assert animal["kind"] in {"cat", "dog"}
    assert isinstance(animal["is_tame"], bool)
    assert len(animal["friends"]) <= 2


@pytest.mark.parametrize("case", ["by_tool", "by_strict_tool", "by_schema"])
def test_objects(report: Report, case: str) -> None:
    found = report(case)
    check(found["animal"])
    assert found["reason"] in {"stop", "tool_calls"}


def test_objects_that_grow(report: Report) -> None:
    found = report("partial")
    assert found["steps"] > 3
    check(found["last"])


def test_asynchronous(report: Report) -> None:
    check(report("asynchronous"))


def test_a_refused_object_is_asked_for_again(report: Report) -> None:
    assert report("retry") >= 2
