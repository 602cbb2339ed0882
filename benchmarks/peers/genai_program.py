"""The program of :mod:`benchmarks.peers.genai`. It runs in OpenVINO's environment and imports nothing of ours."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai


def pipeline(options: dict[str, Any]) -> Any:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = options["cache_gib"]
    scheduler.max_num_seqs = options["slots"]
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    properties = {
        "INFERENCE_PRECISION_HINT": options["precision"],
        "KV_CACHE_PRECISION": options["kv_precision"],
        "INFERENCE_NUM_THREADS": options["threads"],
    }
    return genai.ContinuousBatchingPipeline(options["model"], scheduler, "CPU", properties)


class Stream:
    """One request, and the times at which its tokens were read."""

    def __init__(self, pipe: Any, number: int, job: dict[str, Any]) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = job["new"]
        config.ignore_eos = True
        config.do_sample = False
        self.sent_at = time.perf_counter()
        self.times: list[float] = []
        self.new = 0
        ids = openvino.Tensor(np.array([job["prompt"]], dtype=np.int64))
        self._handle = pipe.add_request(number, ids, config)

    def read(self) -> None:
        while self._handle.can_read():
            now = time.perf_counter()
            for output in self._handle.read().values():
                self.new += len(output.generated_ids)
                self.times.append(now)


def run(pipe: Any, first: int, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run all jobs; those with ``after`` start when each of the others has that many tokens."""
    streams = {n: Stream(pipe, first + n, job) for n, job in enumerate(jobs) if not job["after"]}
    late = {n: job for n, job in enumerate(jobs) if job["after"]}
    early = list(streams.values())
    while pipe.has_non_finished_requests():
        pipe.step()
        for stream in streams.values():
            stream.read()
        if late and min(stream.new for stream in early) >= max(job["after"] for job in late.values()):
            streams |= {n: Stream(pipe, first + n, job) for n, job in late.items()}
            late = {}
    return [{"sent_at": s.sent_at, "times": s.times, "new": s.new} for _, s in sorted(streams.items())]


def main() -> None:
    pipe, first = pipeline(json.loads(sys.argv[1])), 0
    print(json.dumps("ready"), flush=True)  # noqa: T201
    for line in sys.stdin:
        jobs = json.loads(line)
        print(json.dumps(run(pipe, first, jobs)), flush=True)  # noqa: T201
        first += len(jobs)


if __name__ == "__main__":
    main()
