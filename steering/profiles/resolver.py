"""Resolves what a request names to a compiled intervention, without the database; SAE weights are shared."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import TYPE_CHECKING

from inference.files.sources import SourceError
from inference.interventions import Intervention
from inference.registry.records import model_table
from inference.text.dialects.dialect import Dialect
from steering.composition import followed_by, scaled, without_norm_limits
from steering.errors import (
    InlineSteeringError,
    InvalidProfileError,
    ProfileArchivedError,
    ProfileModelMismatchError,
    ProfileNotFoundError,
    SAEUnavailableError,
    ScopeNotSupportedError,
    SteeringError,
)
from steering.profiles.inline_edits import INLINE, find_inline, read_inline
from steering.profiles.snapshot import DRAFT, WATCH, PublishedProfiles, PublishedVersion, SAESource, published_profiles
from steering.sae_registry.cache import SAECache
from steering.sae_registry.files import changed_since_registered, load_source
from steering.saes.errors import InvalidSAEError
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits

if TYPE_CHECKING:
    from steering.saes.sae import SparseAutoencoder

logger = logging.getLogger(__name__)

MAX_SAE_BYTES = 8 << 30
MAX_COMPILED = 1024
_REFERENCE = re.compile(r"([-\w]{1,100})(?:@(\d{1,9}))?", re.ASCII)
_MAX_SHOWN = 120


@dataclass(frozen=True, slots=True)
class SteeringSelection:
    """The steering that a request selects: a published version, inline edits (JSON), or nothing; and its intensity.

    ``draft`` is the unsaved draft of a form on this server.
    """

    reference: str | None = None
    intensity: float = 1.0
    inline: object = None
    draft: PublishedVersion | None = None

    def __bool__(self) -> bool:
        return self.reference is not None or self.inline is not None or self.draft is not None


@dataclass(frozen=True, slots=True)
class ResolvedProfile:
    """Everything that steers a request, compiled.

    ``name`` is empty if only ``policies`` (name@number, in order) apply, and ``number`` is 0 for inline edits.
    ``fingerprint`` identifies the whole; without policies and with intensity 1 it is that of the version.
    """

    name: str
    number: int
    fingerprint: str
    intervention: Intervention
    policies: tuple[str, ...] = ()
    intensity: float = 1.0

    @property
    def label(self) -> str:
        """name@number, or the name alone for inline edits, drafts, and policies without a profile."""
        return f"{self.name}@{self.number}" if self.number else self.name


@dataclass(frozen=True, slots=True)
class _Compiled:
    intervention: Intervention
    checksums: frozenset[str]


class ProfileResolver:
    """Finds versions through ``find_model`` (name or alias to primary key) and compiles them.

    Compiled interventions are cached by fingerprint. Evicting an SAE also evicts those that hold its weights.
    """

    def __init__(
        self,
        find_model: Callable[[str], int],
        load_sae: Callable[[SAESource], SparseAutoencoder] = load_source,
        max_sae_bytes: int = MAX_SAE_BYTES,
    ) -> None:
        self._find_model = find_model
        self._load_sae = load_sae
        self._saes = SAECache(max_sae_bytes, self._forget)
        self._compiled: OrderedDict[tuple[str, frozenset[int]], _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    async def resolve(self, model: str, reference: str, *, special_token_ids: frozenset[int]) -> ResolvedProfile:
        """Return the version that ``reference`` (``name`` or ``name@number``) denotes for the model.

        Raises ProfileNotFoundError, ProfileModelMismatchError or SAEUnavailableError.
        """
        profiles = await published_profiles.aget()
        version = find_version(profiles, self._find_model(model), model, reference)
        intervention = await self._intervention(version, special_token_ids)
        return ResolvedProfile(version.name, version.number, version.fingerprint, intervention)

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
        versions = [version for version in (own, *policies) if version is not None]
        if not versions:
            return None
        key = _chain_key(versions, selection.intensity if own else 1.0, len(policies))
        intervention = self._find_compiled(key, special_token_ids)
        if intervention is None:
            parts = [await self._intervention(version, special_token_ids) for version in versions]
            num_own = len(versions) - len(policies)
            parts[num_own:] = map(without_norm_limits, parts[num_own:])
            intervention = await asyncio.to_thread(_chained, parts, selection.intensity if own else 1.0)
            checksums = frozenset(source.checksum for version in versions for source in version.saes)
            self._keep(key, special_token_ids, _Compiled(intervention, checksums))
        return ResolvedProfile(
            own.name if own else "",
            own.number if own else 0,
            intervention.fingerprint,
            intervention,
            tuple(policy.label for policy in policies),
            selection.intensity if own else 1.0,
        )

    async def compiled(self, version: PublishedVersion, *, special_token_ids: frozenset[int]) -> Intervention:
        """Compile one version, without intensity and policies. Raises SAEUnavailableError."""
        return await self._intervention(version, special_token_ids)

    def sae(self, source: SAESource) -> SparseAutoencoder:
        """Return the SAE, loading it if needed (slow). Raises InvalidSAEError or SourceError."""
        return self._saes.get(source.checksum, partial(self._load, source))

    def loaded_bytes(self, checksum: str) -> int | None:
        """Return the memory of the SAE's weights on all devices, or None if it is not loaded."""
        return self._saes.bytes_of(checksum)

    def unload_sae(self, checksum: str) -> None:
        """Evict the SAE and everything compiled with it. Running requests keep their weights until they end."""
        self._saes.remove(checksum)

    def newest(self, model: str) -> list[tuple[str, int]]:
        """Return name and newest number of the model's published profiles."""
        return published_profiles.get().newest(self._find_model(model))

    async def _own_version(
        self, profiles: PublishedProfiles, pk: int, model: str, selection: SteeringSelection
    ) -> PublishedVersion | None:
        if selection.draft is not None:
            return selection.draft
        if selection.inline is not None:
            known = await find_inline(pk, selection.inline)
            return known or await asyncio.to_thread(read_inline, pk, model, selection.inline)
        return None if selection.reference is None else find_version(profiles, pk, model, selection.reference)

    async def _intervention(self, version: PublishedVersion, special_token_ids: frozenset[int]) -> Intervention:
        found = self._find_compiled(version.fingerprint, special_token_ids)
        if found is not None:
            return found
        return await asyncio.to_thread(self._compile, version, special_token_ids)

    def _find_compiled(self, fingerprint: str, special_token_ids: frozenset[int]) -> Intervention | None:
        key = (fingerprint, special_token_ids)
        with self._lock:
            compiled = self._compiled.get(key)
            if compiled is None:
                return None
            self._compiled.move_to_end(key)
            return compiled.intervention

    def _keep(self, fingerprint: str, special_token_ids: frozenset[int], compiled: _Compiled) -> None:
        with self._lock:
            self._compiled[fingerprint, special_token_ids] = compiled
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)

    def _compile(self, version: PublishedVersion, special_token_ids: frozenset[int]) -> Intervention:
        from steering.compiler import compile_edits  # torch is imported with the first profile, not with Django

        try:
            saes = {
                source.checksum: self._saes.get(source.checksum, partial(self._load, source)) for source in version.saes
            }
            intervention = compile_edits(parse_edits(version.edits), saes, special_token_ids)
        except (InvalidSAEError, SourceError, InvalidSpecError, KeyError) as error:
            raise _not_compiled(version, error) from error
        self._keep(version.fingerprint, special_token_ids, _Compiled(intervention, frozenset(saes)))
        return intervention

    def _load(self, source: SAESource) -> SparseAutoencoder:
        sae = self._load_sae(source)
        if sae.key != source.checksum:
            raise InvalidSAEError(changed_since_registered(source.name))
        return sae

    def _forget(self, checksum: str) -> None:
        with self._lock:
            gone = [key for key, compiled in self._compiled.items() if checksum in compiled.checksums]
            for key in gone:
                del self._compiled[key]


