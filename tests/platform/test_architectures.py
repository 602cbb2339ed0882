"""Exit criterion 1 of document 003 over HTTP: completions stream from a model of each reference architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import live
from tests.builders import ARCHITECTURES, build_model
from tests.conftest import site_environment
from tests.platform.wire import connected, head, read_all

pytestmark = pytest.mark.live


def test_completions_stream_from_all_reference_architectures(tmp_path: Path, migrated_database_url: str) -> None:
    environment = site_environment(migrated_database_url, tmp_path / "home")
    live.manage_all(
        [("add_model", name, str(build_model(tmp_path / name, name))) for name in ARCHITECTURES],
        environment=environment,
    )
    with live.serving(environment=environment) as server:
        for name in ARCHITECTURES:
            for prompt in ("Once upon a time", [5, 6, 7]):
                chunks = streamed(server.url, name, prompt)
                texts = [choice for chunk in chunks for choice in chunk["choices"] if not choice["finish_reason"]]
                assert texts, "at least one event with text"
                ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
                assert [end for end in ends if end] == ["length"]
                usage = chunks[-1]["usage"]
                assert usage["completion_tokens"] == 12
                assert usage["prompt_tokens"] == (3 if isinstance(prompt, list) else usage["total_tokens"] - 12)
        assert server.stop() == 0


def streamed(url: str, model: str, prompt: object) -> list[dict[str, Any]]:
    """The events of a completion before its end mark."""
    options = {"max_tokens": 12, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps({"model": model, "prompt": prompt, **options}).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(data)}", "Connection: close")
    with connected(url, timeout_s=live.PATIENCE_S) as connection:
        connection.sendall(head("POST", "/v1/completions", *lines) + data)
        received = read_all(connection).decode()
    events = [line.removeprefix("data: ") for line in received.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", received
    return [json.loads(event) for event in events[:-1]]
