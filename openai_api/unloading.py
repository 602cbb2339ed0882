"""Unloading a model for a client: recorded in the trail with the key, its owner and the request."""

from __future__ import annotations

from django.contrib.auth import get_user_model

from audit.origin import Origin, acting
from inference.models import LanguageModel
from inference.registry import ModelRecord
from inference.services import unload_model
from openai_api.call import Call
from openai_api.database import in_database


async def unload(call: Call, record: ModelRecord) -> None:
    """Raises ApiError 503 where the trail cannot be written: nothing is done behind its back."""

    def work() -> None:
        with acting(origin_of(call)):
            unload_model(model=LanguageModel(pk=record.pk, name=record.name))

    await in_database(work)


def origin_of(call: Call) -> Origin:
    key = call.key
    if key is None:
        return Origin(request_id=call.id)
    return Origin(username=lambda: _username(key.owner_id), key=key.name, request_id=call.id)


def _username(pk: int | None) -> str:
    found = None if pk is None else get_user_model()._default_manager.filter(pk=pk).first()
    return "" if found is None else found.get_username()
