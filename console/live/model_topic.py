"""``models``: the state of each model, and what it has to do; ``model:<number>``: how one stands, in words."""

from __future__ import annotations

from dataclasses import asdict

from django.contrib.auth.models import User

from console.live.topic import Reading, Topic, register_topic
from inference.client import EngineError, get_client
from inference.models import LanguageModel
from inference.registry.availability import model_standing

MAX_DIGITS = 18


def read_models(user: User, rest: str) -> Reading:
    """By primary key."""
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
    return None if row is None else {**asdict(model_standing(row)), "memory_bytes": row.memory_bytes}


MODELS = register_topic(Topic("models", read_models, ("inference.view_languagemodel",)))
MODEL = register_topic(Topic("model", read_model, ("inference.view_languagemodel",)))
