"""Two hundred clients that leave at moments of their own, while synchronous views and middleware run."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from tests.platform.wire import get, head

pytestmark = pytest.mark.live
CLIENTS = 200
STORY = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 30}
BODY = json.dumps({**STORY, "stream": True}).encode()
REQUESTS = [
    head("GET", "/admin/login/", "Connection: close"),  # a synchronous page behind all of the middleware
    head("GET", "/v1/models"),
    head("POST", "/v1/chat/completions", "Content-Type: application/json", f"Content-Length: {len(BODY)}") + BODY,
]


async def test_the_server_answers_all_the_time_and_forgets_them(live_site) -> None:
    draw, gone = random.Random(12), asyncio.Event()  # noqa: S311 - the same moments in each run
    leaving = [leave(live_site.url, draw.choice(REQUESTS), draw.random(), draw.random()) for _ in range(CLIENTS)]
    asking = asyncio.create_task(ask_until(live_site.url, gone))
    await asyncio.gather(*leaving)
    gone.set()
    assert await asking > 0
    await asyncio.to_thread(wait_until_idle, live_site.url)
    assert (await asyncio.to_thread(get, live_site.url, "/admin/login/")).status == 200


async def leave(url: str, request: bytes, before_s: float, after_s: float) -> None:
    """Some are gone before their request has come as a whole, some in the middle of the answer."""
    place = urlsplit(url)
    await asyncio.sleep(before_s)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(request[: len(request) - int(before_s < 0.2)])
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(after_s):
            await reader.read(1_000)
    writer.transport.abort()


async def ask_until(url: str, gone: asyncio.Event) -> int:
    """How often the server said that it lives; each answer has the time that a stalled event loop would not keep."""
    count = 0
    while not gone.is_set():
        async with asyncio.timeout(20):
            answer = await asyncio.to_thread(get, url, "/health/live")
        assert answer.status == 200
        count += 1
    return count


def wait_until_idle(url: str) -> None:
    deadline = time.monotonic() + 60
    while (load := json.loads(get(url, "/health").body)["load"])["running"] or load["waiting"]:
        assert time.monotonic() < deadline, f"still busy: {load}"
        time.sleep(0.05)
