"""The demo in a real engine, for jobs that evaluate its profiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from core.runtime import runtime
from core.snapshots import forget_snapshots
from inference.apps import ServingState
from inference.models import LanguageModel
from inference.steering_refs import STEERING_COMPILER
from jobs.execution import run_job
from jobs.models import Job
from steering.demo.install import install_demo
from steering.models import ProfileVersion


@contextmanager
def serving_demo() -> Iterator[None]:
    forget_snapshots()
    runtime.remove(STEERING_COMPILER)
    install_demo()
    LanguageModel.objects.update(dtype=LanguageModel.Dtype.FLOAT32)  # saved in bfloat16, in which sums go astray
    state = ServingState()
    state.start()
    try:
        yield
    finally:
        state.stop(0)
        connections.close_all()
        forget_snapshots()
        runtime.remove(STEERING_COMPILER)


def version(name: str, number: int = 1) -> ProfileVersion:
    return ProfileVersion.objects.select_related("profile__model").get(profile__name=name, number=number)


def run(job: Job) -> Job:
    run_job(job.pk)
    job.refresh_from_db()
    return job
