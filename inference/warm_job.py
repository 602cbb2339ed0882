"""The job that loads a model and lets it write one token, so that the first request need not wait for that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from inference.client import BACKGROUND_PRIORITY, EngineError, GenerationRequest, SamplingParams, get_client
from inference.registry.registry import ModelNotFoundError, ModelNotReadyError, ReadyModel, get_registry
from inference.runs import Run
from jobs.errors import JobError

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

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
