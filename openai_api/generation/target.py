"""Resolve the model and the profile that a request names, and check that its key may use them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from core.errors import MillmError, quote
from inference.files.architectures import MEDIA_KINDS, MediaKind, ModelKind
from inference.registry.model_card import MediaCard, ModelCard
from inference.registry.records import ModelNotFoundError, ModelRecord, default_of
from openai_api.backend import Registry, get_backend
from openai_api.http.call import Call
from openai_api.http.errors import (
    forbidden,
    invalid,
    unsupported_parameter,
)
from openai_api.keys.record import KeyRecord
from openai_api.schemas.generation import SteeredSchema
from steering.profiles.resolver import ResolvedProfile, SteeringSelection, check_scopes
from steering.watch.watcher import NO_WATCH, Watch

PROFILE_HEADER = "x-millm-profile"
USES: dict[str, str] = {
    "generation": "/v1/chat/completions or /v1/completions",
    "embedding": "/v1/embeddings",
    "classification": "/v1/rerank, /v1/score or /v1/moderations",
    "transcription": "/v1/audio/transcriptions",
    "translation": "/v1/audio/translations",
    "speech": "/v1/audio/speech",
    "image": "/v1/images/generations or /v1/images/edits",
    "video": "/v1/videos",
}


@dataclass(frozen=True, slots=True)
class Target:
    """``profile`` includes the server's policies; None where nothing steers."""

    model: ModelCard
    profile: ResolvedProfile | None
    watch: Watch = NO_WATCH


@dataclass(frozen=True, slots=True)
class ProfileRef:
    """The profile named by a request: a reference, explicitly none (``reference`` None), or not given."""

    reference: str | None = None
    is_given: bool = False


async def resolve_target(call: Call, request: SteeredSchema) -> Target:
    """Resolve model and steering. Raises MillmError 400, 403, 404, 409 or 503 rather than skipping a profile."""
    backend = get_backend()
    record, suffix = find_model(backend.registry(), request.model)
    call.use_model(record.name)
    check_model_allowed(call.key, record)
    selection = choose_steering(call, request, suffix, record)
    model = await ready_model(record, "generation")
    watch = await backend.watch(record.name, special_token_ids=model.text.special_token_ids)
    profile = await backend.steer(record.name, selection, special_token_ids=model.text.special_token_ids)
    if profile is not None:
        check_scopes(profile.steering, model.text.dialect)
    if profile is not None:
        call.use_steering(profile)
    return Target(model, profile, watch)


async def resolve_unsteered(call: Call, name: str, kind: ModelKind) -> ModelCard:
    """Resolve the model of an endpoint without steering. Raises MillmError 400 for a profile."""
    record, suffix = find_model(get_backend().registry(), name)
    call.use_model(record.name)
    check_model_allowed(call.key, record)
    if suffix is not None or call.request.headers.get(PROFILE_HEADER, "").strip():
        raise unsupported_parameter("profile", "This endpoint does not support steering.")
    return await ready_model(record, kind)


async def resolve_any(call: Call, name: str | None) -> ModelCard:
    """Resolve a model of any kind, for its tokenizer. Without a name: the default for generation, or the only one."""
    registry = get_backend().registry()
    if name is not None:
        record = find_model(registry, name)[0]
    else:
        records = registry.records()
        record = records[0] if len(records) == 1 else default_model(registry)
    call.use_model(record.name)
    check_model_allowed(call.key, record)
    if record.kind in MEDIA_KINDS:
        raise wrong_kind(record, record.kind)
    return await loaded_model(record)


def default_model(registry: Registry, kind: ModelKind = "generation", *others: ModelKind) -> ModelRecord:
    """Return the default model of a kind, or the only one, else of other kinds. Raises MillmError 400 without one."""
    found = (default_of(registry.records(), each) for each in (kind, *others))
    chosen = next((each for each in found if each is not None), None)
    if chosen is None:
        message = f"`model` is required, because this server has no default {kind} model."
        raise invalid(message, param="model", code="missing_required_parameter")
    return chosen


