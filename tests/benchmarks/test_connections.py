"""What the check of many connections finds wrong, and the check itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from benchmarks.connections import check, problem_of
from benchmarks.idle_connection import IdleConnection

DONE = 'data: {"choices": []}\n\ndata: [DONE]\n\n'
FULL = {"error": {"message": "", "type": "server_error", "param": None, "code": "server_is_overloaded"}}


def response(status: int, body: object, **headers: str) -> httpx2.Response:
    content = body if isinstance(body, str) else json.dumps(body)
    return httpx2.Response(status, text=content, headers=headers)


@pytest.mark.parametrize(
    ("answer", "streams", "problem"),
    [
        (response(200, DONE), True, ""),
        (response(200, {"choices": []}), False, ""),
        (response(503, FULL, **{"retry-after": "1"}), True, ""),
        (response(200, DONE[:-5]), True, "Incomplete answer"),
        (response(200, 'data: {"error": {}}\n\n' + DONE), True, "Incomplete answer"),
        (response(503, FULL), True, "503 without Retry-After"),
        (response(429, FULL, **{"retry-after": "1"}), True, "429 server_is_overloaded"),
        (response(500, {"error": {"code": None}}), False, "500 None"),
        (response(502, "Bad gateway"), False, "502 without an OpenAI error body"),
    ],
)
def test_only_documented_refusals_are_right(answer: httpx2.Response, streams: bool, problem: str) -> None:
    assert problem_of(answer, streams=streams).startswith(problem)
    assert bool(problem_of(answer, streams=streams)) == bool(problem)


async def test_a_connection_that_was_closed_meanwhile_is_found() -> None:
    async def serve_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve_once, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await IdleConnection.open(f"http://127.0.0.1:{port}")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await connection.ask()
        connection.close()


@pytest.mark.live
@pytest.mark.usefixtures("demo_database")
def test_five_hundred_idle_connections_and_as_many_requests_at_once(tmp_path: Path) -> None:
    found = check(tmp_path / "home", num_requests=500, rounds=1, results=tmp_path)
    assert found.problems == []
    assert found.statuses.keys() <= {200, 429, 503}
    assert found.statuses.total() == 500
    assert found.statuses[200] >= 16
    (saved,) = tmp_path.glob("*.json")
    assert json.loads(saved.read_text())["values"]["idle_connections"] == 500
