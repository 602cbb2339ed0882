"""The engine's side of steering: compiles profiles and inline edits of requests, and caches the SAEs' weights.

Compiled interventions and SAEs are cached, both with a limit. Evicting an SAE also evicts interventions that use it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from core.runtime import runtime
from inference.files.sources import SourceError
from inference.interventions import Intervention
from inference.steering_refs import (
    STEERING_COMPILER,
    CompiledSteering,
    PublishedVersion,
    SAERef,
    SAESource,
    SteeringRef,
    SteeringSpec,
)
from steering.composition import followed_by, scaled, without_norm_limits
from steering.errors import InlineSteeringError, InvalidProfileError, SAEUnavailableError, SteeringError
from steering.profiles.inline_edits import INLINE, num_features
from steering.profiles.snapshot import DRAFT, WATCH, num_values
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
MAX_COMPILED_VALUES = 1 << 22  # of vectors, which are kept as tensors and in the versions: 150 MiB


@dataclass(frozen=True, slots=True)
class _Cached:
    compiled: CompiledSteering
    checksums: frozenset[str]
    num_values: int


class ProfileCompiler:
    """Implements :class:`inference.steering_refs.SteeringCompiler`."""

    def __init__(
        self,
        read_sae: Callable[[SAESource], SparseAutoencoder] = load_source,
        max_sae_bytes: int = MAX_SAE_BYTES,
    ) -> None:
        self._read_sae = read_sae
        self._saes = SAECache(max_sae_bytes, self._forget)
        self._cached: OrderedDict[Hashable, _Cached] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, spec: SteeringSpec) -> CompiledSteering | None:
        """Return the cached result, at once."""
        key = spec.key
        with self._lock:
            cached = self._cached.get(key)
            if cached is None:
                return None
            self._cached.move_to_end(key)
            return cached.compiled

    def compile(self, spec: SteeringSpec) -> CompiledSteering:
        """Return the result, compiled if needed (slow).

        Raise SAEUnavailableError, InlineSteeringError, InvalidProfileError or PolicyConflictError.
        """
        found = self.find(spec)
        if found is not None:
            return found
        if _is_single(spec):
            return self._keep(spec, self._compile(spec.versions[0], spec.skip_token_ids))
        singles = [SteeringSpec((version,), skip_token_ids=spec.skip_token_ids) for version in spec.versions]
        parts = [self.compile(single).intervention for single in singles]
        num_own = len(parts) - spec.num_policies
        parts[num_own:] = map(without_norm_limits, parts[num_own:])
        return self._keep(spec, _chained(parts, spec.intensity))

    def find_reader(self, sae: SAERef) -> SparseAutoencoder | None:
        """Return the weights if they are loaded, at once."""
        return self._saes.find(sae.key)

    def reader(self, sae: SAERef) -> SparseAutoencoder:
        """Return the weights, loaded if needed (slow). Raise SAEUnavailableError."""
        return self.load_reader(sae.source)

    def load_reader(self, source: SAESource) -> SparseAutoencoder:
        """Like :meth:`sae`, for requests: raise SAEUnavailableError for every failure."""
        try:
            return self.sae(source)
        except (InvalidSAEError, SourceError, OSError) as error:
            logger.error("The SAE %s could not be loaded for reading activations.", source.name, exc_info=error)
            message = f"The SAE `{source.name}` is not available on this server; ask its operator to register it again."
            raise SAEUnavailableError(message, param="sae") from error

    def sae(self, source: SAESource) -> SparseAutoencoder:
        """Return the SAE, loading it if needed (slow). Raises InvalidSAEError or SourceError."""
        return self._saes.get(source.checksum, partial(self._load, source))

    def load_sae(self, source: SAESource) -> None:
        self.sae(source)

    def loaded_bytes(self, checksum: str) -> int | None:
        """Return the memory of the SAE's weights on all devices, or None if it is not loaded."""
        return self._saes.bytes_of(checksum)

    def unload_sae(self, checksum: str) -> None:
        """Evict the SAE and everything compiled with it. Running requests keep their weights until they end."""
        self._saes.remove(checksum)

    def _keep(self, spec: SteeringSpec, intervention: Intervention) -> CompiledSteering:
        ref = SteeringRef(
            intervention.fingerprint,
            spec,
            intervention.required_segments,
            intervention.depends_on_segments,
            intervention.program("prompt"),
        )
        compiled = CompiledSteering(ref, intervention)
        checksums = frozenset(source.checksum for version in spec.versions for source in version.saes)
        with self._lock:
            self._cached.pop(spec.key, None)
            self._cached[spec.key] = _Cached(compiled, checksums, sum(map(num_values, spec.versions)))
            while len(self._cached) > 1 and self._is_full():
                self._cached.popitem(last=False)
        return compiled

    def _is_full(self) -> bool:
        size = sum(cached.num_values for cached in self._cached.values())
        return len(self._cached) > MAX_COMPILED or size > MAX_COMPILED_VALUES

    def _compile(self, version: PublishedVersion, special_token_ids: frozenset[int]) -> Intervention:
        from steering.compiler import compile_edits  # torch is imported with the first profile, not with Django

        try:
            saes = {source.checksum: self.sae(source) for source in version.saes}
            return compile_edits(parse_edits(version.edits), saes, special_token_ids)
        except (InvalidSAEError, SourceError, InvalidSpecError, KeyError) as error:
            raise _not_compiled(version, error) from error

    def _load(self, source: SAESource) -> SparseAutoencoder:
        sae = self._read_sae(source)
        if sae.key != source.checksum:
            raise InvalidSAEError(changed_since_registered(source.name))
        return sae

    def _forget(self, checksum: str) -> None:
        with self._lock:
            gone = [key for key, cached in self._cached.items() if checksum in cached.checksums]
            for key in gone:
                del self._cached[key]


def _is_single(spec: SteeringSpec) -> bool:
    return len(spec.versions) == 1 and not spec.num_policies and spec.intensity == 1


def _not_compiled(version: PublishedVersion, error: Exception) -> SteeringError:
    """Blame the client for invalid inline edits and drafts, and the server for a published version."""
    if version.name == INLINE and isinstance(error, InvalidSpecError):
        return InlineSteeringError.from_spec(error, num_features(version))
    if version.name.endswith(DRAFT) and isinstance(error, InvalidSpecError):
        return InvalidProfileError.from_spec(error)
    logger.error("The profile %s could not be compiled.", version.label, exc_info=error)
    if isinstance(error, InvalidSpecError):
        return SAEUnavailableError(f"The profile `{version.label}` cannot be applied: {error}")
    needed = f"the profile `{version.label}` was published with"
    if not version.number:
        needed = f"{'the rule ' if version.name.startswith(WATCH) else ''}`{version.label}` needs"
    return SAEUnavailableError(
        f"The SAE that {needed} is not available on this server; ask its operator to register it again."
    )


def _chained(parts: Sequence[Intervention], intensity: float) -> Intervention:
    """Scale the first intervention, and apply the others after it."""
    return reduce(followed_by, parts[1:], scaled(parts[0], intensity))


def get_compiler() -> ProfileCompiler:
    """Return the compiler of this process."""
    compiler = runtime.get(STEERING_COMPILER)
    assert isinstance(compiler, ProfileCompiler), "the app installs it"
    return compiler
