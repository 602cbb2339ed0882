"""Traces as a collector of OpenTelemetry gets them: the spans of each kind of request, and what is not in them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from core.runtime import runtime
from millm_site.env import PROJECT_DIR
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.tracing import TRACING, start_tracing, stop_tracing
from tests.http_server import QuietHandler, serving_http
from tests.openai_api.conftest import Api, chunks_of
from tests.openai_api.fakes import ANSWER, failing, tokens_of
from tests.openai_api.responses.conftest import stored  # noqa: F401 - a fixture
from tests.openai_api.responses.test_background import order, work

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="The extra `otel` is not installed."
)

otel = pytest.importorskip("openai_api.request_log.otel", reason="The extra `otel` is not installed.")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
PROMPT = "a secret prompt"


@dataclass
class Collected:
    """A span, with what tests compare."""

    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    kind: int
    is_error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """A stub of an OTLP collector on loopback; with ``gate`` it answers only when that is set."""

    url: str
    spans: list[Collected] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    gate: threading.Event | None = None

    def add(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        self.bodies.append(body)
        request = trace_service.ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            resource = values_of(group.resource.attributes)
            self.spans += [collected(span, resource) for scope in group.scope_spans for span in scope.spans]

    def named(self, name: str) -> Collected:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    @property
    def names(self) -> list[str]:
        return [span.name for span in sorted(self.spans, key=lambda span: (span.start, -span.end))]


def collected(span: Any, resource: dict[str, Any]) -> Collected:
    return Collected(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.kind,
        span.status.code == 2,
        values_of(span.attributes),
        resource,
    )


def values_of(attributes: Any) -> dict[str, Any]:
    return {each.key: value_of(each.value) for each in attributes}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [value_of(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.read_body()
            if found.gate is not None:
                found.gate.wait()
            found.add(self.path, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving_http(Handler) as url:
        found = Collector(url)
        try:
            yield found
        finally:
            if found.gate is not None:
                found.gate.set()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME", otel.CAPTURE, "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    yield
    stop_tracing(30)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found
        stop_tracing(10)


@pytest.fixture
def traced(collector: Collector, api: Api) -> Api:
    start_tracing()
    return api


def flush() -> None:
    assert runtime.get(TRACING).flush(30)  # type: ignore[attr-defined]  # of the SDK


async def test_a_chat(traced: Api, collector: Collector):
    response = await traced.chat(TRACEPARENT, profile="gloomy", max_tokens=9, temperature=0.5, seed=3)
    assert response.status_code == 200
    flush()
    assert set(collector.paths) == {"/v1/traces"}
    assert collector.names == ["chat tiny", "queue", "prefill", "decode"]
    root = collector.named("chat tiny")
    assert (root.trace, root.parent, root.kind, root.is_error) == (TRACE, PARENT, 2, False)
    entry = traced.log.only
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "millm",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stream": False,
        "gen_ai.response.finish_reasons": [entry.finish_reason],
        "gen_ai.usage.input_tokens": entry.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": entry.cached_tokens,
        "gen_ai.usage.output_tokens": len(ANSWER),
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "millm.profile": "gloomy",
        "millm.profile.version": 2,
        "millm.request_id": response.headers["x-request-id"],
        "millm.source": "client",
    }
    assert expected.items() <= root.attributes.items()
    assert root.resource["service.name"] == "millm"
    assert abs((root.end - root.start) / 1e6 - (entry.total_ms or 0)) < 1e-3
    at = root.start
    for name in ("queue", "prefill", "decode"):
        span = collector.named(name)
        assert (span.trace, span.parent) == (TRACE, root.id)
        assert at <= span.start <= span.end <= root.end
        at = span.end
    assert at == root.end


async def test_a_stream(traced: Api, collector: Collector):
    chunks = await chunks_of(await traced.chat(TRACEPARENT, stream=True))
    assert chunks[-1] == "[DONE]"
    flush()
    root = collector.named("chat tiny")
    assert root.attributes["gen_ai.request.stream"] is True
    assert root.attributes["gen_ai.response.time_to_first_chunk"] >= 0
    assert root.attributes["gen_ai.usage.output_tokens"] == len(ANSWER)
    assert collector.names == ["chat tiny", "queue", "prefill", "decode"]


async def test_a_cancelled_stream(traced: Api, collector: Collector):
    """The client leaves after the first tokens: one span, without a fault of the server."""
    traced.engine.script = lambda request: tokens_of(request, "He")  # and never ends
    response = await traced.chat(stream=True)
    stream = response.streaming_content
    await anext(stream)
    await anext(stream)
    response.close()
    while not traced.log.entries:  # noqa: ASYNC110 - closed in a thread
        await asyncio.sleep(0.01)
    flush()
    root = collector.named("chat tiny")
    assert root.attributes["error.type"] == "client_disconnected"
    assert root.is_error is False
    assert collector.names[0] == "chat tiny"
    assert collector.names[-1] == "decode"


@pytest.mark.parametrize(
    ("change", "status", "code", "is_error", "name"),
    [
        ({"model": "nobody"}, 404, "model_not_found", False, "chat nobody"),
        ({"temperature": 9}, 400, "invalid_value", False, "chat tiny"),
    ],
)
async def test_a_refused_request(
    change: Any, status: int, code: str, is_error: bool, name: str, traced: Api, collector: Collector
):
    assert (await traced.chat(TRACEPARENT, **change)).status_code == status
    flush()
    (root,) = collector.spans
    assert (root.name, root.is_error, root.parent) == (name, is_error, PARENT)
    assert (root.attributes["error.type"], root.attributes["http.response.status_code"]) == (code, status)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_fault_of_the_engine(is_stream: bool, traced: Api, collector: Collector):
    traced.engine.script = failing("server_error", after="He")
    response = await traced.chat(stream=is_stream)
    if is_stream:
        await chunks_of(response)
    flush()
    root = collector.named("chat tiny")
    assert root.is_error is True
    assert root.attributes["error.type"] == traced.log.only.error_code != ""


async def test_other_endpoints(traced: Api, collector: Collector):
    await traced.client.get("/v1/models")
    await traced.complete(max_tokens=1)
    flush()
    assert collector.names[0] == "GET /v1/models"
    assert "gen_ai.operation.name" not in collector.named("GET /v1/models").attributes
    assert collector.named("text_completion tiny").attributes["gen_ai.operation.name"] == "text_completion"


@pytest.mark.django_db(transaction=True)
async def test_a_background_response_continues_its_requests_trace(
    collector: Collector,
    stored: Api,  # noqa: F811
):
    start_tracing()
    made = await order(stored)
    await work(stored)
    flush()
    asked, generated = sorted(collector.spans, key=lambda span: span.start)[:2]
    assert (asked.attributes["http.route"], generated.attributes["http.route"]) == (
        "/v1/responses",
        "/v1/responses (background)",
    )
    assert (generated.trace, generated.parent) == (asked.trace, asked.id)
    assert generated.attributes["gen_ai.usage.output_tokens"] == 9
    assert {span.name for span in collector.spans if span.parent == generated.id} == {"queue", "prefill", "decode"}
    assert made["status"] == "queued"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"traceparent": ""},
        {"traceparent": "nonsense"},
        {"traceparent": f"00-{'0' * 32}-{PARENT}-01"},
        {"traceparent": f"ff-{TRACE}-{PARENT}-01"},
        {"traceparent": "00-" + "a" * 10_000},
        {"tracestate": "a=b"},
    ],
)
async def test_requests_without_a_valid_trace_begin_one(headers: Any, traced: Api, collector: Collector):
    assert (await traced.chat(headers)).status_code == 200
    flush()
    root = collector.named("chat tiny")
    assert (root.parent, root.trace == TRACE) == ("", False)


async def test_a_trace_that_its_client_does_not_sample_is_left_out(traced: Api, collector: Collector):
    await traced.chat({"traceparent": f"00-{TRACE}-{PARENT}-00"})
    flush()
    assert collector.spans == []


class TestContent:
    """Texts are in spans only if the variable asks for them and the log may keep them."""

    async def chat(self, api: Api, headers: Any = None) -> None:
        body = {"messages": [{"role": "user", "content": PROMPT}], "stop": [PROMPT], "user": PROMPT}
        assert (await api.chat(headers, **body)).status_code == 200
        flush()

    async def test_not_by_default(self, traced: Api, collector: Collector):
        await self.chat(traced)
        assert collector.spans
        sent = b"".join(collector.bodies)
        assert PROMPT.encode() not in sent
        assert ANSWER.encode() not in sent

    @pytest.mark.parametrize("value", ["false", "no_content", "event_only", ""])
    async def test_not_with_other_values(
        self,
        value: str,
        collector: Collector,
        api: Api,
        monkeypatch: pytest.MonkeyPatch,
    ):
        monkeypatch.setenv(otel.CAPTURE, value)
        start_tracing()
        await self.chat(api)
        assert PROMPT.encode() not in b"".join(collector.bodies)

    @pytest.mark.parametrize("value", ["true", "SPAN_ONLY", "span_and_event"])
    async def test_with_the_variable(
        self,
        value: str,
        collector: Collector,
        api: Api,
        monkeypatch: pytest.MonkeyPatch,
    ):
        monkeypatch.setenv(otel.CAPTURE, value)
        start_tracing()
        await self.chat(api)
        found = collector.named("chat tiny").attributes
        assert json.loads(found["gen_ai.input.messages"]) == [
            {"role": "user", "parts": [{"type": "text", "content": PROMPT}]}
        ]
        (answer,) = json.loads(found["gen_ai.output.messages"])
        assert (answer["role"], answer["parts"]) == ("assistant", [{"type": "text", "content": ANSWER}])

    async def test_not_of_keys_whose_texts_are_not_logged(
        self,
        collector: Collector,
        api: Api,
        monkeypatch: pytest.MonkeyPatch,
    ):
        monkeypatch.setenv(otel.CAPTURE, "true")
        start_tracing()
        await self.chat(api, api.keys.add("sk-quiet", log_content="none"))
        assert collector.named("chat tiny")
        assert PROMPT.encode() not in b"".join(collector.bodies)


class TestFaults:
    @pytest.mark.parametrize("is_there", [False, True])
    async def test_a_collector_that_is_down_or_hangs_delays_no_request(
        self,
        is_there: bool,
        collector: Collector,
        api: Api,
        monkeypatch: pytest.MonkeyPatch,
    ):
        collector.gate = threading.Event()  # it takes requests and does not answer
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
        if not is_there:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        start_tracing()
        for _ in range(20):
            assert (await api.chat()).status_code == 200
        assert len(api.log.entries) == 20
        assert collector.spans == []

    async def test_spans_beyond_the_queue_are_dropped(
        self,
        collector: Collector,
        api: Api,
        monkeypatch: pytest.MonkeyPatch,
    ):
        collector.gate = threading.Event()
        for name, value in {"MAX_QUEUE_SIZE": "8", "MAX_EXPORT_BATCH_SIZE": "4", "SCHEDULE_DELAY": "10"}.items():
            monkeypatch.setenv(f"OTEL_BSP_{name}", value)
        start_tracing()
        for _ in range(20):
            assert (await api.chat()).status_code == 200
        collector.gate.set()
        stop_tracing(30)
        assert 0 < len(collector.spans) < 80

    async def test_a_span_that_cannot_be_made_costs_no_request(
        self, traced: Api, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ):
        def fail(entry: LogEntry, method: str) -> Any:
            raise ValueError("no")

        monkeypatch.setattr(otel, "span_attributes", fail)
        assert (await traced.chat()).status_code == 200
        assert len(traced.log.entries) == 1
        assert "could not be made" in caplog.text


class TestSettings:
    def test_off_without_an_endpoint(self):
        start_tracing()
        assert runtime.find(TRACING) is None

    @pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
    def test_off_when_the_standard_variables_say_so(self, name: str, value: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv(name, value)
        start_tracing()
        assert runtime.find(TRACING) is None

    @pytest.mark.parametrize(
        ("variables", "message"),
        [
            ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317"}, "must start with http"),
            ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "the only supported protocol, got `grpc`"),
        ],
    )
    def test_values_that_cannot_work(self, variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit, match=message):
            start_tracing()

    def test_without_the_extra_the_server_does_not_start(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.delitem(sys.modules, "openai_api.request_log.otel")
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
        with pytest.raises(SystemExit, match="Install the extra `otel`"):
            start_tracing()
        assert runtime.find(TRACING) is None

    def test_nothing_of_opentelemetry_is_imported_without_an_endpoint(self):
        code = (
            "import sys, django; django.setup()\n"
            "import millm_site.urls, millm_site.serving\n"
            "from openai_api.apps import start_request_tracing\n"
            "start_request_tracing()\n"
            "print([name for name in sys.modules if name.startswith('opentelemetry')])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=PROJECT_DIR,
            env={**_environment(), "DJANGO_SETTINGS_MODULE": "millm_site.settings"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip().splitlines()[-1] == "[]"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}


async def test_phases_of_requests_that_ended_early(traced: Api, collector: Collector):
    """One that is cancelled in the queue has a queue only; one in its prefill has no decoding."""
    tracing = runtime.get(TRACING)
    for queue_ms, ttft_ms in ((None, None), (2.0, None), (None, 4.0)):
        entry = LogEntry("req_1", datetime.now(UTC), "/v1/completions", None, queue_ms=queue_ms, ttft_ms=ttft_ms)
        entry.total_ms = 10.0
        tracing.start({}, entry.created_at).end(entry, method="POST", submitted_ms=1.0)
    flush()
    phases: dict[str, set[tuple[str, float, float]]] = {}
    roots = {span.id: span for span in collector.spans if not span.parent}
    for span in collector.spans:
        if span.parent:
            start = roots[span.parent].start
            phases.setdefault(span.parent, set()).add(
                (span.name, round((span.start - start) / 1e6, 3), round((span.end - start) / 1e6, 3))
            )
    assert sorted(map(sorted, phases.values())) == [
        [("decode", 5.0, 10.0), ("prefill", 1.0, 5.0)],
        [("prefill", 3.0, 10.0), ("queue", 1.0, 3.0)],
        [("queue", 1.0, 10.0)],
    ]


def test_the_docs_name_all_attributes():
    """docs/tracing.md, against the names in the module."""
    pattern = r"(?:gen_ai|http|error|millm)\.[a-z_.]+[a-z]"
    page = (PROJECT_DIR / "docs" / "tracing.md").read_text()
    source = Path(otel.__file__).read_text()
    assert set(re.findall(f"`({pattern})`", page)) == set(re.findall(f'"({pattern})"', source))
