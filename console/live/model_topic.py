"""``models``: the state of each model, and what it has to do."""

from __future__ import annotations

from django.contrib.auth.models import User

from console.live.topic import Reading, Topic, register_topic
from inference.client import EngineError, get_client
from inference.models import LanguageModel


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


MODELS = register_topic(Topic("models", read_models, ("inference.view_languagemodel",)))
