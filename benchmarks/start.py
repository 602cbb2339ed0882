"""Duration of a second start, and memory of the idle server: ``python -m benchmarks.start``."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping

import httpx2
import psutil

from benchmarks.options import Options, parse_options
from benchmarks.record import Record
from tests import live

SETTLE_S = 3.0


def record(options: Options) -> Record:
    """Measure the demo; the shape is ignored."""
    with tempfile.TemporaryDirectory(prefix="millm-start-", ignore_cleanup_errors=True) as home:
        environment = {"MILLM_HOME": home, "MILLM_AUTH": "loopback", "MILLM_LOG_LEVEL": "WARNING"}
        live.manage("migrate", "--verbosity", "0", environment=environment)
        idle = _idle_mb(environment)
        _start_s(environment)  # installs the demo
        starts = [_start_s(environment) for _ in range(options.rounds)]
    values = {"second_start_s": statistics.median(starts), "idle_mb": idle}
    return Record("start", "demo", values=values, notes=(f"median of {options.rounds} starts",))


def _start_s(environment: Mapping[str, str]) -> float:
    """Return the seconds from a start with ``make run`` to the first completion, including loading the model."""
    began = time.perf_counter()
    with live.serving("--setup", environment=environment) as server:
        models = httpx2.get(f"{server.url}/v1/models", timeout=60).json()["data"]
        body = {"model": models[0]["id"], "prompt": "Once", "max_tokens": 1}
        httpx2.post(f"{server.url}/v1/completions", json=body, timeout=120).raise_for_status()
        seconds = time.perf_counter() - began
        server.stop()
    return seconds


def _idle_mb(environment: Mapping[str, str]) -> float:
    """Return the resident memory of the server's process without a model, excluding the database's processes."""
    with live.serving(environment=environment) as server:
        while (response := httpx2.get(f"{server.url}/health/ready", timeout=60)).status_code == 503:
            time.sleep(0.1)  # the engine's process starts
        response.raise_for_status()
        time.sleep(SETTLE_S)
        resident: float = psutil.Process(server.pid).memory_info().rss / 2**20
        server.stop()
    return resident


if __name__ == "__main__":
    found = parse_options(__doc__)
    record(found).save(found.results)
