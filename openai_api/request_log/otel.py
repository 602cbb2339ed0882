"""Spans of requests, by the semantic conventions of OpenTelemetry for generative AI and for HTTP.

A span is started with its request and ended with its log entry. The times of the queue, the prefill and the decoding
are those that the log has, so the engine does nothing for them. Spans are queued and sent by a thread of the SDK; those
that do not fit into the queue are dropped. The conventions for generative AI are not stable yet: their names are here
only.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.conf import settings
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from openai_api import VERSION
from openai_api.request_log.entry import LogEntry, stricter

logger = logging.getLogger(__name__)
Attributes = dict[str, AttributeValue]

PROVIDER = "millm"
PROPAGATED = ("traceparent", "tracestate")
OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/responses (background)": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/vector_stores/{id}/search": "retrieval",
    "/ollama/api/chat": "chat",
    "/ollama/api/generate": "text_completion",
    "/ollama/api/embed": "embeddings",
    "/ollama/api/embeddings": "embeddings",
}
PARAMETERS: Mapping[str, tuple[str, ...]] = {  # of the request, under the names that the dialects give them
    "gen_ai.request.max_tokens": ("max_completion_tokens", "max_output_tokens", "max_tokens"),
    "gen_ai.request.temperature": ("temperature",),
    "gen_ai.request.top_p": ("top_p",),
    "gen_ai.request.top_k": ("top_k",),
    "gen_ai.request.seed": ("seed",),
    "gen_ai.request.frequency_penalty": ("frequency_penalty",),
    "gen_ai.request.presence_penalty": ("presence_penalty",),
    "gen_ai.request.choice.count": ("n",),
}
CLIENT_LEFT = frozenset({"client_disconnected", "response_cancelled", "response_interrupted"})  # no faults
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
CAPTURING = frozenset({"true", "span_only", "span_and_event"})
MAX_CONTENT = 128 * 1024  # characters of a text; the queue may hold thousands of spans
_PROPAGATOR = TraceContextTextMapPropagator()


class OpenTelemetry:
    """Spans for the collector of ``OTEL_EXPORTER_OTLP_ENDPOINT``. The SDK reads OpenTelemetry's other variables."""

    def __init__(self) -> None:
        resource = Resource.create({SERVICE_VERSION: VERSION})
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: PROVIDER}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(PROVIDER, VERSION)
        self._captures_content = os.environ.get(CAPTURE, "").strip().lower() in CAPTURING

    def start(self, headers: Mapping[str, str], started_at: datetime) -> OtelSpan:
        carrier = {name: headers[name] for name in PROPAGATED if name in headers}
        parent = _PROPAGATOR.extract(carrier)
        started_ns = int(started_at.timestamp() * 1e9)
        span = self._tracer.start_span("request", parent, SpanKind.SERVER, start_time=started_ns)
        return OtelSpan(self._tracer, span, started_ns, captures_content=self._captures_content)

    def flush(self, timeout_s: float) -> bool:
        """Send what is queued. Return whether that was possible in time."""
        return self._provider.force_flush(round(timeout_s * 1_000))

    def stop(self, timeout_s: float) -> None:
        """Send what is queued in another thread, which a collector that does not answer may hold."""
        thread = threading.Thread(target=self._provider.shutdown, name="otel-shutdown", daemon=True)
        thread.start()
        thread.join(timeout_s)


class OtelSpan:
    """The span of one request."""

    def __init__(self, tracer: Tracer, span: Span, started_ns: int, *, captures_content: bool) -> None:
        self._tracer = tracer
        self._span = span
        self._started_ns = started_ns
        self._captures_content = captures_content

    def context(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._span))
        return carrier

    def end(self, entry: LogEntry, *, method: str, submitted_ms: float | None) -> None:
        try:
            self._end(entry, method, submitted_ms)
        except Exception:  # a request must never fail because of its trace
            logger.exception("The span of the request %s could not be made.", entry.id)

    def _end(self, entry: LogEntry, method: str, submitted_ms: float | None) -> None:
        total_ms = entry.total_ms or 0.0
        if self._span.is_recording():
            self._span.update_name(span_name(entry, method))
            self._span.set_attributes(span_attributes(entry, method))
            if self._captures_content and stricter(settings.MILLM_LOG_CONTENT, entry.log_content) == "full":
                self._span.set_attributes(content_attributes(entry))
            if is_fault(entry):
                self._span.set_status(Status(StatusCode.ERROR))
            if submitted_ms is not None:
                self._add_phases(entry, submitted_ms, total_ms)
        self._span.end(self._at(total_ms))

    def _add_phases(self, entry: LogEntry, submitted_ms: float, total_ms: float) -> None:
        """Add the spans of the queue, the prefill and the decoding, as far as the request got."""
        parent = set_span_in_context(self._span)
        for name, start_ms, end_ms, attributes in phases(entry, submitted_ms, total_ms):
            span = self._tracer.start_span(name, parent, attributes=attributes, start_time=self._at(start_ms))
            span.end(self._at(end_ms))

    def _at(self, ms: float) -> int:
        return self._started_ns + int(ms * 1e6)


