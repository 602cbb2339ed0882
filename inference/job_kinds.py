"""Jobs that load, unload and warm models in a serving process, for commands, which have no engine."""

from __future__ import annotations

import asyncio
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

from core.errors import MillmError
from inference.client import BACKGROUND_PRIORITY, GenerationRequest, SamplingParams, get_client
from inference.registry.model_card import Card, ModelCard
from inference.registry.registry import get_registry
from inference.runs import Run
from jobs.errors import JobError
from jobs.kinds import JobKind, register
from jobs.lanes import Lane

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

LOAD = "inference.load_model"
UNLOAD = "inference.unload_model"
WARM = "inference.warm"
WAIT_S = 1.0


def register_kinds() -> None:
    register(JobKind(LOAD, "Load a model", _load, lane=Lane.INTERACTIVE))
    register(JobKind(UNLOAD, "Unload a model", _unload, lane=Lane.INTERACTIVE))
    register(JobKind(WARM, "Warm a model", warm, lane=Lane.INTERACTIVE))


def _load(job: RunningJob) -> dict[str, Any]:
    return _act(job, LOAD)


def _unload(job: RunningJob) -> dict[str, Any]:
    return _act(job, UNLOAD)


def _act(job: RunningJob, kind: str) -> dict[str, Any]:
    """Wait for the operation and report progress, so that a cancellation is noticed."""
    name = job.params["model"]
    registry = get_registry()
    future = registry.load(name) if kind == LOAD else registry.unload(name, now=job.params.get("now", False))
    while not future.done():
        job.progress(0, 1, "Loading" if kind == LOAD else "Unloading")
        wait([future], timeout=WAIT_S)
    future.result()
    return {"model": name}


WARM_STEPS = 2
WARM_TEXT = "Hello"


def warm(job: RunningJob) -> dict[str, Any]:
    """Load a model and generate one token, so that the first request does not have to wait."""
    name = str(job.params["model"])
    job.progress(0, WARM_STEPS, f"Loading {name} and generating a token")
    try:
        ready = asyncio.run(_load_and_generate(name))
    except MillmError as error:
        raise JobError(str(error)) from error
    job.progress(WARM_STEPS, WARM_STEPS)
    return {"model": ready.record.name, "kind": ready.kind}


async def _load_and_generate(name: str) -> Card:
    """Load and generate in one event loop, because the futures of the load belong to it."""
    ready = await get_registry().ready_card(name)
    if isinstance(ready, ModelCard) and ready.kind == "generation":
        await _generate(ready)
    return ready


async def _generate(ready: ModelCard) -> None:
    ids = tuple(ready.text.encode(WARM_TEXT)) or (0,)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    request = GenerationRequest("warm/0", ready.record.name, ids, params, priority=BACKGROUND_PRIORITY)
    await Run(get_client(), [request]).collect()
