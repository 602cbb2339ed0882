"""Soak test: many clients send random requests, cancel and send bad input to a live server: ``make soak``.

Fails if a request is lost or gets a wrong answer, if something leaks, or if the request log differs from what the
clients received. The server is started on the loopback interface, with the demo in float32. Its greedy answers do not
depend on the batch, so some requests are compared with answers generated before the load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.record import RESULTS, Record
from benchmarks.soak_client import Client, Outcome
from benchmarks.soak_memory import Sampler, memory_findings
from benchmarks.soak_requests import Requests
from benchmarks.subject import echo
from tests import live

CLIENTS = 64
BATCH = 16
KV_BYTES = 24 * 2**20  # so small that sequences are preempted
WAITING = 64  # so small that the queue is sometimes full and requests get 503
IDLE_S = 30.0
MODEL_FACTS = """
import json
from inference.models import LanguageModel
from steering.models import SteeringProfile
assert LanguageModel.objects.update(dtype='float32') == 1
names = list(SteeringProfile.objects.values_list('name', flat=True))
print(json.dumps({'model': LanguageModel.objects.get().name, 'profiles': names}))
"""
LOG_ROWS = """
import json, pathlib
from openai_api.models import RequestLog
rows = list(RequestLog.objects.values_list('id', 'status', 'finish_reason', 'completion_tokens'))
pathlib.Path(%r).write_text(json.dumps(rows))
"""


def soak(minutes: float, clients: int, home: Path, results: Path) -> list[str]:
    """Run the soak test and return all problems. Print and save the figures."""
    environment = _environment(home)
    for command in (["migrate", "--verbosity", "0"], ["install_demo"]):
        live.manage(*command, environment=environment)
    facts = json.loads(live.manage("shell", "--no-imports", "-c", MODEL_FACTS, environment=environment))
    with live.serving(environment=environment) as server:
        found = asyncio.run(_load(server, facts, minutes, clients))
        code = server.stop()
    rows = _log_rows(home, environment)
    problems = [*server_findings(code, server.output), *found.problems, *log_findings(found.outcomes, rows)]
    _report(found, rows, problems, minutes, results)
    return problems


class LoadResult:
    """Outcomes and problems of the load."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.problems: list[str] = []
        self.values: dict[str, float] = {}


async def _load(server: live.LiveServer, facts: Mapping[str, Any], minutes: float, count: int) -> LoadResult:
    found, sampler = LoadResult(), Sampler(server.pid)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=count)
    async with httpx2.AsyncClient(base_url=f"{server.url}/v1", timeout=None, limits=limits) as http:
        context = await _context(http, facts["model"])

        def requests(seed: int) -> Requests:
            return Requests(facts["model"], tuple(facts["profiles"]), context, seed)

        quiet = Client(http, "quiet", requests(-1), {})
        known = {
            (await quiet.send(request)).request.canary: quiet.outcomes[-1].text for request in requests(-1).canaries()
        }
        workers = [Client(http, f"c{i}", requests(i), known) for i in range(count)]
        deadline = time.monotonic() + minutes * 60
        watching = asyncio.create_task(sampler.watch(deadline))
        await asyncio.gather(*(worker.run_until(deadline) for worker in workers))
        await watching
        found.problems += await _idle(server.url, http)
        found.problems += await _capacity(server.url, http, Client(http, "probe", requests(-2), {}), found.outcomes)
        sampler.note()
    for client in (quiet, *workers):
        found.outcomes += client.outcomes
    found.problems += [f"{o.id} ({o.request.kind}): {o.problem}" for o in found.outcomes if o.problem]
    found.problems += memory_findings(sampler.samples, found.values)
    return found


async def _context(http: httpx2.AsyncClient, model: str) -> int:
    """Return the model's context length, from the error message that contains it."""
    body = {"model": model, "prompt": "x", "max_tokens": 10**8}
    error = (await http.post("/completions", json=body)).json()["error"]
    return next(int(word) for word in error["message"].replace(",", "").split() if word.isdigit() and int(word) > 1)


async def _idle(url: str, http: httpx2.AsyncClient) -> list[str]:
    """Return a problem unless the engine becomes idle: all slots and queue places must be free again."""
    deadline, load = time.monotonic() + IDLE_S, {}
    while time.monotonic() < deadline:
        load = (await http.get(f"{url}/health/ready")).json()["load"]
        if load["running"] == load["waiting"] == 0:
            return []
        await asyncio.sleep(0.1)
    return [f"Sequences leaked: {IDLE_S:g} s after the last request {load}."]


