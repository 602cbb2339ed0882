"""Resolves the profile of a request to compiled steering, without using the database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache

from inference.client import get_client
from inference.registry.records import model_table
from inference.steering_refs import PublishedVersion, SteeringRef, SteeringSpec
from inference.text.dialects.dialect import Dialect
from steering.errors import (
    ProfileArchivedError,
    ProfileModelMismatchError,
    ProfileNotFoundError,
    ScopeNotSupportedError,
)
from steering.profiles.auto_strength import AutoStrength, auto_strengths
from steering.profiles.inline_edits import find_inline, read_inline
from steering.profiles.snapshot import PublishedProfiles, published_profiles

Compile = Callable[[SteeringSpec], Awaitable[SteeringRef]]
_REFERENCE = re.compile(r"([-\w]{1,100})(?:@(\d{1,9}))?", re.ASCII)
_MAX_SHOWN = 120


@dataclass(frozen=True, slots=True)
class SteeringSelection:
    """The steering that a request selects: a published version, inline edits (JSON), or nothing; and its intensity.

    ``draft`` is the unsaved draft of a form on this server. ``viewer`` is the user whose vector sets inline edits may
    name; None may name all, such as requests without a key, which come from this machine.
    """

    reference: str | None = None
    intensity: float = 1.0
    inline: object = None
    draft: PublishedVersion | None = None
    viewer: int | None = None

    def __bool__(self) -> bool:
        return self.reference is not None or self.inline is not None or self.draft is not None


@dataclass(frozen=True, slots=True)
class ResolvedProfile:
    """Everything that steers a request, compiled on the engine's side.

    ``name`` is empty if only ``policies`` (name@number, in order) apply, and ``number`` is 0 for inline edits.
    ``auto``: the numbers that strengths "auto" of inline edits stood for.
    """

    name: str
    number: int
    steering: SteeringRef
    policies: tuple[str, ...] = ()
    intensity: float = 1.0
    auto: tuple[AutoStrength, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Identifies everything that is applied; without policies and with intensity 1 it is that of the version."""
        return self.steering.fingerprint

    @property
    def label(self) -> str:
        """``name@number``, or the name alone for inline edits, drafts, and policies without a profile."""
        return f"{self.name}@{self.number}" if self.number else self.name


class ProfileResolver:
    """Finds versions through ``find_model`` (name or alias to primary key), and compiles them on the engine's side."""

    def __init__(self, find_model: Callable[[str], int], compile_steering: Compile) -> None:
        self._find_model = find_model
        self._compile = compile_steering

    async def resolve(self, model: str, reference: str, *, special_token_ids: frozenset[int]) -> ResolvedProfile:
        """Return the version that ``reference`` (``name`` or ``name@number``) denotes for the model.

        Raises ProfileNotFoundError, ProfileModelMismatchError or SAEUnavailableError.
        """
        profiles = await published_profiles.aget()
        version = find_version(profiles, self._find_model(model), model, reference)
        steering = await self.compiled(version, special_token_ids=special_token_ids)
        return ResolvedProfile(version.name, version.number, steering)

    async def steer(
        self, model: str, selection: SteeringSelection, *, special_token_ids: frozenset[int]
    ) -> ResolvedProfile | None:
        """Return the request's own steering followed by the model's policies, or None if nothing steers.

        Raises what :meth:`resolve` raises, InlineSteeringError and PolicyConflictError.
        """
        profiles = await published_profiles.aget()
        pk = self._find_model(model)
        own = await self._own_version(profiles, pk, model, selection)
        policies = profiles.policies.get(pk, ())
        versions = policies if own is None else (own, *policies)
        if not versions:
            return None
        intensity = selection.intensity if own else 1.0
        steering = await self._compile(SteeringSpec(versions, len(policies), intensity, special_token_ids))
        return ResolvedProfile(
            own.name if own else "",
            own.number if own else 0,
            steering,
            tuple(policy.label for policy in policies),
            intensity,
            _auto(selection.inline, own),
        )

    async def compiled(self, version: PublishedVersion, *, special_token_ids: frozenset[int]) -> SteeringRef:
        """Compile one version, without intensity and policies. Raises SAEUnavailableError."""
        return await self._compile(SteeringSpec((version,), skip_token_ids=special_token_ids))

    async def newest(self, model: str) -> list[tuple[str, int]]:
        """Return name and newest number of the model's published profiles."""
        return (await published_profiles.aget()).newest(self._find_model(model))

    async def _own_version(
        self, profiles: PublishedProfiles, pk: int, model: str, selection: SteeringSelection
    ) -> PublishedVersion | None:
        if selection.draft is not None:
            return selection.draft
        if selection.inline is not None:
            known = await find_inline(pk, selection.inline)
            return known or await asyncio.to_thread(read_inline, pk, model, selection.inline, selection.viewer)
        return None if selection.reference is None else find_version(profiles, pk, model, selection.reference)


