"""Every program runs on the tiny shape and leaves figures that the report can read. No speed is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import check, curve, decoding, engine, gpu, invariance, limits, quality, speculation, steering
from benchmarks.engine import ENGINE, Answer, load_shape, running
from benchmarks.figures import Figures, Trace
from benchmarks.gpu_checks import Check, Steps, busy, difference
from benchmarks.options import Options, parse_options
from benchmarks.record import Record, read_records
from benchmarks.subject import echo, works
from benchmarks.workloads import MAKERS, Scale, Workload
from inference.engine.config import EngineConfig
from inference.engine.kernels import native
from inference.engine.models.loader import LoadedModel
from tests.benchmarks.conftest import SHAPE
from tests.builders import build_model
from tests.live import PROJECT_DIR, clean_environment

FIGURES = set(Figures.__dataclass_fields__)


def check_saved(record: Record, folder: Path) -> None:
    """The JSON has the schema, complete figures and comes back as the same record."""
    found = json.loads(record.save(folder).read_text())
    assert found.keys() == {"program", "shape", "machine", "values", "notes", "rows"}
    assert found["machine"]["versions"]["torch"]
    for row in found["rows"]:
        assert row.keys() == {"subject", "workload", "note", "median", "rounds"}
        for figures in (row["median"], *row["rounds"]):
            assert figures.keys() == FIGURES
            assert figures["output_tok_s"] > 0
            assert figures["ttft_p50_s"] > 0
            assert figures["itl_p50_s"] > 0
    assert read_records(folder) == [record]


def test_engine(options: Options):
    record = engine.record(options)
    check_saved(record, options.results)
    assert [row.workload for row in record.rows] == ["W1", "W2", "W4", "W4 unshared", "W5"]
    assert all(len(row.rounds) == options.rounds for row in record.rows)
    w2 = record.row(ENGINE, "W2")
    jobs = MAKERS["W2"](options.scale, 0).jobs
    assert w2 is not None
    assert w2.median.completion_tokens == sum(job.new for job in jobs)
    assert w2.median.prompt_tokens == sum(len(job.prompt) for job in jobs)


def test_a_late_job_is_sent_when_the_others_are_under_way(loaded: LoadedModel):
    workload = MAKERS["W5"](Scale(loaded.vocab_size, 0.05), 0)
    with running(loaded, EngineConfig()) as subject:
        *early, late = subject.run(workload)
    after = workload.jobs[-1].after
    assert late.is_late
    assert all(trace.event_times[after - 1] <= late.sent_at for trace in early)


def test_a_request_that_fails_is_no_figure(loaded: LoadedModel):
    workload = MAKERS["W1"](Scale(loaded.vocab_size * 2), 0)  # ids outside the vocabulary
    with running(loaded, EngineConfig()) as subject, pytest.raises(RuntimeError, match="invalid_prompt"):
        subject.run(workload)


def test_steering(options: Options):
    record = steering.record(options, distinct=(0, 2))
    check_saved(record, options.results)
    resident = {row.subject for row in record.rows if row.workload == "resident"}
    assert resident == {f"{kind} K={k}" for kind in ("add", "clamp", "mixed") for k in (0, 2)}
    w3 = {row.subject for row in record.rows if row.workload == "W3"}
    assert w3 == {f"W3 {kind} K={k}" for kind in ("add", "clamp", "mixed") for k in (0, 1, 4, 16)}


def test_invariance(options: Options):
    record = invariance.record(invariance.in_dtype(options, "bfloat16"))
    check_saved(record, options.results)
    assert record.shape == "tiny-bfloat16"
    assert {(row.workload, row.subject) for row in record.rows} == {
        (workload, subject)
        for workload in invariance.WORKLOADS
        for subject in (invariance.OFF, invariance.ON, invariance.AGAIN)
    }
    assert record.values["W1: batch invariant, tok/s over off"] > 0


def test_curve(options: Options):
    record = curve.record(options, counts=(1, 3))
    check_saved(record, options.results)
    assert [row.median.requests for row in record.rows] == [1, 3]


def test_speculation(options: Options):
    record = speculation.record(options, counts=(2,))
    check_saved(record, options.results)
    workloads = {f"{kind} 2" for kind in speculation.KINDS}
    assert {(row.workload, row.subject) for row in record.rows} == {
        (workload, subject) for workload in workloads for subject in speculation.CONFIGS
    }
    assert {f"{workload}: always, tok/s over off" for workload in workloads} <= record.values.keys()
    assert all(0 <= value <= 1 for name, value in record.values.items() if name.endswith("right"))


def test_decoding(options: Options):
    record = decoding.record(options, read_bytes=2**22, read_s=0.05)
    assert read_records(record.save(options.results).parent) == [record]
    assert 0 < record.values["lowest_share"] <= record.values["share"] <= record.values["highest_share"]


def test_quality(tmp_path):
    folder = build_model(tmp_path)
    record = quality.record(folder, num_texts=3, dtype="float32")
    assert read_records(record.save(tmp_path / "results").parent) == [record]
    losses = {name for name in record.values if name.startswith("int8_")}
    assert losses == {"int8_perplexity_change", "int8_logprob_change", "int8_other_first_token"}
    assert 0 < record.values["int8_logprob_change"] < 0.5
    if native.active().has_int8:
        assert record.values["int8_logprob_change"] < record.values["w8a8_logprob_change"]


def test_the_share_of_the_limit_is_one_of_native_weights(options: Options):
    with pytest.raises(ValueError, match="int8"):
        decoding.record(replace(options, quantization="int8"))


def test_weights_become_int8_where_that_is_asked_for(options: Options):
    loaded = load_shape(options.shape, replace(options, quantization="int8"))
    assert any(type(module).__name__.startswith("Int8") for module in loaded.module.modules())


def test_limits():
    found = limits.limits(SHAPE, "cpu", read_bytes=2**22, repeat_s=0.05)
    assert found["read_gb_s"] > 0
    assert found["bf16_gflop_s"] > 0
    assert found["decode_tok_s"] == pytest.approx(found["read_gb_s"] / found["weights_gb"])


def test_a_wrong_kernel_and_a_failing_step_are_reported(options: Options, capsys: pytest.CaptureFixture[str]):
    right = Answer([5, 6], [-1.0, -2.0])
    rounded, wrong = Answer([5, 7], [-1.01, -2.02]), Answer([5, 6], [-1.0, -2.5])
    assert difference(right, right) == 0
    assert difference(right, rounded) == pytest.approx(0.02)
    assert not Check("graphs off", "add", difference(right, wrong), 1.0).is_right
    now = [0.0]
    steps = Steps(10, echo, lambda: now[0])

    def fail() -> None:
        raise RuntimeError("CUDA error: out of memory")

    ran: list[str] = []
    steps("first", fail)
    steps("second", lambda: ran.append("second"))
    now[0] = 11
    steps("third", lambda: ran.append("third"))
    assert ran == ["second"]
    assert steps.failures == [
        "first: RuntimeError: CUDA error: out of memory. Use a smaller --shape, or free the device's memory."
    ]
    assert "third: skipped" in capsys.readouterr().out


def test_the_device_is_busy_for_the_union_of_its_kernels():
    assert busy([(0, 2), (1, 3), (5, 6), (5.5, 5.75)]) == 4
    assert busy([]) == 0


def test_a_peer_that_does_not_work_is_left_out_of_the_gpus_rows(capsys: pytest.CaptureFixture[str]):
    class Broken:
        name = gpu.PEER

        def run(self, workload: Workload) -> list[Trace]:
            raise MemoryError("more than available memory")

        def peak_memory_mb(self) -> float | None: ...

    assert not works(Broken(), MAKERS["W1"], Scale(1024))
    assert f"Skipping {gpu.PEER}. MemoryError" in capsys.readouterr().out


NOT_ON_A_BARE_MACHINE = (
    "channels",
    "daphne",
    "django",
    "llguidance",
    "matplotlib",
    "prometheus_client",
    "psutil",
    "psycopg",
    "pydantic",
    "rest_framework",
)


def test_the_gpus_program_needs_torch_and_transformers_only(models: Path, tmp_path: Path):
    """The whole of it is run, for much is imported late; its rows are those of whatever device there is."""
    arguments = ["--shape", "tiny", "--share", "0.02", "--rounds", "1"]
    arguments += ["--folder", str(models), "--results", str(tmp_path)]
    script = f"""
