"""Published profiles as requests use them: found without the database, compiled once, weights shared."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from inference.interventions import Intervention
from inference.records import model_table
from inference.sources import SourceError
from steering.errors import ProfileModelMismatchError, ProfileNotFoundError, SAEUnavailableError
from steering.published import PublishedProfiles, PublishedVersion, SAESource, published_profiles
from steering.sae_cache import SAECache
from steering.sae_source import load_source
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
class ResolvedProfile:
    """A published version, ready to be applied."""

    name: str
    number: int
    fingerprint: str
    intervention: Intervention

    @property
    def label(self) -> str:
        return f"{self.name}@{self.number}"


@dataclass(frozen=True, slots=True)
class _Compiled:
    intervention: Intervention
    checksums: frozenset[str]


class ProfileResolver:
    """Finds versions through ``find_model`` (name or alias to primary key) and compiles them.

    Compiled interventions are shared by fingerprint. When an SAE is forgotten, so are those that hold its weights.
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
        """The version that ``reference`` (``name`` or ``name@number``) means for the model.

        Raises ProfileNotFoundError, ProfileModelMismatchError or SAEUnavailableError.
        """
        profiles = await published_profiles.aget()
        version = find_version(profiles, self._find_model(model), model, reference)
        intervention = self._find_compiled(version, special_token_ids)
        if intervention is None:
            intervention = await asyncio.to_thread(self._compile, version, special_token_ids)
        return ResolvedProfile(version.name, version.number, version.fingerprint, intervention)

    def sae(self, source: SAESource) -> SparseAutoencoder:
        """The SAE, shared with the profiles that use it; InvalidSAEError or SourceError. Slow at first."""
        return self._saes.get(source.checksum, partial(self._load, source))

    def newest(self, model: str) -> list[tuple[str, int]]:
        """Name and newest number of the model's published profiles."""
        return published_profiles.get().newest(self._find_model(model))

    def _find_compiled(self, version: PublishedVersion, special_token_ids: frozenset[int]) -> Intervention | None:
        key = (version.fingerprint, special_token_ids)
        with self._lock:
            compiled = self._compiled.get(key)
            if compiled is None:
                return None
            self._compiled.move_to_end(key)
            return compiled.intervention

    def _compile(self, version: PublishedVersion, special_token_ids: frozenset[int]) -> Intervention:
        from steering.compiler import compile_edits  # torch is loaded with the first profile, not with Django

        try:
            saes = {
                source.checksum: self._saes.get(source.checksum, partial(self._load, source)) for source in version.saes
            }
            intervention = compile_edits(parse_edits(version.edits), saes, special_token_ids)
        except (InvalidSAEError, SourceError, InvalidSpecError, KeyError) as error:
            logger.exception("The profile %s could not be compiled.", version.label)
            raise SAEUnavailableError(
                f"The SAE that the profile {version.label} was published with is not available on this server;"
                " ask its operator to register it again."
            ) from error
        with self._lock:
            self._compiled[version.fingerprint, special_token_ids] = _Compiled(intervention, frozenset(saes))
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return intervention

    def _load(self, source: SAESource) -> SparseAutoencoder:
        sae = self._load_sae(source)
        if sae.key != source.checksum:
            raise InvalidSAEError(f"The files of the SAE {source.name} have changed since it was registered.")
        return sae

    def _forget(self, checksum: str) -> None:
        with self._lock:
            gone = [key for key, compiled in self._compiled.items() if checksum in compiled.checksums]
            for key in gone:
                del self._compiled[key]


def find_version(profiles: PublishedProfiles, model: int, model_name: str, reference: str) -> PublishedVersion:
    """The newest version of a name, or the one with the number after “@”."""
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
    if number is None:
        return versions[max(versions)]
    if int(number) not in versions:
        raise ProfileNotFoundError(f"The profile {name} has no version {number}; its newest is {max(versions)}.")
    return versions[int(number)]


@cache
def get_resolver() -> ProfileResolver:
    """This process' resolver."""
    return ProfileResolver(lambda name: model_table.get().find(name).pk)


async def resolve(model: str, reference: str, *, special_token_ids: frozenset[int]) -> ResolvedProfile:
    """See :meth:`ProfileResolver.resolve`."""
    return await get_resolver().resolve(model, reference, special_token_ids=special_token_ids)


def published(model: str) -> list[tuple[str, int]]:
    """See :meth:`ProfileResolver.newest`."""
    return get_resolver().newest(model)