def _auto(inline: object, version: PublishedVersion | None) -> tuple[AutoStrength, ...]:
    if version is None or not isinstance(inline, dict):
        return ()
    return auto_strengths([*inline.get("features", ()), *inline.get("vectors", ())], version.edits)


def find_version(profiles: PublishedProfiles, model: int, model_name: str, reference: str) -> PublishedVersion:
    """Return the latest version of a name, or the one with the number after "@"."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        shown = reference if len(reference) <= _MAX_SHOWN else reference[:_MAX_SHOWN] + "…"
        raise ProfileNotFoundError(f"{shown!r} is not a valid profile reference; use a name, or name@version.")
    name, number = match[1], match[2]
    versions = profiles.versions(model, name)
    if not versions and profiles.is_of_other_model(model, name):
        raise ProfileModelMismatchError(f"The profile `{name}` does not belong to the model `{model_name}`.")
    if not versions:
        raise ProfileNotFoundError(f"The model `{model_name}` has no published profile `{name}`.")
    if profiles.is_archived(model, name):
        raise ProfileArchivedError(
            f"The profile `{name}` is archived and cannot be used; ask its owner to unarchive it."
        )
    if number is None:
        return versions[max(versions)]
    if int(number) not in versions:
        raise ProfileNotFoundError(
            f"The profile `{name}` has no version {number}; its latest version is {max(versions)}."
        )
    return versions[int(number)]


async def find_profile(model: str, reference: str) -> str:
    """Return ``name@number`` of the version that ``reference`` denotes. Raises what :func:`find_version` raises."""
    profiles = await published_profiles.aget()
    return find_version(profiles, model_table.get().find(model).pk, model, reference).label


@cache
def get_resolver() -> ProfileResolver:
    """Return the resolver of this process."""
    return ProfileResolver(lambda name: model_table.get().find(name).pk, compile_in_engine)


async def compile_in_engine(spec: SteeringSpec) -> SteeringRef:
    """Compile through the engine's client."""
    return await get_client().compile(spec)


async def steer(
    model: str, selection: SteeringSelection, *, special_token_ids: frozenset[int]
) -> ResolvedProfile | None:
    """See :meth:`ProfileResolver.steer`."""
    return await get_resolver().steer(model, selection, special_token_ids=special_token_ids)


async def list_published(model: str) -> list[tuple[str, int]]:
    """See :meth:`ProfileResolver.newest`."""
    return await get_resolver().newest(model)


def check_scopes(steering: SteeringRef, dialect: Dialect) -> None:
    """Raise ScopeNotSupportedError if the model's dialect has no segment that an edit is limited to."""
    if "thinking" in steering.required_segments and dialect.thinking is None:
        raise ScopeNotSupportedError(
            "The profile has an edit with the scope `thinking`, but this model's chat template has no thinking "
            "segment, so the edit could never apply. Use another scope."
        )
