"""``engine``: whether it runs, how much it has to do. Shown in the bar of every page."""

from __future__ import annotations

from django.contrib.auth.models import User

from console.live.topic import Reading, Topic, register_topic
from inference.client import EngineError, get_client

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
