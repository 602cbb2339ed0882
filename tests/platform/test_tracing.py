"""Traces of a serving process: sent to the collector before it stops; and a start without the extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from openai import OpenAI

from tests import live
from tests.openai_api.request_log.test_tracing import collecting

pytestmark = [pytest.mark.live, pytest.mark.slow]
WAIT_S = 60
SERVE = [sys.executable, "manage.py", "serve"]


def test_a_server_sends_its_traces_before_it_stops(database_url: str, tmp_path: Path):
    environment = {"MILLM_DATABASE_URL": database_url, "MILLM_HOME": str(tmp_path), "MILLM_AUTH": "loopback"}
    with collecting() as collector:
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "stories"}
        with live.serving(environment={**environment, **traced, "OTEL_BSP_SCHEDULE_DELAY": "600000"}) as server:
            client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
            messages = [{"role": "user", "content": "Tell me a story."}]
            client.chat.completions.create(
                model="demo",
                messages=messages,  # type: ignore[arg-type]  # a plain dict
                max_tokens=8,
                extra_body={"profile": "gloomy"},
            )
            assert collector.spans == []
            assert server.stop() == 0, server.output
        root = collector.named("chat demo")
    assert root.resource["service.name"] == "stories"
    assert root.attributes["gen_ai.usage.output_tokens"] == 8
    assert (root.attributes["millm.profile"], root.attributes["millm.profile.version"]) == ("gloomy", 1)
    assert {span.name for span in collector.spans if span.parent == root.id} == {"queue", "prefill", "decode"}
    took = {span.name: span.end - span.start for span in collector.spans}
    assert took["queue"] + took["prefill"] + took["decode"] <= took["chat demo"]
    assert took["decode"] > 0


def test_without_the_extra_a_server_with_an_endpoint_does_not_start(database_url: str, tmp_path: Path):
    (tmp_path / "opentelemetry.py").write_text("")  # instead of the package
    environment = {
        "MILLM_DATABASE_URL": database_url,
        "MILLM_HOME": str(tmp_path / "home"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "PYTHONPATH": str(tmp_path),
    }
    with live.running(SERVE, environment) as server:
        server.wait_for(r"OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed .* Install the extra")
        assert server.process.wait() == 1
        assert "Traceback" not in server.output
