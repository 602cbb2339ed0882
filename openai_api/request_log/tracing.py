"""Traces of requests for an OpenTelemetry collector, if one is configured; `otel` makes the spans.

Nothing of opentelemetry is imported unless ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from core.runtime import Service, runtime
from openai_api.request_log.entry import LogEntry

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"


class RequestSpan(Protocol):
    """The span of a request that has begun."""

    def context(self) -> dict[str, str]:
        """Return the headers with which other work continues the trace."""

    def end(self, entry: LogEntry, *, method: str, submitted_ms: float | None) -> None:
        """End the span with what the log says of the request. Never raises.

        ``submitted_ms``: from the request's start until the engine got it; None if it did not.
        """


class Tracing(Protocol):
    """Makes spans. Starting and ending one never waits for the collector."""

    def start(self, headers: Mapping[str, str], started_at: datetime) -> RequestSpan:
        """Start the span of a request, as a part of the trace that its headers name."""

    def stop(self, timeout_s: float) -> None:
        """Send what is left, for at most ``timeout_s``."""


def _no_tracing() -> Tracing:
    raise RuntimeError("Tracing was not started.")


TRACING: Service[Tracing] = Service(_no_tracing)


def start_tracing() -> None:
    """Start tracing if a collector is configured. Idempotent. Raise SystemExit if it cannot be used."""
    endpoint = _first_of(ENDPOINTS)
    is_off = (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    )
    if not endpoint or is_off or runtime.find(TRACING) is not None:
        return
    if not endpoint.startswith(("http://", "https://")):
        raise SystemExit(f"The endpoint of OpenTelemetry must start with http:// or https://, got `{endpoint}`.")
    protocol = _first_of(PROTOCOLS)
    if protocol not in {"", PROTOCOL}:
        raise SystemExit(f"{PROTOCOLS[1]} must be `{PROTOCOL}`, the only supported protocol, got `{protocol}`.")
    try:
        from openai_api.request_log.otel import OpenTelemetry
    except ImportError as error:
        raise SystemExit(
            f"{ENDPOINTS[1]} is set, but OpenTelemetry is not installed ({error}). Install the extra `otel`: "
            "`pip install '.[otel]' -c constraints.txt`. Or unset the variable."
        ) from None
    runtime.install(TRACING, OpenTelemetry())


def stop_tracing(timeout_s: float = 3.0) -> None:
    """Send what is left, and end tracing; called at the server's shutdown."""
    tracing = runtime.remove(TRACING)
    if tracing is not None:
        tracing.stop(timeout_s)


def start_span(headers: Mapping[str, str], started_at: datetime) -> RequestSpan | None:
    """Start the span of a request; None without tracing."""
    tracing = runtime.find(TRACING)
    return None if tracing is None else tracing.start(headers, started_at)


def _first_of(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name, "").strip())), "")
