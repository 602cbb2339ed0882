from __future__ import annotations

import pytest

from benchmarks.figures import Trace
from benchmarks.peers.comparison import failed_in
from benchmarks.subject import Plan, measure, ratios
from benchmarks.workloads import MAKERS, Scale, Workload, streams
from tests.benchmarks.builders import build_row


class Scripted:
    """Answers each job in ``step_s`` a token and notes what it was asked."""

    def __init__(self, name: str, step_s: float, diary: list[tuple[str, Workload]]) -> None:
        self.name = name
        self._step_s = step_s
        self._diary = diary

    def run(self, workload: Workload) -> list[Trace]:
        self._diary.append((self.name, workload))
        return [
            Trace(0.0, tuple(self._step_s * (i + 1) for i in range(job.new)), len(job.prompt), job.new)
            for job in workload.jobs
        ]

    def peak_memory_mb(self) -> float | None:
        return 12.0


def test_subjects_take_turns_on_the_same_prompts_and_the_first_round_does_not_count():
    diary: list[tuple[str, Workload]] = []
    subjects = [Scripted("fast", 0.01, diary), Scripted("slow", 0.02, diary)]
    fast, slow = measure(subjects, [streams(2)], Plan(Scale(1024, 0.1), rounds=3))
    assert [name for name, _ in diary] == ["slow", "fast", "fast", "slow", "slow", "fast", "fast", "slow"]
    for (_, first), (_, second) in zip(diary[::2], diary[1::2], strict=True):
        assert first == second
    assert len({workload for _, workload in diary}) == 4
    assert len(fast.rounds) == len(slow.rounds) == 3
    assert fast.workload == "streams 2"
    assert fast.median.peak_memory_mb == 12.0
    assert fast.median.output_tok_s > 1.9 * slow.median.output_tok_s


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    rows = {"a": build_row("a", "W1", 10, 20, 90), "b": build_row("b", "W1", 10, 10, 10)}
    assert ratios(rows, "output_tok_s", "a", "b") == 2.0


def test_a_ratio_of_an_even_number_of_rounds_lies_between():
    rows = {"a": build_row("a", "W1", 10, 20), "b": build_row("b", "W1", 10, 10)}
    assert ratios(rows, "output_tok_s", "a", "b") == 1.5


def test_a_figure_that_one_side_lacks_has_no_ratio():
    rows = {"a": build_row("a", "W1", 10), "b": build_row("b", "W1", 10, ttft_p50_s=None)}
    assert ratios(rows, "ttft_p50_s", "a", "b") is None


def test_a_subject_that_fails_is_left_out_from_there_on(capsys: pytest.CaptureFixture[str]):
    class Dying(Scripted):
        def run(self, workload: Workload) -> list[Trace]:
            if len(self._diary) > 3:
                raise ConnectionError("it was killed")
            return super().run(workload)

    others: list[tuple[str, Workload]] = []
    subjects = [Dying("dying", 0.01, []), Scripted("steady", 0.01, others)]
    rows = measure(subjects, [MAKERS["W1"], streams(2)], Plan(Scale(1024, 0.1), rounds=3, leaves_out=True))
    assert [(row.subject, row.workload) for row in rows] == [
        ("dying", "W1"), ("steady", "W1"), ("steady", "streams 2")
    ]  # fmt: skip
    assert len(others) == 8
    assert list(failed_in(rows)) == [("dying", "streams 2")]
    assert "Leaving out dying from streams 2 on. ConnectionError: it was killed" in capsys.readouterr().out
    with pytest.raises(ConnectionError):
        measure([Dying("dying", 0.01, others)], [streams(2)], Plan(Scale(1024, 0.1)))