async def _capacity(url: str, http: httpx2.AsyncClient, client: Client, outcomes: list[Outcome]) -> list[str]:
    """Return a problem unless all slots can still run a sequence of the maximum length. Cancel these sequences."""
    tasks = [asyncio.create_task(client.send(client.longest())) for _ in range(BATCH)]
    deadline, most = time.monotonic() + IDLE_S, 0
    while time.monotonic() < deadline and most < BATCH and not any(task.done() for task in tasks):
        most = max(most, (await http.get(f"{url}/health/ready")).json()["load"]["running"])
        await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    problems = [] if most == BATCH else [f"Slots leaked: only {most} of {BATCH} sequences ran at once after the load."]
    return problems + await _idle(url, http)


def server_findings(code: int, output: str) -> list[str]:
    """Return problems of the server process: its exit code, and the first exception that it logged."""
    problems = [] if code == 0 else [f"The server exited with code {code}: {output[-500:]}"]
    if "Traceback" in output:
        problems.append(f"The server logged an exception: {output[output.index('Traceback') :][:4000]}")
    return problems


def log_findings(outcomes: Sequence[Outcome], rows: Mapping[str, tuple[int, str, int]]) -> list[str]:
    """Return the differences between the request log and what the clients received.

    The log must have exactly one row per request. Only a request that was cancelled before any response may be missing,
    because it may not have arrived.
    """
    problems = []
    for outcome in outcomes:
        row = rows.get(outcome.id)
        if row is None:
            if not (outcome.request.leave_after == 0 and outcome.status == 0):
                problems.append(f"{outcome.id} ({outcome.request.kind}, {outcome.status}) is not in the log.")
            continue
        status, reason, tokens = row
        if outcome.status and status != outcome.status and outcome.request.leave_after is None:
            problems.append(f"{outcome.id}: the log has status {status}, the client got {outcome.status}.")
        if outcome.completion_tokens is not None and (tokens != outcome.completion_tokens or not reason):
            problems.append(
                f"{outcome.id}: logged {tokens} tokens ({reason}), the client got {outcome.completion_tokens}."
            )
    sent = {outcome.id for outcome in outcomes}
    strange = [name for name in rows if name not in sent and not name.startswith(("probe-", "req_"))]
    return [*problems, *(f"{name} is in the log but was not sent." for name in strange)]


def _environment(home: Path) -> dict[str, str]:
    return {
        "MILLM_HOME": str(home),
        "MILLM_AUTH": "loopback",
        "MILLM_LOG_LEVEL": "WARNING",
        "MILLM_MAX_BATCH_SIZE": str(BATCH),
        "MILLM_MAX_WAITING_REQUESTS": str(WAITING),
        "MILLM_KV_CACHE_BYTES": str(KV_BYTES),
    }


def _log_rows(home: Path, environment: Mapping[str, str]) -> dict[str, tuple[int, str, int]]:
    target = home / "rows.json"
    live.manage("shell", "--no-imports", "-c", LOG_ROWS % str(target), environment=environment)
    return {name: (status, reason, tokens) for name, status, reason, tokens in json.loads(target.read_text())}


def _report(
    found: LoadResult, rows: Mapping[str, object], problems: Sequence[str], minutes: float, results: Path
) -> None:
    kinds = Counter(f"{o.request.kind} {o.status or 'left'}" for o in found.outcomes)
    tokens = sum(o.completion_tokens or 0 for o in found.outcomes)
    values = {
        **found.values,
        "minutes": minutes,
        "requests": float(len(found.outcomes)),
        "log_rows": float(len(rows)),
        "tokens": float(tokens),
        "problems": float(len(problems)),
    }
    echo("| requests | answer | count |", "|---|---|---|")
    echo(*(f"| {kind.split()[0]} | {kind.split()[1]} | {number} |" for kind, number in sorted(kinds.items())))
    echo("", "| figure | value |", "|---|---|", *(f"| {name} | {value:g} |" for name, value in values.items()))
    Record("soak", "demo", values=values, notes=tuple(problems[:20])).save(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millm-soak-", ignore_cleanup_errors=True) as home:
        problems = soak(options.minutes, options.clients, Path(home), options.results)
    echo(
        "",
        *(f"Problem: {problem}" for problem in problems[:50]),
        f"{len(problems)} problems." if problems else "No problems.",
    )
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
