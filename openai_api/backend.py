"""The layers below, as /v1 uses them, in one place where tests can substitute fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from django.contrib.auth import get_user_model

from audit.origin import Origin, acting
from core.runtime import Service, runtime
from inference.client import EngineClient, get_client
from inference.models import LanguageModel
from inference.registry.model_card import Card, ModelCard
from inference.registry.records import ModelRecord
from inference.registry.registry import get_registry
from inference.services import unload_model
from openai_api.database import in_database
from openai_api.http.call import Call
from openai_api.keys.authentication import KeySource, acurrent_keys
from steering.features.catalog import (
    EffectRecord,
    FeatureCatalog,
    FeatureDetail,
    FeatureQuery,
    FeatureRecord,
    SAERecord,
)
from steering.features.logit_lens import LogitLens
from steering.features.neighbours import CofiringFeatures, NeighbourFeature
from steering.profiles.resolver import ResolvedProfile, SteeringSelection, find_profile, list_published, steer
from steering.sae_registry.loaded_sae import LoadedSAE
from steering.watch.watcher import Watch, watch


async def unload(call: Call, record: ModelRecord) -> None:
    """Raises MillmError 503 where the trail cannot be written: nothing is done behind its back."""

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


class Registry(Protocol):
    """The part of :class:`inference.registry.registry.ModelRegistry` that requests use."""

    def records(self) -> tuple[ModelRecord, ...]: ...

    def find(self, name: str) -> ModelRecord: ...

    def max_model_len(self, name: str) -> int | None: ...

    def layers_and_width(self, name: str) -> tuple[int, int] | None: ...

    async def ready(self, name: str) -> ModelCard: ...

    async def ready_card(self, name: str) -> Card: ...


class Unloading(Protocol):
    async def __call__(self, call: Call, record: ModelRecord) -> None: ...


class Steering(Protocol):
    async def __call__(
        self, model: str, selection: SteeringSelection, *, special_token_ids: frozenset[int]
    ) -> ResolvedProfile | None: ...


class ProfileFinder(Protocol):
    async def __call__(self, model: str, reference: str) -> str: ...


class ProfileLister(Protocol):
    async def __call__(self, model: str) -> list[tuple[str, int]]: ...


class Watching(Protocol):
    async def __call__(self, model: str, *, special_token_ids: frozenset[int]) -> Watch: ...


class Features(Protocol):
    """The part of :class:`steering.features.catalog.FeatureCatalog` that requests use."""

    async def search(self, query: FeatureQuery) -> tuple[FeatureRecord, ...]: ...

    async def sae(self, name: str) -> SAERecord: ...

    async def saes(self, model: str) -> tuple[SAERecord, ...]: ...

    async def records(self, sae: SAERecord, indices: Iterable[int]) -> dict[int, FeatureRecord]: ...

    async def detail(self, sae: SAERecord, index: int) -> FeatureDetail: ...

    async def readable(self, model: str, name: str | None) -> LoadedSAE: ...

    async def labels(self, sae: int, indices: Iterable[int]) -> dict[int, str]: ...

    async def lens(self, sae: SAERecord, index: int) -> LogitLens: ...

    async def neighbours(self, sae: SAERecord, index: int, count: int) -> list[NeighbourFeature]: ...

    async def cofiring(self, sae: SAERecord, index: int) -> CofiringFeatures: ...

    async def effect(self, sae: SAERecord, index: int) -> EffectRecord: ...


@cache
def feature_reader() -> FeatureCatalog:
    """Return the feature reader of this process."""
    return FeatureCatalog()


@dataclass(frozen=True)
class Backend:
    """Collaborators of the handlers.

    ``ping_s``: silence after which a stream gets a comment. ``first_event_s``: how long a stream delays its headers, so
    that an early failure can still set the HTTP status.
    """

    client: Callable[[], EngineClient] = get_client
    registry: Callable[[], Registry] = get_registry
    steer: Steering = steer
    keys: KeySource = acurrent_keys
    features: Callable[[], Features] = feature_reader
    watch: Watching = watch
    unload: Unloading = unload
    find_profile: ProfileFinder = find_profile
    published: ProfileLister = list_published
    ping_s: float = 10.0
    first_event_s: float = 1.0


BACKEND = Service(lambda: Backend())


def get_backend() -> Backend:
    """Return the collaborators of this process's handlers."""
    return runtime.get(BACKEND)