import runpy, sys
for name in {NOT_ON_A_BARE_MACHINE}: sys.modules[name] = None
sys.argv = ["gpu", *{arguments}]
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""
    run(sys.executable, "-c", script)
    [record] = read_records(tmp_path)
    assert record.program == "gpu"
    check_saved(record, tmp_path)
    costs = {f"{k}_over_unsteered{ending}" for k in ("steered", "clamped") for ending in ("", "_graphs_off")}
    gains = {f"{w}_over_{what}" for w in ("w1", "w2") for what in ("graphs_off", "torch_attention")}
    assert {"w1_share_of_memory_limit", "w2_over_generate_batch", *costs, *gains} <= record.values.keys()
    assert {row.subject for row in record.rows if row.workload == "W2"} == {*gpu.ENGINES, gpu.PEER}
    assert {row.subject for row in record.rows if row.workload == "streams 64"} == {
        f"{kind} K={k}{ending}"
        for kind in ("add", "clamp", "mixed")
        for k in (0, 64)
        for ending in ("", ", graphs off")
    }
    assert len(gpu.table(record)) > len(record.rows)
    checked = [note for note in record.notes if note.startswith("ok")]
    assert len(checked) == 3 * 4, record.notes  # options other than plain torch, unsteered and three kinds of profiles
    trace = json.loads((models / "gpu-trace.json").read_text())
    assert trace["traceEvents"]


def test_check_passes_against_its_own_baseline_and_fails_against_a_better_one(models: Path, tmp_path: Path):
    """Counts only: an absurdly low speed is asked for, so that time plays no part."""
    baseline = tmp_path / "baseline.json"
    arguments = ["--shape", "tiny", "--rounds", "1", "--share", "0.02"]
    arguments += ["--folder", str(models), "--baseline", str(baseline)]
    assert check.main([*arguments, "--write"]) == 0
    rewrite(baseline, lambda name, value: value / 1000 if "tok/s" in name else value)
    assert check.main(arguments) == 0
    rewrite(baseline, lambda name, value: value * 0.8 if "torch operators a step" in name else value)
    assert check.main(arguments) == 1


def rewrite(baseline: Path, change: Callable[[str, float], float]) -> None:
    found = json.loads(baseline.read_text())
    for name, measure in found["measures"].items():
        measure["value"] = change(name, measure["value"])
    baseline.write_text(json.dumps(found))


def test_all_programs_run_one_after_the_other(models: Path, tmp_path: Path):
    arguments = ["--shape", "tiny", "--share", "0.02", "--rounds", "1", "--only", "curve"]
    run(sys.executable, "-m", "benchmarks", *arguments, "--folder", str(models), "--results", str(tmp_path))
    assert [record.program for record in read_records(tmp_path)] == ["curve"]


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--shape", "huge"], ["--workloads", "W9"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse_options("A program.", arguments)
    assert arguments[0] in capsys.readouterr().err


def run(*command: str) -> None:
    done = subprocess.run(
        command, cwd=PROJECT_DIR, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
