"""The workloads over HTTP against a server of the benchmark's own."""

from __future__ import annotations

import pytest

from benchmarks import engine_modes, routing, serve, start
from benchmarks.engine import ENGINE
from benchmarks.options import Options
from benchmarks.serve import SERVER
from tests import combinations
from tests.benchmarks.test_programs import check_saved

pytestmark = pytest.mark.live


@pytest.mark.usefixtures("migrated_database")
def test_server_and_engine_answer_the_same_workloads(options: Options):
    record = serve.record(options)
    check_saved(record, options.results)
    for workload in ("W1", "W2", "W3 K=16", "W4", "W4 unshared", "W5"):
        http, engine = record.row(SERVER, workload), record.row(ENGINE, workload)
        assert http is not None
        assert engine is not None
        assert http.median.completion_tokens == engine.median.completion_tokens
        assert http.median.prompt_tokens == engine.median.prompt_tokens
        assert http.median.peak_memory_mb != engine.median.peak_memory_mb


@pytest.mark.usefixtures("migrated_database")
def test_start(options: Options):
    record = start.record(options)
    assert record.values["second_start_s"] > 0
    assert 50 < record.values["idle_mb"] < 5000


@pytest.mark.usefixtures("migrated_database")
def test_all_kinds_of_servers_answer_the_same_streams(options: Options):
    all_modes = ("thread", "process", "2 processes", "2 Ray actors", "2 workers")
    modes = all_modes if combinations.ALL else ("thread", "process", "2 workers")
    record = engine_modes.record(options, count=4, modes=modes)
    assert record.save(options.results).exists()
    for workload in ("4 streams", "8 streams", engine_modes.BODIES):
        rows = [record.row(mode, workload) for mode in modes]
        medians = [row.median for row in rows if row is not None]
        assert len(medians) == len(modes)
        assert len({median.completion_tokens for median in medians}) == 1
        assert medians[0].completion_tokens > 0
        assert len({median.peak_memory_mb for median in medians}) == len(modes)


def test_the_simulated_replicas_have_more_of_what_the_router_sends_them(options: Options):
    record = routing.record(replicas=4, streams=40, profiles=100, visits=400)
    assert record.save(options.results).exists()
    values = record.values
    assert values["router_cached_share_of_prompts"] > values["least_loaded_cached_share_of_prompts"]
    assert values["router_compiled_share_of_steering"] > values["in_turns_compiled_share_of_steering"]
    assert values["router_highest_load_relative_to_mean"] < 2
    assert values["router_keys"] > 0
