"""Names of models and profiles as Ollama's clients see and send them.

A name may end with Ollama's default tag `:latest`. A published profile of a model is listed as `model:profile`.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from inference.registry.records import ModelNotFoundError, ModelRecord
from openai_api.backend import get_backend
from openai_api.generation.target import find_model, is_model_allowed, listed_profiles
from openai_api.keys.record import KeyRecord

LATEST = ":latest"
KINDS = ("generation", "embedding")  # other models have no endpoint in Ollama's API


async def own_name(name: str) -> str:
    """Return the name as /v1 knows it: without the default tag, unless a model or a profile is called so."""
    if not name.endswith(LATEST):
        return name
    registry, base = get_backend().registry(), name.removesuffix(LATEST)
    try:
        registry.find(name)
    except ModelNotFoundError:
        pass
    else:
        return name
    try:
        record, profile = find_model(registry, base)
    except ModelNotFoundError:
        return name  # the error quotes what was sent
    return name if profile is None and await _has_latest(record) else base


async def _has_latest(record: ModelRecord) -> bool:
    return any(profile == LATEST[1:] for profile, _ in await get_backend().published(record.name))


@dataclass(frozen=True, slots=True)
class Listed:
    """A name that requests may use. ``profile`` is empty for the model alone."""

    name: str
    record: ModelRecord
    profile: str = ""

    @property
    def digest(self) -> str:
        """Return what tells entries apart, in the form of Ollama's digests."""
        text = f"{self.record.name}\n{self.record.created}\n{self.profile}"
        return hashlib.sha256(text.encode()).hexdigest()


async def listed_names(key: KeyRecord | None) -> AsyncIterator[Listed]:
    """Yield the models of ``KINDS`` that the key may use, each followed by the profiles that the key may use."""
    for record in get_backend().registry().records():
        if record.kind not in KINDS or not is_model_allowed(key, record):
            continue
        has_latest = record.kind == "generation" and await _has_latest(record)
        is_tagged = has_latest or ":" in record.name.rpartition("/")[2]
        yield Listed(record.name if is_tagged else record.name + LATEST, record)
        for reference, label in (await listed_profiles(key, record)).items():
            yield Listed(f"{record.name}:{reference}", record, label)
