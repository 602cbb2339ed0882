"""OpenVINO GenAI's continuous batching as a peer: a program in its own environment, without HTTP.

It gets the jobs of a workload as a line of JSON and answers with the times of their tokens, on the clock that this
process uses too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import Trace
from benchmarks.machine import peak_memory_mb
from benchmarks.peers.servers import CACHE_GIB, HOME, OPENVINO, SLOTS, dtype_here, version
from benchmarks.shapes import Shape, shape_folder
from benchmarks.workloads import Job, Workload

PROGRAM = Path(__file__).with_name("genai_program.py")
PRECISIONS = {"bfloat16": "bf16", "float32": "f32", "float16": "f16"}


class OpenVino:
    """A running program. ``python`` is that of its environment, ``model`` a folder that :func:`convert` made."""

    def __init__(self, name: str, python: Path, model: Path, precision: str, log: Path) -> None:
        self.name = name
        self.note = f"{name} {version(python.parents[1], 'openvino_genai')} computed in {precision}, without HTTP."
        arguments = {
            "model": str(model),
            "precision": precision,
            "kv_precision": "f16" if precision == "f32" else precision,
            "cache_gib": CACHE_GIB,
            "slots": SLOTS,
            "threads": len(os.sched_getaffinity(0)),
        }
        with log.open("w") as output:
            self._process = subprocess.Popen(  # noqa: S603 - a program of this folder
                [str(python), str(PROGRAM), json.dumps(arguments)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True,
            )  # fmt: skip
        if self._read() != "ready":
            raise RuntimeError(f"{name} did not start. Its output is in {log}.")

    def run(self, workload: Workload) -> list[Trace]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([asdict(job) for job in workload.jobs]) + "\n")
        self._process.stdin.flush()
        found = self._read()
        if found is None:
            raise RuntimeError(f"{self.name} ended.")
        return [_trace(job, one) for job, one in zip(workload.jobs, found, strict=True)]

    def peak_memory_mb(self) -> float | None:
        return peak_memory_mb(self._process.pid)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None


@contextmanager
def openvino(shape: Shape, folder: Path, quantization: str = "", home: Path = HOME) -> Iterator[list[OpenVino]]:
    """Yield the peer if it is installed."""
    python = home / OPENVINO / "bin" / "python"
    if not python.exists():
        yield []
        return
    name = "OpenVINO int8" if quantization else "OpenVINO"
    model = convert(python, shape_folder(shape, folder), "int8" if quantization else "fp16")
    subject = OpenVino(name, python, model, PRECISIONS[dtype_here(shape)], folder / f"{name}.log")
    try:
        yield [subject]
    finally:
        subject.close()


def convert(python: Path, path: Path, weights: str) -> Path:
    """Convert the model in ``path`` if it does not exist, and return its folder."""
    target = path.with_name(f"{path.name}-openvino-{weights}")
    if not (target / "openvino_model.bin").exists():
        command = [str(python.with_name("optimum-cli")), "export", "openvino", "--model", str(path)]
        command += ["--task", "text-generation-with-past", "--weight-format", weights, str(target)]
        subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True, stdout=sys.stderr)  # noqa: S603
    return target


def _trace(job: Job, found: dict[str, Any]) -> Trace:
    if found["new"] != job.new:
        raise RuntimeError(f"OpenVINO generated {found['new']} tokens instead of {job.new}.")
    return Trace(found["sent_at"], tuple(found["times"]), len(job.prompt), job.new, is_late=job.after > 0)