def _not_compiled(version: PublishedVersion, error: Exception) -> SteeringError:
    """Blame the client for invalid inline edits and drafts, and the server for a published version."""
    if version.name == INLINE and isinstance(error, InvalidSpecError):
        return InlineSteeringError.from_spec(error)
    if version.name.endswith(DRAFT) and isinstance(error, InvalidSpecError):
        return InvalidProfileError.from_spec(error)
    logger.error("The profile %s could not be compiled.", version.label, exc_info=error)
    if isinstance(error, InvalidSpecError):
        return SAEUnavailableError(f"The profile {version.label} cannot be applied: {error}")
    needed = f"the profile {version.label} was published with"
    if not version.number:
        needed = f"{'the rule ' if version.name.startswith(WATCH) else ''}{version.label} needs"
    return SAEUnavailableError(
        f"The SAE that {needed} is not available on this server; ask its operator to register it again."
    )


def _chain_key(versions: Sequence[PublishedVersion], intensity: float, num_policies: int) -> str:
    """Return the cache key of versions applied in order; distinct from the fingerprint of any single version."""
    return f"{intensity!r} {num_policies} " + " ".join(version.fingerprint for version in versions)


def _chained(parts: Sequence[Intervention], intensity: float) -> Intervention:
    """Scale the first intervention, and apply the others after it."""
    return reduce(followed_by, parts[1:], scaled(parts[0], intensity))


