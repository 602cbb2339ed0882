"""Many concurrent connections: ``python -m benchmarks.connections``.

Hundreds of clients hold an unused connection, as browsers and connection pools do, while others repeatedly send short
requests at the same time. Fails if a response is neither 200 nor a 429 or 503 with Retry-After, if an idle connection
does not serve its next request, or if the server does not exit cleanly. The server is started on the loopback
interface, with the demo and the default limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from benchmarks.idle_connection import IdleConnection
from benchmarks.record import RESULTS, Record
from benchmarks.soak import server_findings
from benchmarks.subject import echo
from tests import live

IDLE = 500
REQUESTS = 200
ROUNDS = 3
ANSWER_S = 180.0
BODY = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8}
REFUSALS = {429: "rate_limit_exceeded", 503: "server_is_overloaded"}


@dataclass(slots=True)
class LoadResult:
    statuses: Counter[int] = field(default_factory=Counter)
    times_s: list[float] = field(default_factory=list)  # of the requests that were served
    problems: list[str] = field(default_factory=list)


def check(
    home: Path, *, num_idle: int = IDLE, num_requests: int = REQUESTS, rounds: int = ROUNDS, results: Path | None = None
) -> LoadResult:
    """Run the check and return its outcome. Print the figures, and save them in ``results`` if it is given."""
    with _server(home) as server:
        found = asyncio.run(_load(server.url, num_idle, num_requests, rounds))
        found.problems += server_findings(server.stop(), server.output)
    values = _values(found, num_idle, num_requests, rounds)
    echo("| figure | value |", "|---|---|", *(f"| {name} | {value:g} |" for name, value in values.items()))
    if results is not None:
        Record("connections", "demo", values=values, notes=tuple(found.problems[:20])).save(results)
    return found


@contextmanager
def _server(home: Path) -> Iterator[live.LiveServer]:
    """Start a server whose idle timeout exceeds the duration of the check, even on a slow machine."""
    environment = {
        "MILLM_HOME": str(home),
        "MILLM_AUTH": "loopback",
        "MILLM_LOG_LEVEL": "WARNING",
        "MILLM_IDLE_TIMEOUT": "600",
    }
    for command in (["migrate", "--verbosity", "0"], ["install_demo"]):
        live.manage(*command, environment=environment)
    with live.serving(environment=environment) as server:
        yield server


async def _load(url: str, num_idle: int, num_requests: int, rounds: int) -> LoadResult:
    found, limits = LoadResult(), httpx2.Limits(max_connections=None, max_keepalive_connections=num_requests)
    idle = await asyncio.gather(*(IdleConnection.open(url) for _ in range(num_idle)))
    async with httpx2.AsyncClient(base_url=f"{url}/v1", timeout=ANSWER_S, limits=limits) as http:
        await http.post("/chat/completions", json=BODY)  # loads the model
        for _ in range(rounds):
            await asyncio.gather(*(_ask(http, found, streams=number % 2 == 0) for number in range(num_requests)))
    alive = await asyncio.gather(*(connection.ask() for connection in idle), return_exceptions=True)
    for connection in idle:
        connection.close()
    found.problems += [f"An idle connection: {each!r}" for each in alive if each != b"HTTP/1.1 200 OK"]
    return found


async def _ask(http: httpx2.AsyncClient, found: LoadResult, *, streams: bool) -> None:
    began = time.perf_counter()
    try:
        response = await http.post("/chat/completions", json={**BODY, "stream": streams})
    except httpx2.HTTPError as error:
        found.problems.append(f"{type(error).__name__}: {error}")
        return
    found.statuses[response.status_code] += 1
    if response.status_code == 200:
        found.times_s.append(time.perf_counter() - began)
    if problem := problem_of(response, streams=streams):
        found.problems.append(problem)


def problem_of(response: httpx2.Response, *, streams: bool) -> str:
    """Return "" for a complete answer and for a refusal as documented, otherwise a description of the problem."""
    if response.status_code == 200:
        whole = response.text.endswith("data: [DONE]\n\n") if streams else "choices" in response.json()
        return "" if whole and '"error"' not in response.text else f"Incomplete answer: {response.text[-300:]}"
    try:
        code = response.json()["error"]["code"]
    except (json.JSONDecodeError, KeyError):
        return f"{response.status_code} without an OpenAI error body: {response.text[:300]}"
    if response.status_code not in REFUSALS or code != REFUSALS[response.status_code]:
        return f"{response.status_code} {code}"
    return "" if "retry-after" in response.headers else f"{response.status_code} without Retry-After"


def _values(found: LoadResult, num_idle: int, num_requests: int, rounds: int) -> dict[str, float]:
    times = sorted(found.times_s) or [0.0]
    return {
        "idle_connections": num_idle,
        "requests_at_once": num_requests,
        "rounds": rounds,
        **{f"answers_{status}": count for status, count in sorted(found.statuses.items())},
        "answer_p50_s": round(statistics.median(times), 3),
        "answer_p99_s": round(times[int(0.99 * (len(times) - 1))], 3),
        "problems": len(found.problems),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=IDLE)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="millm-connections-", ignore_cleanup_errors=True) as home:
        found = check(
            Path(home),
            num_idle=options.idle,
            num_requests=options.requests,
            rounds=options.rounds,
            results=options.results,
        )
    echo("", *(f"Problem: {problem}" for problem in found.problems[:50]), "" if found.problems else "No problems.")
    sys.exit(bool(found.problems))


if __name__ == "__main__":
    main()
