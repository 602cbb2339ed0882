"""Captures: activations that a request asks for, and their values. The counterpart of :mod:`inference.interventions`.

No Django here, and no torch at run time. A :class:`CaptureSpec` names a site, before or after the steering there, the
tokens, and what to capture of the residual ``h`` (``[d]``, float32) at each of them: ``h`` itself, its products with
vectors, some features of an SAE, or its strongest ones. The values of the selected tokens arrive one by one while they
are computed, or pooled at the end.

Requests name the SAE by an :class:`~inference.steering_refs.SAERef`; the client replaces it by the weights on the
engine's side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from inference.interventions import FeatureEncoder, FeatureReader, Phase, Site
from inference.steering_refs import SAERef

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

R = TypeVar("R", bound=FeatureReader)
Stage = Literal["pre", "post"]
Pooling = Literal["none", "mean", "max", "last"]
MAX_VALUES = 1 << 24  # values of all captures of a sequence: 64 MiB


@dataclass(frozen=True, slots=True)
class Residuals:
    """Capture the residual itself."""


@dataclass(frozen=True, slots=True)
class FeatureValues:
    """Capture exact activations of some features, in their order.

    ``above`` has one threshold per feature: only tokens are reported at which a feature exceeds its own.
    """

    reader: SAERef | FeatureReader
    features: tuple[int, ...]
    above: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TopFeatures:
    """Capture the ``count`` strongest features of each token, strongest first (a full encode). Not with pooling."""

    reader: SAERef | FeatureEncoder
    count: int


@dataclass(frozen=True, slots=True)
class AllFeatures:
    """Capture the activations of all features (a full encode). Only with pooling, because an SAE has many."""

    reader: SAERef | FeatureEncoder


@dataclass(frozen=True, slots=True)
class Projections:
    """Capture the products of the residual with ``count`` vectors, not normalised, in their order.

    ``vectors``: their values one after the other, as little-endian float32. ``above`` has one threshold per vector:
    only tokens are reported at which a product exceeds its own.
    """

    vectors: bytes
    count: int
    above: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        return len(self.vectors) // (4 * self.count)


def loaded(reader: SAERef | R) -> R:
    """Return the weights of a capture on the engine's side."""
    assert not isinstance(reader, SAERef), "the client loads the SAEs that a request names"
    return reader


Probe = Residuals | Projections | FeatureValues | TopFeatures | AllFeatures


@dataclass(frozen=True, slots=True)
class Span:
    """Places ``start <= place < end`` in a sequence. Place 0 is the first token of the prompt."""

    start: int = 0
    end: int | None = None


EVERYWHERE = (Span(),)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSpec:
    """What to capture at a site. ``stage``: before or after steering at this site; edits of earlier layers always show.

    Selects the tokens of ``phase`` in one of ``spans``, except those whose id is in ``skip_token_ids``. The last
    generated token is never run through the model, so it cannot be captured. Tokens in the prefix cache are recomputed
    for the capture, unless it ``passes_over_cached`` ones.
    """

    site: Site
    probe: Probe = Residuals()
    stage: Stage = "post"
    phase: Phase = "both"
    spans: tuple[Span, ...] = EVERYWHERE
    pooling: Pooling = "none"
    skip_token_ids: frozenset[int] = frozenset()
    passes_over_cached: bool = False

    def places(self, start: int, end: int, num_prompt: int) -> list[int]:
        """Return the selected places in ``start <= place < end``, ascending, special tokens included."""
        return sorted(
            {place for first, last in self._ranges(num_prompt, end) for place in range(max(first, start), last)}
        )

    def first_from(self, place: int, num_prompt: int, num_tokens: int) -> int:
        """Return the first selected place from ``place`` on; ``num_tokens`` if there is none."""
        ranges = self._ranges(num_prompt, num_tokens)
        return min((max(place, start) for start, end in ranges if max(place, start) < end), default=num_tokens)

    def num_places(self, num_prompt: int, num_tokens: int) -> int:
        """Return the number of places, at most, in a sequence of that length. Overlapping spans count repeatedly."""
        return sum(max(0, end - start) for start, end in self._ranges(num_prompt, num_tokens))

    def _ranges(self, num_prompt: int, num_tokens: int) -> Iterator[tuple[int, int]]:
        first = num_prompt if self.phase == "generation" else 0
        last = min(num_prompt, num_tokens) if self.phase == "prompt" else num_tokens
        for span in self.spans:
            yield max(first, span.start), last if span.end is None else min(last, span.end)


@dataclass(frozen=True, slots=True, eq=False)
class ActivationCapture:
    """The values of one capture. ``number`` is the index of its spec in the request.

    ``values`` has a row for each of ``places``, ascending. A pooled capture has one row for ``num_tokens`` tokens, and
    ``places`` is None. ``features`` are the indices of :class:`TopFeatures`, ``[rows, count]``.
    """

    number: int
    num_tokens: int
    values: NDArray[np.float32]  # [rows, m]
    places: tuple[int, ...] | None = None
    features: NDArray[np.int64] | None = None


def num_values(captures: Sequence[CaptureSpec], width: int, num_prompt: int, num_tokens: int) -> int:
    """Return the most values that the captures of a sequence can produce; ``width`` is that of its residuals."""
    return sum(
        _row_size(spec.probe, width) * (1 if spec.pooling != "none" else spec.num_places(num_prompt, num_tokens))
        for spec in captures
    )


def _row_size(probe: Probe, width: int) -> int:
    match probe:
        case Residuals():
            return width
        case Projections():
            return 0 if probe.above else probe.count
        case FeatureValues():
            return 0 if probe.above else len(probe.features)  # values above a threshold are rare
        case TopFeatures():
            return 2 * probe.count
        case AllFeatures():
            return probe.reader.d_sae