def find_version(profiles: PublishedProfiles, model: int, model_name: str, reference: str) -> PublishedVersion:
    """Return the newest version of a name, or the one with the number after "@"."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        shown = reference if len(reference) <= _MAX_SHOWN else reference[:_MAX_SHOWN] + "…"
        raise ProfileNotFoundError(f"{shown!r} is not a profile; expected is a name, or name@version.")
    name, number = match[1], match[2]
    versions = profiles.versions(model, name)
    if not versions and profiles.is_of_other_model(model, name):
        raise ProfileModelMismatchError(f"The profile {name} was made for another model than {model_name}.")
    if not versions:
        raise ProfileNotFoundError(f"The model {model_name} has no published profile {name}.")
    if profiles.is_archived(model, name):
        raise ProfileArchivedError(f"The profile {name} is archived and cannot be used; ask its owner to take it back.")
    if number is None:
        return versions[max(versions)]
    if int(number) not in versions:
        raise ProfileNotFoundError(f"The profile {name} has no version {number}; its newest is {max(versions)}.")
    return versions[int(number)]


async def find_profile(model: str, reference: str) -> str:
    """Return ``name@number`` of the version that ``reference`` denotes. Raises what :func:`resolve` raises."""
    profiles = await published_profiles.aget()
    return find_version(profiles, model_table.get().find(model).pk, model, reference).label


@cache
def get_resolver() -> ProfileResolver:
    """Return the resolver of this process."""
    return ProfileResolver(lambda name: model_table.get().find(name).pk)


async def resolve(model: str, reference: str, *, special_token_ids: frozenset[int]) -> ResolvedProfile:
    """See :meth:`ProfileResolver.resolve`."""
    return await get_resolver().resolve(model, reference, special_token_ids=special_token_ids)


async def steer(
    model: str, selection: SteeringSelection, *, special_token_ids: frozenset[int]
) -> ResolvedProfile | None:
    """See :meth:`ProfileResolver.steer`."""
    return await get_resolver().steer(model, selection, special_token_ids=special_token_ids)


def published(model: str) -> list[tuple[str, int]]:
    """See :meth:`ProfileResolver.newest`."""
    return get_resolver().newest(model)


def check_scopes(intervention: Intervention, dialect: Dialect) -> None:
    """Raise ScopeNotSupportedError if the model's dialect has no segment that an edit is limited to."""
    if "thinking" in intervention.required_segments and dialect.thinking is None:
        raise ScopeNotSupportedError(
            "The profile has an edit with the scope “thinking”, and this model's chat template knows no marks of"
            " reasoning: it could never act. Use another scope."
        )
