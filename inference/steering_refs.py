"""References to steering and SAEs in requests: plain data, without weights.

The engine's side compiles a :class:`SteeringSpec` once and returns a :class:`SteeringRef`, which requests carry.
:data:`STEERING_COMPILER` holds the compiler, which the app :mod:`steering` installs. The server of an engine in another
process asks that engine instead.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from core.runtime import Service, runtime
from inference.interventions import FeatureDecoder, FeatureReader, Intervention
from inference.segments import Segment


@dataclass(frozen=True, slots=True)
class SAESource:
    """The location of an SAE's weights."""

    name: str
    checksum: str
    source: str
    revision: str
    subfolder: str


@dataclass(frozen=True, slots=True)
class SAERef:
    """An SAE with features 0 to ``d_sae - 1``, identified by its source."""

    source: SAESource
    d_sae: int

    @property
    def key(self) -> str:
        """The checksum, which identifies the weights."""
        return self.source.checksum


@runtime_checkable
class UnloadedReader(FeatureReader, Protocol):
    """A reader of a request that names its SAE. On the engine's side, the client replaces it by a loaded one."""

    @property
    def sae(self) -> SAERef: ...

    def loaded(self, sae: FeatureDecoder) -> FeatureReader:
        """Return the reader with the weights of its SAE."""


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A profile version in requests. ``edits`` is the JSON of :mod:`steering.spec.rendering`; drafts have number 0."""

    name: str
    number: int
    fingerprint: str
    edits: object
    saes: tuple[SAESource, ...]

    @property
    def label(self) -> str:
        return f"{self.name}@{self.number}" if self.number else self.name


@dataclass(frozen=True, slots=True)
class SteeringSpec:
    """Versions to apply in order: ``intensity`` scales the first one, and the last ``num_policies`` are policies.

    Tokens whose id is in ``skip_token_ids`` are steered only by edits that include special tokens.
    """

    versions: tuple[PublishedVersion, ...]
    num_policies: int = 0
    intensity: float = 1.0
    skip_token_ids: frozenset[int] = frozenset()

    @property
    def key(self) -> Hashable:
        """Identifies the compiled result."""
        fingerprints = tuple(version.fingerprint for version in self.versions)
        return fingerprints, self.num_policies, self.intensity, self.skip_token_ids


@dataclass(frozen=True, slots=True)
class SteeringRef:
    """Compiled steering by its ``fingerprint``. The engine's side compiles ``spec`` again if it has dropped the result.

    ``required_segments`` and ``depends_on_segments`` are those of the :class:`~inference.interventions.Intervention`.
    ``prompt_program`` is its program of prompts, on which the keys of their cached blocks depend.
    """

    fingerprint: str
    spec: SteeringSpec
    required_segments: frozenset[Segment] = frozenset()
    depends_on_segments: bool = False
    prompt_program: str = ""


@dataclass(frozen=True, slots=True)
class CompiledSteering:
    """The compiled result on the engine's side: the data for requests, and the intervention with the weights."""

    ref: SteeringRef
    intervention: Intervention


class LoadedSAEs(Protocol):
    """The SAEs that the engine's side keeps in memory, by their checksums. Thread-safe."""

    def load_sae(self, source: SAESource) -> None:
        """Load an SAE (slow). Raise MillmError if it is not available."""

    def unload_sae(self, checksum: str) -> None:
        """Free an SAE. Running requests keep its weights until they end."""

    def loaded_bytes(self, checksum: str) -> int | None:
        """Return the memory of the SAE's weights, or None if it is not loaded."""


class SteeringCompiler(LoadedSAEs, Protocol):
    """Compiles steering and loads SAEs, with bounded caches. Thread-safe."""

    def find(self, spec: SteeringSpec) -> CompiledSteering | None:
        """Return the cached result, at once."""

    def compile(self, spec: SteeringSpec) -> CompiledSteering:
        """Return the result, compiled if needed (slow). Raise MillmError, as the app :mod:`steering` defines them."""

    def find_reader(self, sae: SAERef) -> FeatureDecoder | None:
        """Return the weights if they are loaded, at once."""

    def reader(self, sae: SAERef) -> FeatureDecoder:
        """Return the weights, loaded if needed (slow). Raise MillmError if they are not available."""


def _no_compiler() -> SteeringCompiler:
    raise RuntimeError('No steering compiler is installed in this process: add the app "steering" to INSTALLED_APPS.')


STEERING_COMPILER = Service(_no_compiler)
ENGINE_SAES: Service[LoadedSAEs] = Service(_no_compiler)  # installed if the engine is in another process


def loaded_saes() -> LoadedSAEs:
    """Return the SAEs of the engine's side: those of this process's compiler, if the engine is here."""
    return runtime.find(ENGINE_SAES) or runtime.get(STEERING_COMPILER)
