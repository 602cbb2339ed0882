"""Jobs that a serving process does with its models, for commands, which have no engine of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from inference.client import BACKGROUND_PRIORITY, EngineError, GenerationRequest, SamplingParams, get_client
from inference.registry.registry import ModelNotFoundError, ModelNotReadyError, ReadyModel, get_registry
from inference.runs import Run
from jobs.errors import JobError
from jobs.kinds import JobKind, register

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

LOAD = "inference.load_model"
UNLOAD = "inference.unload_model"
WARM = "inference.warm"
WAIT_S = 1.0


def register_kinds() -> None:
    register(JobKind(LOAD, "Load a model", _load))
    register(JobKind(UNLOAD, "Unload a model", _unload))
    register(JobKind(WARM, "Warm a model", "inference.job_kinds:warm"))


def _load(job: RunningJob) -> dict[str, Any]:
    return _act(job, LOAD)


def _unload(job: RunningJob) -> dict[str, Any]:
    return _act(job, UNLOAD)


def _act(job: RunningJob, kind: str) -> dict[str, Any]:
    """Waits for it and tells that it does, so that a cancel is seen."""
    from concurrent.futures import wait

    from inference.registry.registry import get_registry

    name = job.params["model"]
    registry = get_registry()
    future = registry.load(name) if kind == LOAD else registry.unload(name, now=job.params.get("now", False))
    while not future.done():
        job.progress(0, 1, "Loading" if kind == LOAD else "Unloading")
        wait([future], timeout=WAIT_S)
    future.result()
    return {"model": name}


STEPS = 2
TEXT = "Hello"


def warm(job: RunningJob) -> dict[str, Any]:
    name = str(job.params["model"])
    job.progress(0, STEPS, f"loading {name}, and writing a token")
    try:
        ready = asyncio.run(_load_and_write(name))
    except (ModelNotFoundError, ModelNotReadyError, EngineError) as error:
        raise JobError(str(error)) from error
    job.progress(STEPS, STEPS)
    return {"model": ready.record.name, "kind": ready.kind}


async def _load_and_write(name: str) -> ReadyModel:
    """One loop for both: what loading gives back belongs to it."""
    ready = await get_registry().ready(name)
    if ready.kind == "generation":
        await _write(ready)
    return ready


async def _write(ready: ReadyModel) -> None:
    ids = tuple(ready.text.encode(TEXT)) or (0,)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    request = GenerationRequest("warm/0", ready.record.name, ids, params, priority=BACKGROUND_PRIORITY)
    await Run(get_client(), [request]).collect()
