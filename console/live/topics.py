"""The topics that pages can subscribe to: the engine's state, jobs, load and models."""

from __future__ import annotations

import uuid
from dataclasses import asdict

from django.contrib.auth.models import User

from console.live.topic import Reading, Topic, register_topic
from console.load.sampler import live_load
from inference.client import EngineError, get_client
from inference.models import LanguageModel
from inference.registry.availability import model_availability
from jobs.models import Job

WORDS = {"idle": "Ready", "running": "Working"}


def read_engine(user: User, rest: str) -> Reading:
    try:
        stats = get_client().stats()
    except EngineError as error:
        return {"state": "down", "words": "Engine down", "error": str(error), "running": 0, "waiting": 0}
    if not stats.is_up:
        return {"state": "down", "words": "Engine down", "error": stats.error, "running": 0, "waiting": 0}
    busy = stats.running + stats.waiting > 0
    words = (
        f"{stats.running} running" + (f", {stats.waiting} waiting" if stats.waiting else "") if busy else "Engine ready"
    )
    state = "busy" if busy else "good"
    return {"state": state, "words": words, "error": "", "running": stats.running, "waiting": stats.waiting}


ENGINE = register_topic(Topic("engine", read_engine, ("inference.view_languagemodel",)))


def read_jobs(user: User, rest: str) -> Reading:
    return {"open": Job.objects.visible_to(user).filter(state__in=(Job.State.QUEUED, Job.State.RUNNING)).count()}


def read_job(user: User, rest: str) -> Reading | None:
    try:
        job = Job.objects.visible_to(user).filter(pk=uuid.UUID(rest)).first()
    except ValueError:
        return None
    if job is None:
        return None
    return {"state": job.state, "done": job.done, "total": job.total, "message": job.message, "error": job.error}


JOBS = register_topic(Topic("jobs", read_jobs, ("jobs.view_job",)))
JOB = register_topic(Topic("job", read_job, ("jobs.view_job",)))


def read_load(user: User, rest: str) -> Reading:
    return asdict(live_load())


LOAD = register_topic(Topic("load", read_load, ("console.view_loadsample",)))


MAX_DIGITS = 18


def read_models(user: User, rest: str) -> Reading:
    """Return the state of all models by primary key."""
    try:
        attached = {model.name: model for model in get_client().stats().by_model}
    except EngineError:
        attached = {}
    found: dict[str, object] = {}
    for row in LanguageModel.objects.only("pk", "name", "state"):
        live = attached.get(row.name)
        found[str(row.pk)] = {
            "state": row.get_state_display().lower(),
            "running": live.running if live else 0,
            "waiting": live.waiting if live else 0,
            "kv": round(live.kv_used_ratio, 3) if live else 0.0,
        }
    return found


def read_model(user: User, rest: str) -> Reading | None:
    is_number = rest.isascii() and rest.isdigit() and len(rest) <= MAX_DIGITS
    row = LanguageModel.objects.filter(pk=int(rest)).first() if is_number else None
    return None if row is None else {**asdict(model_availability(row)), "memory_bytes": row.memory_bytes}


MODELS = register_topic(Topic("models", read_models, ("inference.view_languagemodel",)))
MODEL = register_topic(Topic("model", read_model, ("inference.view_languagemodel",)))
