"""Batches through the official client: from file to file, beside others, and over a kill."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types import Batch
from openai.types.chat import ChatCompletion

from tests import live
from tests.conftest import site_environment

ENDED = {"completed", "failed", "expired", "cancelled"}
WAIT_S = 240
COUNT = 240  # of requests: they must not all end before the first ones are counted


def lines(count: int, **fields: object) -> bytes:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 12, **fields}
    requests = (
        {"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": {**body, "seed": n}}
        for n in range(count)
    )
    return b"\n".join(json.dumps(request).encode() for request in requests)


def begin(client: OpenAI, data: bytes) -> Batch:
    file = client.files.create(file=("requests.jsonl", data), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")


def until(client: OpenAI, batch: Batch, *, num_done: int | None = None) -> Batch:
    deadline = time.monotonic() + WAIT_S
    while True:
        batch = client.batches.retrieve(batch.id)
        Batch.model_validate(batch.to_dict(), strict=True)
        counts = batch.request_counts
        if batch.status in ENDED or (num_done is not None and counts is not None and counts.completed >= num_done):
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)


def test_a_batch_gives_what_the_same_requests_give(client: OpenAI):
    batch = until(client, begin(client, lines(5, profile="gloomy", temperature=0)))
    assert batch.status == "completed"
    assert batch.output_file_id is not None
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"r{n}" for n in range(5)]
    for answer in answers:
        ChatCompletion.model_validate(answer["response"]["body"], strict=True)
        assert answer["response"]["body"]["millm"]["profile"] == "gloomy@1"
    assert batch.id in [each.id for each in client.batches.list(limit=2)]


def test_the_examples_of_the_page_run(client: OpenAI, capsys: pytest.CaptureFixture[str]):
    page = (live.PROJECT_DIR / "docs" / "openai-compatibility.md").read_text()
    section = page.split("\n## Batches\n")[1].split("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    exec(compile(example, "docs/openai-compatibility.md", "exec"), {"client": client})  # noqa: S102
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["story-0", "story-1", "story-2"]


def test_a_batch_survives_the_death_of_its_process(database_url: str, tmp_path: Path):
    environment = {**site_environment(database_url, tmp_path), "MILLM_JOB_STALL_SECONDS": "2"}
    with live.serving("--setup", environment=environment) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        batch = until(client, begin(client, lines(COUNT, max_tokens=60, ignore_eos=True)), num_done=1)
        assert batch.status == "in_progress", batch
        server.stop(signal.SIGKILL)
    with live.serving(environment=environment) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        batch = until(client, batch)
        assert batch.status == "completed", batch
        assert batch.output_file_id is not None
        answers = client.files.content(batch.output_file_id).text.splitlines()
        assert [json.loads(line)["custom_id"] for line in answers] == [f"r{n}" for n in range(COUNT)]
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.total) == (COUNT, COUNT)
        assert batch.usage is not None
        assert batch.usage.output_tokens == sum(
            json.loads(line)["response"]["body"]["usage"]["completion_tokens"] for line in answers
        )
        assert server.stop() == 0, server.output
