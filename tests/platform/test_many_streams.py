"""Hundreds of streams at once: each ends exactly once, each has its row in the log, and none holds a thread."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import psutil
import psycopg
import pytest

from tests import live
from tests.conftest import site_environment

pytestmark = pytest.mark.live
STREAMS = 500
MORE_THREADS = 24  # pools that fill up under load; far fewer than streams
BODY = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 12,
    "stream": True,
    "ignore_eos": True,
}
ROWS = """
    SELECT "user", count(*), min(status), max(status) FROM openai_api_requestlog
    WHERE starts_with("user", 'stream-') GROUP BY 1
"""


async def test_five_hundred_streams_end_once_and_are_logged_once_without_a_thread_each(
    tmp_path: Path, database_url: str
) -> None:
    environment = {
        **site_environment(database_url, tmp_path),
        "MILLM_MAX_WAITING_REQUESTS": "1000",
        "MILLM_MAX_CONCURRENT_REQUESTS": "1000",
    }
    with live.serving("--setup", environment=environment) as server:
        process = psutil.Process(server.pid)
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=f"{server.url}/v1", timeout=live.PATIENCE_S, limits=limits) as http:
            await asyncio.gather(*(ask(http, f"warm-{n}") for n in range(4)))
            before = process.num_threads()
            answers = [asyncio.create_task(ask(http, f"stream-{n}")) for n in range(STREAMS)]
            threads = before
            while not all(answer.done() for answer in answers):
                threads = max(threads, process.num_threads())
                await asyncio.sleep(0.1)
        ends = Counter(await asyncio.gather(*answers))
        assert server.stop() == 0, server.output
    assert ends == {"length, [DONE]": STREAMS}
    assert threads <= before + MORE_THREADS
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(ROWS).fetchall()
    assert sorted(rows) == sorted((f"stream-{n}", 1, 200, 200) for n in range(STREAMS))


async def ask(http: httpx2.AsyncClient, user: str) -> str:
    """The reasons for which the stream ended, and what came last."""
    response = await http.post("/chat/completions", json={**BODY, "user": user})
    events = re.findall(r"^data: (.*)$", response.text, re.MULTILINE)
    chunks: list[Any] = [json.loads(event) for event in events if event.startswith("{")]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk.get("choices", ())]
    return ", ".join([*filter(None, reasons), *(event for event in events if not event.startswith("{"))])