async def loaded_model(record: ModelRecord) -> ModelCard:
    """Return the model, loading it if necessary. Raises MillmError 404 and 503."""
    return await get_backend().registry().ready(record.name)


async def ready_model(record: ModelRecord, kind: ModelKind) -> ModelCard:
    """Like :func:`loaded_model`; also raises MillmError 400 when the model has another purpose."""
    if record.kind in MEDIA_KINDS:  # not loaded to find out
        raise wrong_kind(record, record.kind)
    model = await loaded_model(record)
    if model.kind != kind:
        raise wrong_kind(record, model.kind)
    return model


def find_media_model(call: Call, name: str, kind: MediaKind) -> ModelRecord:
    """Return the media model of that name, or the default of its kind if the name is empty. Raises MillmError.

    A model in the URL takes precedence.
    """
    registry, name = get_backend().registry(), call.deployment or name
    kinds = ("translation", "transcription") if kind == "translation" else (kind,)  # models of either can do both
    record, suffix = find_model(registry, name) if name else (default_model(registry, *kinds), None)
    call.use_model(record.name)
    check_model_allowed(call.key, record)
    if suffix is not None or call.request.headers.get(PROFILE_HEADER, "").strip():
        raise unsupported_parameter("profile", "This endpoint does not support steering.")
    if record.kind not in kinds:
        raise wrong_kind(record, record.kind)
    return record


async def loaded_media(record: ModelRecord) -> MediaCard:
    """Return the media model, loading it if necessary. Raises MillmError 501 and 503."""
    card = await get_backend().registry().ready_card(record.name)
    if not isinstance(card, MediaCard):
        raise wrong_kind(record, card.kind)
    return card


def wrong_kind(record: ModelRecord, kind: str) -> MillmError:
    article = "an" if kind[0] in "aeiou" else "a"
    message = f"The model `{record.name}` is {article} {kind} model. Use {USES[kind]}."
    return invalid(message, param="model", code="wrong_model_kind")


def find_model(registry: Registry, name: str) -> tuple[ModelRecord, str | None]:
    """Return the model of that name or alias; for ``name:profile`` also the profile behind the last colon."""
    try:
        return registry.find(name), None
    except ModelNotFoundError:
        base, colon, suffix = name.rpartition(":")
        if not (colon and base and suffix):
            raise
    try:
        return registry.find(base), suffix
    except ModelNotFoundError:
        raise ModelNotFoundError(name) from None


def is_model_allowed(key: KeyRecord | None, record: ModelRecord) -> bool:
    return key is None or not key.allowed_models or not key.allowed_models.isdisjoint((record.name, *record.aliases))


def check_model_allowed(key: KeyRecord | None, record: ModelRecord) -> None:
    if not is_model_allowed(key, record):
        message = f"This API key can't use the model `{record.name}`. Ask the key's owner to allow it."
        raise forbidden(message, code="model_not_allowed", param="model")


def choose_steering(call: Call, request: SteeredSchema, suffix: str | None, record: ModelRecord) -> SteeringSelection:
    """Return the request's own edits or profile, or a default, with its intensity; the call may override them."""
    if call.override is not None:
        call.parameters["draft"] = list(call.override.description)
        return call.override.selection
    reference = choose_profile(call, request, suffix, record)
    if request.steering is not None:
        check_inline_allowed(call.key)
        if profile_ref(call, request, suffix).reference is not None:
            raise invalid("`profile` and `steering` cannot be combined.", param="steering")
        reference = None
    intensity = 1.0 if request.steering_intensity is None else request.steering_intensity
    selection = SteeringSelection(reference, intensity, request.steering, viewer=call.owner_id)
    if request.steering_intensity is not None:
        check_intensity_allowed(call.key, intensity)
        if not selection:
            message = "`steering_intensity` requires a profile or `steering`."
            raise invalid(message, param="steering_intensity")
    return selection


