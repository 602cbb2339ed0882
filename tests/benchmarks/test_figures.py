from __future__ import annotations

import numpy as np
import pytest

from benchmarks.figures import Trace, figures, median_figures, percentile
from tests.benchmarks.builders import build_figures


@pytest.mark.parametrize("percent", [0, 50, 95, 99, 100])
@pytest.mark.parametrize("values", [[3.0], [5.0, 1.0], [0.3, 9.0, 4.5, 2.25, 7.0, 1.0]])
def test_percentiles_are_numpys(values: list[float], percent: int):
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_nothing_has_no_percentile():
    assert percentile([], 50) is None


def test_figures_of_two_streams():
    first = Trace(0.0, (1.0, 1.5, 2.0), prompt_tokens=10, completion_tokens=3)
    second = Trace(0.5, (2.5, 3.5, 4.5, 5.5), prompt_tokens=30, completion_tokens=4)
    found = figures([first, second], peak_memory_mb=7.0)
    assert (found.requests, found.prompt_tokens, found.completion_tokens) == (2, 40, 7)
    assert found.seconds == pytest.approx(5.5)
    assert found.output_tok_s == pytest.approx(7 / 5.5)
    assert found.total_tok_s == pytest.approx(47 / 5.5)
    assert found.decode_tok_s == pytest.approx(1.5)  # 2 tokens/s and 1 token/s
    assert found.ttft_p50_s == pytest.approx(1.5)
    assert found.itl_p50_s == pytest.approx(1.0)  # gaps: 0.5 twice, 1 three times
    assert found.ttft_p99_s == pytest.approx(1.99)  # 1 s and 2 s
    assert found.latency_p50_s == pytest.approx(3.5)  # 2 s and 5 s
    assert found.latency_p99_s == pytest.approx(4.97)
    assert found.peak_memory_mb == 7.0


def test_a_late_stream_counts_for_the_total_but_not_for_the_others_latency():
    early = Trace(0.0, (1.0, 2.0), 1, 2)
    late = Trace(1.0, (5.0, 9.0), 1, 2, is_late=True)
    found = figures([early, late])
    assert found.itl_p99_s == pytest.approx(1.0)
    assert found.latency_p99_s == pytest.approx(2.0)
    assert found.output_tok_s == pytest.approx(4 / 9)


def test_events_of_several_tokens_are_counted_in_full():
    assert Trace(0.0, (1.0, 2.0, 3.0, 4.0), 1, completion_tokens=8).decode_tok_s == pytest.approx(2.0)


def test_a_stream_of_one_event_has_no_speed_of_its_own():
    found = figures([Trace(0.0, (1.0,), 5, 1)])
    assert found.decode_tok_s is None
    assert found.itl_p50_s is None
    assert found.ttft_p50_s == 1.0


def test_medians_are_taken_figure_by_figure():
    middle = median_figures([build_figures(1.0, seconds=9.0), build_figures(5.0, seconds=1.0), build_figures(2.0)])
    assert middle.output_tok_s == 2.0
    assert middle.seconds == 5.0


def test_a_figure_that_a_round_lacks_has_no_median():
    assert median_figures([build_figures(), build_figures(ttft_p50_s=None)]).ttft_p50_s is None
