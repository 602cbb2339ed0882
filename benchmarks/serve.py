"""The workloads over HTTP with streaming: ``python -m benchmarks.serve``.

Starts a server, and measures it in turns with the engine without HTTP, so that the overhead of the server is a ratio
within one run. ``--url`` measures any running server with the OpenAI API instead.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.engine import load_shape, running
from benchmarks.figures import Trace
from benchmarks.machine import peak_memory_mb
from benchmarks.options import Options, options_of, options_parser
from benchmarks.profiles import additive_profiles
from benchmarks.record import Record
from benchmarks.server import own_server, profile_name
from benchmarks.subject import SETTLE_S, Plan, Subject, measure
from benchmarks.workloads import MAKERS, Job, Workload
from inference.engine.config import EngineConfig

SERVER = "miLLM server"
PROFILES = 16
TIMEOUT_S = 3600.0


@dataclass
class _Progress:
    """Progress of one stream, for late jobs that wait for it."""

    target_tokens: int
    reached: asyncio.Event


class HttpSubject:
    """A server with the OpenAI API at ``url`` (ending in /v1). ``pid`` is its process, if known."""

    def __init__(
        self, url: str, model: str, *, name: str = SERVER, pid: int | None = None, api_key: str = "none"
    ) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self.model = model
        self.pid = pid
        self._headers = {"Authorization": f"Bearer {api_key}"}

    def run(self, workload: Workload) -> list[Trace]:
        return asyncio.run(self._run(workload))

    def peak_memory_mb(self) -> float | None:
        return None if self.pid is None else peak_memory_mb(self.pid)

    async def _run(self, workload: Workload) -> list[Trace]:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx2.AsyncClient(headers=self._headers, timeout=TIMEOUT_S, limits=limits) as client:
            early = [job for job in workload.jobs if not job.after]
            late = [job for job in workload.jobs if job.after]
            target_tokens = max((job.after for job in late), default=0)
            progress = [_Progress(target_tokens, asyncio.Event()) for _ in early]
            tasks = [
                asyncio.create_task(self._ask(client, job, mine)) for job, mine in zip(early, progress, strict=True)
            ]
            if late:
                await asyncio.gather(*(mine.reached.wait() for mine in progress))
                tasks += [asyncio.create_task(self._ask(client, job, _Progress(0, asyncio.Event()))) for job in late]
            return list(await asyncio.gather(*tasks))

    async def _ask(self, client: httpx2.AsyncClient, job: Job, progress: _Progress) -> Trace:
        """Request a streamed completion. Raise RuntimeError if it is refused or has another length than requested."""
        sent_at, times, usage = time.perf_counter(), [], None
        try:
            async with client.stream("POST", f"{self.url}/completions", json=self._body(job)) as response:
                if response.status_code != 200:
                    raise RuntimeError(f"{self.name}: {response.status_code} {(await response.aread())[:500]!r}")
                async for event in events(response):
                    if any(choice.get("text") for choice in event.get("choices", ())):
                        times.append(time.perf_counter())
                        if len(times) == progress.target_tokens:
                            progress.reached.set()
                    usage = event.get("usage") or usage
        finally:
            progress.reached.set()
        if usage is None or usage["completion_tokens"] != job.new or not times:
            raise RuntimeError(f"{self.name}: {len(times)} token events and usage {usage} for {job.new} tokens.")
        return Trace(sent_at, tuple(times), usage["prompt_tokens"], usage["completion_tokens"], is_late=job.after > 0)

    def _body(self, job: Job) -> dict[str, Any]:
        body = {
            "model": self.model,
            "prompt": list(job.prompt),
            "max_tokens": job.new,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body if job.profile is None else {**body, "profile": profile_name(job.profile)}


async def events(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of server-sent events. Raise RuntimeError for an error object or a missing [DONE]."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError(f"The stream contains an error: {event['error']}")
        yield event
    raise RuntimeError("The stream ended without [DONE].")


@contextmanager
def serving_shape(options: Options, settings: dict[str, str] | None = None) -> Iterator[HttpSubject]:
    """Start a server with the shape and PROFILES profiles."""
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="millm-bench-", ignore_cleanup_errors=True)
        home = Path(stack.enter_context(temporary))
        own = own_server(
            options.shape,
            options.folder,
            home,
            num_profiles=PROFILES,
            quantization=options.quantization,
            settings=settings,
        )
        server = stack.enter_context(own)
        yield HttpSubject(server.api_url, server.model, pid=server.pid)


def record(options: Options, url: str = "", *, model: str = "", name: str = "", pid: int | None = None) -> Record:
    """Measure the server at ``url``, or without it a new server and the engine without HTTP."""
    plan = Plan(options.scale, options.rounds, settle_s=0 if url else SETTLE_S)
    makers = [MAKERS[workload] for workload in options.workloads]
    with ExitStack() as stack:
        subjects: Sequence[Subject]
        if url:
            subjects = [HttpSubject(url, model or options.shape.name, name=name or url, pid=pid)]
        else:
            loaded = load_shape(options.shape, options)
            engine = stack.enter_context(running(loaded, EngineConfig(), additive_profiles(loaded, PROFILES)))
            subjects = [engine, stack.enter_context(serving_shape(options))]
        return Record("serve", options.label, tuple(measure(subjects, makers, plan)), notes=options.notes)


if __name__ == "__main__":
    parser = options_parser(__doc__)
    parser.add_argument("--url", default="", help="URL of a running server, ending in /v1")
    parser.add_argument("--model", default="", help="name of the model on that server")
    parser.add_argument("--name", default="", help="name of that server in the figures")
    parser.add_argument("--pid", type=int, help="process id of that server, to read its peak memory")
    parsed = parser.parse_args()
    found = options_of(parsed)
    record(found, parsed.url, model=parsed.model, name=parsed.name, pid=parsed.pid).save(found.results)