def phases(entry: LogEntry, submitted_ms: float, total_ms: float) -> Iterator[tuple[str, float, float, Attributes]]:
    """Yield the name, start, end and attributes of each phase. Differences of clocks never make a negative time."""
    at = min(submitted_ms, total_ms)
    waited = entry.queue_ms
    if waited is not None or entry.ttft_ms is None:
        end = total_ms if waited is None else min(submitted_ms + waited, total_ms)
        yield "queue", at, max(at, end), {}
        at = max(at, end)
    if entry.ttft_ms is not None:
        end = max(at, min(submitted_ms + entry.ttft_ms, total_ms))
        usage: Attributes = {
            "gen_ai.usage.input_tokens": entry.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": entry.cached_tokens,
        }
        yield "prefill", at, end, usage
        yield "decode", end, total_ms, {"gen_ai.usage.output_tokens": entry.completion_tokens}
    elif waited is not None:
        yield "prefill", at, total_ms, {"gen_ai.usage.input_tokens": entry.prompt_tokens}


def span_name(entry: LogEntry, method: str) -> str:
    operation = OPERATIONS.get(entry.endpoint)
    if operation is None:
        return f"{method} {entry.endpoint}"
    return f"{operation} {entry.model}".rstrip()


def span_attributes(entry: LogEntry, method: str) -> Attributes:
    """Return what the log says of a request, without its texts."""
    values: Attributes = {
        "http.request.method": method,
        "http.route": entry.endpoint,
        "http.response.status_code": entry.status,
        "millm.request_id": entry.id,
        "millm.source": entry.source,
    }
    if entry.error_code:
        values["error.type"] = entry.error_code
    values |= _steering(entry)
    operation = OPERATIONS.get(entry.endpoint)
    return values if operation is None else values | _generation(entry, operation)


def _steering(entry: LogEntry) -> Attributes:
    name, _, number = entry.profile.partition("@")
    values: Attributes = {}
    if name:
        values["millm.profile"] = name
    if number.isdecimal():
        values["millm.profile.version"] = int(number)
    if entry.fingerprint:
        values["millm.steering"] = entry.fingerprint
    if entry.policies:
        values["millm.policies"] = entry.policies.split(", ")
    return values


def _generation(entry: LogEntry, operation: str) -> Attributes:
    values: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.stream": entry.stream,
        "gen_ai.usage.input_tokens": entry.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": entry.cached_tokens,
    }
    if operation != "embeddings":
        values["gen_ai.usage.output_tokens"] = entry.completion_tokens
    if entry.model:
        values["gen_ai.request.model"] = entry.model
    if entry.finish_reason:
        values["gen_ai.response.finish_reasons"] = entry.finish_reason.split(",")
    if entry.stream and entry.ttft_ms is not None:
        values["gen_ai.response.time_to_first_chunk"] = entry.ttft_ms / 1_000
    for attribute, names in PARAMETERS.items():
        value = next((entry.parameters[name] for name in names if entry.parameters.get(name) is not None), None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            values[attribute] = value
    return values


def is_fault(entry: LogEntry) -> bool:
    """Return whether the server failed: not where the client was wrong or left, as the conventions for HTTP say."""
    if entry.status >= 500:
        return True
    return bool(entry.error_code) and entry.status < 400 and entry.error_code not in CLIENT_LEFT


def content_attributes(entry: LogEntry) -> Attributes:
    """Return the texts of the request and of its answer."""
    answer: dict[str, Any] = {"role": "assistant", "parts": [_text(entry.completion)]}
    if entry.finish_reason:
        answer["finish_reason"] = entry.finish_reason.partition(",")[0]
    return {
        "gen_ai.input.messages": json.dumps(_messages(entry.prompt), ensure_ascii=False),
        "gen_ai.output.messages": json.dumps([answer], ensure_ascii=False),
    }


def _messages(prompt: object) -> list[dict[str, Any]]:
    """Return a chat's messages, or the prompt as one message of the user."""
    given = prompt.get("messages") if isinstance(prompt, dict) else prompt
    if isinstance(given, list) and all(isinstance(each, dict) and "role" in each for each in given):
        return [{"role": str(each["role"]), "parts": [_text(each.get("content"))]} for each in given]
    return [{"role": "user", "parts": [_text(prompt)]}]


def _text(content: object) -> dict[str, str]:
    text = ""
    with suppress(TypeError, ValueError):
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return {"type": "text", "content": text[:MAX_CONTENT]}