def choose_profile(call: Call, request: SteeredSchema, suffix: str | None, record: ModelRecord) -> str | None:
    """Return the request's profile, else the key's default, else the model's, else None.

    Defaults are the operator's choice and need no permission; ``allowed_profiles`` limits what a request may name.
    """
    ref = profile_ref(call, request, suffix)
    if not ref.is_given:
        return (call.key.default_profile if call.key else "") or record.default_profile or None
    if ref.reference is not None:
        check_profile_allowed(call.key, ref.reference)
    return ref.reference


def requested_profile(call: Call, request: SteeredSchema) -> ProfileRef:
    """Return the profile reference of a request whose model exists."""
    _, suffix = find_model(get_backend().registry(), request.model)
    return profile_ref(call, request, suffix)


def profile_ref(call: Call, request: SteeredSchema, suffix: str | None) -> ProfileRef:
    """Return the reference from the body, the header or the model's suffix. Raises MillmError 400 if they differ."""
    header = call.request.headers.get(PROFILE_HEADER)
    refs = [ProfileRef(request.profile, is_given=True)] if request.names_profile else []
    if header is not None:
        refs.append(ProfileRef(header.strip() or None, is_given=True))
    if suffix is not None:
        refs.append(ProfileRef(suffix, is_given=True))
    if len(set(refs)) > 1:
        named = ", ".join(f"`{quote(ref.reference)}`" if ref.reference else "none" for ref in refs)
        raise invalid(f"The request names different profiles: {named}. Send only one.", param="profile")
    return refs[0] if refs else ProfileRef()


def is_profile_allowed(key: KeyRecord | None, reference: str) -> bool:
    """Return whether the key allows the profile, all of its versions or the one that is named."""
    name = reference.partition("@")[0]
    return key is None or not key.allowed_profiles or not key.allowed_profiles.isdisjoint((name, reference))


async def listed_profiles(key: KeyRecord | None, record: ModelRecord) -> dict[str, str]:
    """Return the profile references that the key may name with the model, with the labels of their versions."""
    if record.kind != "generation":
        return {}
    backend, found = get_backend(), dict[str, str]()
    taken = {name for one in backend.registry().records() for name in (one.name, *one.aliases)}
    for name, _ in await backend.published(record.name):
        for reference in _allowed_references(key, name):
            if f"{record.name}:{reference}" in taken:  # a request with this name means that model
                continue
            with suppress(MillmError):  # a version that a key allows, but that does not exist
                found[reference] = await backend.find_profile(record.name, reference)
    return found


def _allowed_references(key: KeyRecord | None, name: str) -> list[str]:
    """Return the profile's name, or the versions of it to which the key is limited."""
    if key is None or is_profile_allowed(key, name):
        return [name]
    return sorted(reference for reference in key.allowed_profiles if reference.partition("@")[0] == name)


def check_profile_allowed(key: KeyRecord | None, reference: str) -> None:
    if not is_profile_allowed(key, reference):
        message = f"This API key can't use the profile `{quote(reference)}`. Ask the key's owner to allow it."
        raise forbidden(message, code="profile_not_allowed", param="profile")


def check_inline_allowed(key: KeyRecord | None) -> None:
    """Raise MillmError 403 unless the key allows inline steering. Requests without a key are local and may."""
    if key is not None and not key.may_steer_inline:
        message = "This API key can't use inline `steering`. Use a profile, or ask the key's owner to allow it."
        raise forbidden(message, code="inline_steering_not_allowed", param="steering")


def check_intensity_allowed(key: KeyRecord | None, intensity: float) -> None:
    if key is not None and not key.min_intensity <= intensity <= key.max_intensity:
        message = (
            f"`steering_intensity` must be between {key.min_intensity:g} and {key.max_intensity:g} for this API key, "
            f"got {intensity:g}."
        )
        raise forbidden(message, code="intensity_not_allowed", param="steering_intensity")
