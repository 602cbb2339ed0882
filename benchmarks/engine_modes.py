"""Kinds of engines and several web workers, over HTTP: ``python -m benchmarks.engine_modes``.

One server of each kind runs, and they take turns. The model is tiny, so that the server's own work decides: what it
costs to carry the events of 500 streams, and how long 8 streams wait while the server parses bodies of 8 MiB.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.figures import Trace
from benchmarks.options import Options, options_of, options_parser
from benchmarks.record import Record
from benchmarks.serve import HttpSubject
from benchmarks.server import own_server
from benchmarks.subject import Plan, measure
from benchmarks.workloads import Job, Workload, streams
from tests.ray_cluster import ray_cluster

MODES = {  # settings by name
    "thread": {"MILLM_ENGINE": "thread"},
    "process": {"MILLM_ENGINE": "process"},
    "2 processes": {"MILLM_ENGINE": "process", "MILLM_ENGINE_REPLICAS": "2"},
    "2 Ray actors": {"MILLM_ENGINE": "ray", "MILLM_ENGINE_REPLICAS": "2"},
    "2 workers": {"MILLM_ENGINE": "thread", "MILLM_WORKERS": "2"},
    "4 workers": {"MILLM_ENGINE": "thread", "MILLM_WORKERS": "4"},
    "process and 4 workers": {"MILLM_ENGINE": "process", "MILLM_WORKERS": "4"},
}
STREAMS, BESIDE = 500, 8
BODY_BYTES = 8 * 2**20
BESIDE_RAY = "The processes of the Ray node run beside all kinds."
BODIES = f"{BESIDE} streams beside bodies"


class LightSubject(HttpSubject):
    """Reads streams with as little work as possible: the client must not be what is measured."""

    cluster: psutil.Process | None = None  # that its actors run in

    def peak_memory_mb(self) -> float | None:
        """Return the memory of the server, its engine processes, its web workers and its Ray node together, now."""
        assert self.pid is not None
        server = psutil.Process(self.pid)
        processes = [server, *server.children()]
        if self.cluster is not None:
            processes += [self.cluster, *self.cluster.children(recursive=True)]
        return sum(process.memory_info().rss for process in processes) / 1e6

    def run(self, workload: Workload) -> list[Trace]:
        if workload.name != BODIES:
            return super().run(workload)
        with posting(self.url, self.model):
            return super().run(workload)

    async def _run(self, workload: Workload) -> list[Trace]:
        return list(await asyncio.gather(*(self._read(job) for job in workload.jobs)))

    async def _read(self, job: Job) -> Trace:
        place = urlsplit(self.url)
        body = json.dumps(self._body(job)).encode()
        head = (
            f"POST {place.path}/completions HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        sent_at, times, content = time.perf_counter(), [], bytearray()
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(head.encode() + body)
        while chunk := await reader.read(2**16):
            now, num_before = time.perf_counter(), content.count(b'"finish_reason":null')
            content += chunk
            times += [now] * (content.count(b'"finish_reason":null') - num_before)
            if len(content) > 2**14:
                del content[: -(2**10)]
        writer.close()
        if b"data: [DONE]" not in content or f'"completion_tokens":{job.new},'.encode() not in content or not times:
            raise RuntimeError(
                f"{self.name}: {len(times)} events, not all of {job.new} tokens: {bytes(content[-500:])!r}"
            )
        return Trace(sent_at, tuple(times), len(job.prompt), job.new)


@contextmanager
def posting(url: str, model: str) -> Iterator[None]:
    """Post bodies of 8 MiB, one after the other, for a prompt that is refused because it is too long."""
    place = urlsplit(url)
    body = json.dumps({"model": model, "max_tokens": 1, "prompt": "word " * (BODY_BYTES // 5 - 100)}).encode()
    is_over = threading.Event()
    failures: list[str] = []

    def post() -> None:
        while not is_over.is_set():
            connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
            connection.request("POST", f"{place.path}/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 400:
                failures.append(f"{answer.status} {answer.read()[:300]!r}")
            connection.close()

    poster = threading.Thread(target=post)
    poster.start()
    try:
        yield
    finally:
        is_over.set()
        poster.join()
    if failures:
        raise RuntimeError(f"A body was not refused with 400: {failures[0]}")


def record(options: Options, count: int = STREAMS, modes: Collection[str] = tuple(MODES)) -> Record:
    makers = [
        streams(count, length=16, new=96, name=f"{count} streams"),
        streams(BESIDE, length=16, new=512, name=f"{BESIDE} streams"),
        streams(BESIDE, length=16, new=512, name=BODIES),
    ]
    limits = {"MILLM_MAX_BATCH_SIZE": str(count), "MILLM_MAX_WAITING_REQUESTS": str(count)}
    limits |= {
        f"MILLM_MAX_{name}": str(2 * count + 64)
        for name in ("CONCURRENT_REQUESTS", "ADDRESS_CONNECTIONS", "CONNECTIONS")
    }
    with ExitStack() as stack:
        subjects: list[LightSubject] = []
        for mode in modes:
            home = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="millm-bench-", ignore_cleanup_errors=True))
            )
            settings, node = limits | MODES[mode], None
            if settings["MILLM_ENGINE"] == "ray":
                node = stack.enter_context(ray_cluster(num_cpus=int(settings["MILLM_ENGINE_REPLICAS"])))
                settings["MILLM_ENGINE"] = node.address
            shape = replace(options.shape, name=f"{options.shape.name}-{len(subjects)}")
            server = stack.enter_context(own_server(shape, options.folder, home / "home", settings=settings))
            subject = LightSubject(server.api_url, server.model, name=mode, pid=server.pid)
            subject.cluster = None if node is None else psutil.Process(node.pid)
            subjects.append(subject)
        rows = measure(subjects, makers, Plan(options.scale, options.rounds))
    has_ray = any(MODES[mode]["MILLM_ENGINE"] == "ray" for mode in modes)
    notes = (*options.notes, BESIDE_RAY) if has_ray else options.notes
    return Record("engine_modes", options.label, tuple(rows), notes=notes)


if __name__ == "__main__":
    parser = options_parser(__doc__, shape="tiny")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parsed = parser.parse_args()
    found = options_of(parsed)
    record(found, parsed.streams, parsed.modes).save(found.results)
