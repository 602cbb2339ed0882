"""/metrics: who may read it, what it says, and that it is said in Prometheus' way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from core.runtime import runtime
from inference.client import ENGINE_CLIENT, EngineDownError, EngineStats
from inference.engine.stats import BucketCounts, ModelStats, ReplicaStats
from inference.metrics import REGISTRY
from jobs import metrics as job_metrics
from media import metrics
from millm_site.http import metrics as metrics_page  # registers the collectors
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.writer import LOG_WRITER, LogWriter
from tests.openai_api.conftest import Api, api, events_of
from tests.openai_api.fakes import failing

__all__ = ["api", "metrics_page"]

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", re.MULTILINE)
OURS = "millm_"


class Engine:
    """An engine that only tells."""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    async def submit(self, requests: object) -> Any:
        raise AssertionError("metrics submit nothing")

    def cancel(self, stream_id: str) -> None:
        raise AssertionError("metrics cancel nothing")

    def stop(self, drain_s: float) -> None:
        raise AssertionError("metrics stop nothing")

    def stats(self) -> EngineStats:
        if self.failure is not None:
            raise self.failure
        seconds = BucketCounts((0.1, 1.0))
        for value in (0.05, 0.1, 0.5, 7.0):
            seconds.add(value)
        model = ModelStats(
            "tiny",
            running=2,
            waiting=3,
            kv_used_ratio=0.25,
            prefix_queries=100,
            prefix_hits=40,
            preemptions=1,
            drafts=5,
            draft_tokens=20,
            accepted_draft_tokens=12,
            steering_rows=4,
            step_seconds=seconds.read(),
            step_faults={"out_of_memory": 2},
        )
        replicas = (ReplicaStats(0, "running", running=2, waiting=3, models=("tiny",)), ReplicaStats(3, "starting"))
        return EngineStats("running", restarts=1, by_model=(model,), replicas=replicas)


@pytest.fixture(autouse=True)
def engine(settings: Any) -> Iterator[Engine]:
    settings.MILLM_METRICS_TOKEN = ""
    settings.MILLM_AUTH = "loopback"
    engine = Engine()
    runtime.install(ENGINE_CLIENT, engine)  # type: ignore[misc]  # it is only asked
    yield engine
    runtime.remove(ENGINE_CLIENT)


def families() -> dict[str, Metric]:
    return {family.name: family for family in parse(generate_latest(REGISTRY).decode())}


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


# Who may read it


async def test_this_machine_may_read_it_where_it_needs_no_key(api: Api):
    response = await api.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert "millm_engine_up 1.0" in response.content.decode()


@pytest.mark.parametrize(
    ("auth", "headers"),
    [("required", {}), ("loopback", {"X-Forwarded-For": "203.0.113.9"}), ("required", {"Authorization": "Bearer "})],
)
async def test_nobody_else_may_without_a_token(api: Api, settings: Any, auth: str, headers: dict[str, str]):
    settings.MILLM_AUTH = auth
    response = await api.client.get("/metrics", headers=headers)
    assert response.status_code == 403
    assert "MILLM_METRICS_TOKEN" in response.content.decode()


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("Bearer the-token", 200),
        ("bearer the-token", 200),
        ("Bearer the-tokem", 401),
        ("Basic the-token", 401),
        ("the-token", 401),
        ("Bearer tökén", 401),
        ("", 401),
    ],
)
async def test_with_a_token_everyone_needs_it(api: Api, settings: Any, given: str, status: int):
    settings.MILLM_METRICS_TOKEN = "the-token"
    response = await api.client.get("/metrics", headers={"Authorization": given} if given else {})
    assert response.status_code == status
    assert (response.headers.get("WWW-Authenticate") == "Bearer") == (status == 401)


async def test_it_is_only_read(api: Api):
    assert (await api.client.post("/metrics")).status_code == 405


# What it says


async def test_openmetrics_where_the_scraper_asks_for_it(api: Api):
    response = await api.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(response.content.decode())} >= {"millm_engine_state"}


def test_the_engine_s_numbers():
    assert value("millm_num_requests_running", model="tiny") == 2
    assert value("millm_num_requests_waiting", model="tiny") == 3
    assert value("millm_kv_cache_usage_ratio", model="tiny") == 0.25
    assert value("millm_prefix_cache_queries_total", model="tiny") == 100
    assert value("millm_prefix_cache_hits_total", model="tiny") == 40
    assert value("millm_num_preemptions_total", model="tiny") == 1
    assert value("millm_spec_decode_num_drafts_total", model="tiny") == 5
    assert value("millm_spec_decode_num_draft_tokens_total", model="tiny") == 20
    assert value("millm_spec_decode_num_accepted_tokens_total", model="tiny") == 12
    assert value("millm_steering_rows", model="tiny") == 4
    assert value("millm_engine_step_faults_total", model="tiny", code="out_of_memory") == 2
    assert value("millm_engine_restarts_total") == 1
    states = {s.labels["state"]: s.value for s in families()["millm_engine_state"].samples}
    assert states == {"starting": 0, "idle": 0, "running": 1, "draining": 0, "stopped": 0, "failed": 0}


def test_each_engine_process_has_its_numbers():
    assert [value("millm_replica_up", replica=number) for number in ("0", "3")] == [1, 0]
    assert [value("millm_replica_running", replica=number) for number in ("0", "3")] == [2, 0]
    assert value("millm_replica_waiting", replica="0") == 3
    assert [value("millm_replica_models", replica=number) for number in ("0", "3")] == [1, 0]


def test_distributions_are_cumulated():
    buckets = {
        s.labels["le"]: s.value for s in families()["millm_engine_step_seconds"].samples if s.name.endswith("_bucket")
    }
    assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}
    assert value("millm_engine_step_seconds_count", model="tiny") == 4
    assert value("millm_engine_step_seconds_sum", model="tiny") == pytest.approx(7.65)


def test_a_process_without_an_engine_says_so(engine: Engine):
    engine.failure = EngineDownError("none")
    assert value("millm_engine_up") == 0
    assert value("millm_engine_state", state="stopped") == 1


async def test_requests_are_counted_by_endpoint_model_and_status(api: Api):
    labels = {"endpoint": "/v1/chat/completions", "model": "tiny", "status": "200"}
    before = value("millm_requests_total", **labels)
    assert (await api.chat()).status_code == 200
    await events_of(await api.chat(stream=True))
    assert value("millm_requests_total", **labels) == before + 2
    assert value("millm_request_duration_seconds_count", endpoint="/v1/chat/completions") >= 2


async def test_names_that_clients_make_up_are_no_labels(api: Api):
    before = value("millm_requests_total", endpoint="/v1/chat/completions", model="", status="404")
    for number in range(3):
        assert (await api.chat(model=f"made-up-{number}")).status_code == 404
        assert (await api.client.get(f"/v1/made-up-{number}")).status_code == 404
    assert value("millm_requests_total", endpoint="/v1/chat/completions", model="", status="404") == before + 3
    assert b"made-up" not in generate_latest(REGISTRY)


async def test_an_alias_is_counted_as_its_model(api: Api):
    before = value("millm_requests_total", endpoint="/v1/chat/completions", model="tiny", status="200")
    assert (await api.chat(model="small")).status_code == 200
    assert value("millm_requests_total", endpoint="/v1/chat/completions", model="tiny", status="200") == before + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_counted_by_code(api: Api, stream: bool):
    labels = {"endpoint": "/v1/chat/completions", "code": "steering_unstable"}
    before = value("millm_request_errors_total", **labels)
    api.engine.script = failing("steering_unstable", after="xy")
    response = await api.chat(stream=stream)
    if stream:
        await events_of(response)
    assert value("millm_request_errors_total", **labels) == before + 1


def test_the_log_s_backlog_and_losses(settings: Any):
    class Full:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("the writer is not started")

    writer = LogWriter(Full(), max_entries=2)
    runtime.install(LOG_WRITER, writer)
    try:
        from django.utils import timezone

        for number in range(5):
            writer.write(LogEntry(f"r{number}", timezone.now(), "/v1/models", None))
        assert value("millm_request_log_waiting_entries") == 2
        assert value("millm_request_log_dropped_entries_total") == 3
    finally:
        runtime.remove(LOG_WRITER)


# How it is said: promtool's rules, and the documentation


async def filled(api: Api) -> dict[str, Metric]:
    """All of our families, each with a sample."""
    await api.chat()
    api.engine.script = failing("server_error")
    await api.chat()
    from inference.client import FailedEvent, FinishedEvent, Timings, TokensEvent, Usage
    from inference.event_stream import StreamMeter

    meter = StreamMeter("tiny")
    for event in (
        TokensEvent(0, (5,), "a"),
        TokensEvent(0, (5,), "a"),
        FinishedEvent(0, "stop", Usage(3, 0, 2), Timings(0.1, 0.2, 0.3)),
        FailedEvent(1, "server_error", "No.", Usage(), Timings()),
    ):
        meter.note(event, 0.0)
    for counter in (metrics.STEPS, metrics.BUSY, metrics.AUDIO):
        counter.labels("tiny").inc()
    job_metrics.note_queued({"bulk": 1})
    job_metrics.RUNNING.labels("bulk").set(0)
    job_metrics.WAITS.labels("bulk").observe(1.0)
    job_metrics.note_end("bulk", "succeeded")
    return {name: family for name, family in families().items() if name.startswith(OURS)}


async def test_names_and_help_follow_the_convention(api: Api):
    for name, family in (await filled(api)).items():
        assert re.fullmatch(r"millm_[a-z][a-z0-9_]*", name), name
        assert family.documentation.strip(), f"{name} has no help"
        assert family.type in {"counter", "gauge", "histogram"}, name
        assert not re.search(r"_(milliseconds|ms|minutes|kilobytes|percent|perc)(_|$)", name), f"{name}: base units"
        assert not name.endswith(("_count", "_sum", "_bucket", "_total")), f"{name}: reserved"
        assert (family.type == "counter") == any(s.name.endswith("_total") for s in family.samples), name
        for sample in family.samples:
            assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in sample.labels), name
            assert ("le" in sample.labels) == (family.type == "histogram" and sample.name.endswith("_bucket"))


async def test_the_page_lists_exactly_what_there_is(api: Api):
    found = {
        (exposed(name, family), family.type, labels_of(family), family.documentation)
        for name, family in (await filled(api)).items()
    }
    assert set(ROW.findall(DOCS.read_text())) == found


def exposed(name: str, family: Metric) -> str:
    return f"{name}_total" if family.type == "counter" else name


def labels_of(family: Metric) -> str:
    labels = {label for sample in family.samples for label in sample.labels} - {"le"}
    return ", ".join(f"`{label}`" for label in sorted(labels))


def test_the_process_is_described_too():
    assert {"process_resident_memory_bytes", "python_info"} <= families().keys()
