"""Jobs that a serving process does with its models, for commands, which have no engine of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    register(JobKind(WARM, "Warm a model", "inference.warm_job:warm"))


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
