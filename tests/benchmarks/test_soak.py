"""What the soak finds wrong, and a short one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.soak import log_findings, server_findings, soak
from benchmarks.soak_client import Outcome
from benchmarks.soak_memory import Sample, memory_findings, slope
from benchmarks.soak_requests import KINDS, Requests, SoakRequest

CHAT = SoakRequest("chat", "/chat/completions", b"{}")
LEFT = SoakRequest("cancel", "/chat/completions", b"{}", leave_after=0)
Rows = dict[str, tuple[int, str, int]]


@pytest.mark.parametrize(
    ("outcome", "rows", "finding"),
    [
        (Outcome("a", CHAT, 200, completion_tokens=5), {"a": (200, "stop", 5)}, ""),
        (Outcome("a", CHAT, 200, completion_tokens=5), {}, "a (chat, 200) is not in the log."),
        (Outcome("a", CHAT, 200, completion_tokens=5), {"a": (200, "stop", 4)}, "a: logged 4 tokens (stop)"),
        (Outcome("a", CHAT, 200, completion_tokens=5), {"a": (200, "", 5)}, "a: logged 5 tokens ()"),
        (Outcome("a", CHAT, 503), {"a": (503, "", 0)}, ""),
        (Outcome("a", CHAT, 503), {"a": (500, "", 0)}, "a: the log has status 500, the client got 503."),
        (Outcome("a", LEFT, 0), {"a": (499, "", 2)}, ""),
        (Outcome("a", LEFT, 0), {}, ""),
    ],
)
def test_the_log_is_held_against_what_the_client_saw(outcome: Outcome, rows: Rows, finding: str):
    found = log_findings([outcome], rows)
    assert len(found) == (1 if finding else 0)
    assert "".join(found).startswith(finding)


def test_a_row_that_nobody_sent_is_found():
    found = log_findings([], {"c1-5": (200, "stop", 3), "req_123": (200, "stop", 3)})
    assert found == ["c1-5 is in the log but was not sent."]


def samples(*sizes: float, threads: int = 10, end_threads: int = 10) -> list[Sample]:
    taken = [Sample(float(i), size, threads) for i, size in enumerate(sizes)]
    return [*taken, Sample(float(len(sizes)), sizes[-1], end_threads)]


def test_growth_while_warming_up_is_no_leak():
    assert memory_findings(samples(*range(100, 400, 10), *[400] * 60), {}) == []


def test_growth_after_the_warm_up_is_a_leak():
    values: dict[str, float] = {}
    (found,) = memory_findings(samples(*(400 + i for i in range(90))), values)
    assert found.startswith("Memory grew from")
    assert values["rss_slope_mb_per_minute"] == pytest.approx(60)


def test_more_threads_in_the_end_are_a_leak():
    (found,) = memory_findings(samples(*[400.0] * 90, end_threads=11), {})
    assert found.startswith("Threads leaked: 11")


def test_a_short_soak_gives_figures_and_does_not_judge_them():
    values: dict[str, float] = {}
    assert memory_findings(samples(*(400 + 40 * i for i in range(6)), end_threads=11), values) == []
    assert values["threads_at_the_end"] == 11


def test_the_slope_is_that_of_a_line():
    assert slope([Sample(float(t), 5.0 + 0.25 * t, 1) for t in range(8)]) == pytest.approx(0.25)
    assert slope([Sample(0.0, 5.0, 1)]) == 0.0


def test_a_server_that_logged_an_exception_or_ended_badly_is_wrong():
    assert server_findings(0, "all is well") == []
    assert server_findings(1, "oh")[0].startswith("The server exited with code 1")
    assert "KeyError" in server_findings(0, "Traceback (most recent call last): KeyError")[0]


def test_requests_are_of_all_kinds_and_can_be_repeated():
    first, second = (Requests("m", ("joyful",), 1024, seed=3) for _ in range(2))
    asked = [first.draw() for _ in range(1500)]
    assert asked == [second.draw() for _ in range(1500)]
    assert {request.kind for request in asked} == set(KINDS)
    assert {request.status for request in asked} == {200, 400, 404, 415}
    assert {json.loads(request.body).get("profile") for request in asked if request.kind == "chat"} == {None, "joyful"}
    assert {request.leave_after for request in asked} >= {None, 0, 1, 3, 10}


@pytest.mark.live
@pytest.mark.usefixtures("demo_database")
def test_a_short_soak_finds_nothing_wrong(tmp_path: Path):
    assert soak(0.1, 6, tmp_path / "home", tmp_path / "results") == []
    (saved,) = (tmp_path / "results").glob("*.json")
    values = json.loads(saved.read_text())["values"]
    assert values["requests"] > 20
    assert values["tokens"] > 0
    assert values["problems"] == 0
