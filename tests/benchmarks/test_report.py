from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine import ENGINE
from benchmarks.goals import GOALS, Records, goals_table
from benchmarks.picture import draw
from benchmarks.report import BEGIN, END, README, replace_section, results, rows_table, section, write_report
from benchmarks.serve import SERVER
from benchmarks.subject import Row
from tests.benchmarks.builders import build_record, build_row


def rows_for_goals() -> Records:
    """Ours makes 125 tok/s where the best peer makes 100; the server makes 94 % of the engine."""
    peers = build_record(
        "peers",
        build_row(ENGINE, "W1", 130.0),
        build_row(SERVER, "W1", 125.0),
        build_row("vLLM", "W1", 100.0),
        build_row("OpenVINO", "W1", 80.0),
        build_row(SERVER, "W2", 120.0, ttft_p50_s=1.0),
        build_row("vLLM", "W2", 80.0, ttft_p50_s=2.0),
        build_row("OpenVINO", "W2", 100.0, ttft_p50_s=0.5),
        build_row("transformers generate", "W2", 500.0, ttft_p50_s=0.1),
        shape="qwen3-0.6b-avx512_bf16",
    )
    serve = build_record(
        "serve",
        build_row(ENGINE, "W1", 100.0),
        build_row(SERVER, "W1", 94.0),
        build_row(SERVER, "W4", 50.0, ttft_p50_s=0.1),
        build_row(SERVER, "W4 unshared", 50.0, ttft_p50_s=1.0),
        build_row(SERVER, "W5", 50.0, itl_p50_s=0.01, itl_p99_s=0.03),
    )
    return Records(
        [peers, serve, build_record("decoding", share=0.65), build_record("start", shape="demo", second_start_s=4.0)]
    )


@pytest.mark.parametrize(
    ("topic", "text", "measured", "verdict"),
    [
        ("W1, bf16, AVX512_BF16", "tok/s over the best peer", 1.25, "met"),
        ("W1, bf16", "share of the memory limit", 0.65, "missed"),
        ("W1, int8, AVX2", "tok/s over the best int8 peer", None, "not measured"),
        ("W2, bf16, AVX512_BF16", "tok/s over the best peer", 1.2, "missed"),
        ("W2, bf16, AVX512_BF16", "TTFT p50 over the best", 2, "missed"),
        ("W2, bf16, AVX2", "tok/s over the best peer", None, "not measured"),
        ("server overhead", "W1 over HTTP / engine", 0.94, "missed"),
        ("W4", "TTFT p50 with a shared prefix / without", 0.1, "met"),
        ("W5", "ITL p99 / ITL p50", 3.0, "missed"),
        ("start", "s until the demo answers, second start", 4.0, "met"),
        ("GPU W2", "tok/s over transformers' generate_batch", None, "not measured"),
    ],
)
def test_goals_are_judged_by_the_records(topic: str, text: str, measured: float | None, verdict: str):
    (goal,) = [goal for goal in GOALS if (goal.topic, goal.text) == (topic, text)]
    found = goal.measure(rows_for_goals())
    assert found == (None if measured is None else pytest.approx(measured))
    assert goal.verdict(found) == verdict


def test_steering_is_judged_by_k_16():
    rows = [build_row("W3 add K=0", "W3", 100.0), build_row("W3 add K=16", "W3", 98.0)]
    lines = goals_table(Records([build_record("steering", *rows)]))
    assert "| steering, add | W3: K = 16 / K = 0 | ≥ 97.0% | 98.0% | met |" in lines


def test_int8_has_a_record_of_its_own():
    rows = [build_row(SERVER, "W1", 50.0), build_row("llama.cpp Q8_0", "W1", 40.0)]
    lines = goals_table(Records([build_record("peers", *rows, shape="qwen3-0.6b-int8-avx2")]))
    assert "| W1, int8, AVX2 | tok/s over the best int8 peer | ≥ 1 | 1.25 | met |" in lines


def test_a_table_compares_with_the_first_subject_of_the_workload():
    lines = rows_table([build_row("a", "W1", 200.0), build_row("b", "W1", 100.0), build_row("b", "W2", 50.0)])
    assert [line.rsplit(" | ", 1)[1] for line in lines[2:]] == ["1.000 |", "0.500 |", "1.000 |"]
    assert len({line.count("|") for line in lines}) == 1


def test_a_table_has_the_tails_of_first_tokens_and_of_whole_requests():
    tails = {"ttft_p99_s": 0.75, "latency_p50_s": 4.0, "latency_p95_s": 5.0, "latency_p99_s": 6.0}
    titles, _, measured, before = rows_table([build_row("a", "W1", 1.0, **tails), build_row("b", "W1", 1.0)])
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (titles, measured, before)]
    first, latency = cells[0].index("TTFT p50 ms"), cells[0].index("latency p50 s")
    assert cells[0][first : first + 3] == ["TTFT p50 ms", "p95", "p99"]
    assert cells[1][first + 2] == "750"
    assert cells[1][latency : latency + 3] == ["4", "5", "6"]
    assert cells[2][latency : latency + 3] == ["-", "-", "-"]  # a record from before they were measured


def test_a_section_names_machine_date_versions_and_rounds():
    text = "\n".join(section(build_record("serve", build_row("a", "W1", 1.0, 2.0, 3.0))))
    for part in ("Some CPU", "2 cores", "24 GiB", "2026-11-21", "torch 2.13.0", "0123456789ab", "Medians of 3"):
        assert part in text


def test_the_goals_come_first_and_values_are_listed():
    lines = results([build_record("limits", read_gb_s=42.0)], picture="streams.png")
    assert lines[0] == "## Goals"
    assert any("(streams.png)" in line for line in lines)
    assert "- read gb s: 42" in lines


def test_only_what_lies_between_the_marks_is_replaced():
    page = f"before {BEGIN} old {END} after"
    once = replace_section(page, ["new"])
    assert once == f"before {BEGIN}\n\nnew\n\n{END} after"
    assert replace_section(once, ["new"]) == once


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="must contain the markers"):
        replace_section("nothing here", ["new"])


def test_the_committed_page_has_the_marks():
    assert replace_section(README.read_text(), ["new"])


def curve_rows() -> list[Row]:
    return [build_row(ENGINE, f"streams {n}", 40.0 * n, requests=n) for n in (1, 2, 64)]


def test_the_picture_is_drawn(tmp_path: Path):
    path = draw(build_record("curve", *curve_rows()), tmp_path / "streams.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_report_is_written(tmp_path: Path):
    readme = tmp_path / "README.md"
    readme.write_text(f"# Page\n{BEGIN}{END}\n")
    build_record("curve", *curve_rows()).save(tmp_path / "results")
    write_report(tmp_path / "results", readme, tmp_path / "streams.png")
    text = readme.read_text()
    assert "(streams.png)" in text
    assert "| streams 64 | miLLM engine |" in text
    assert (tmp_path / "streams.png").exists()
