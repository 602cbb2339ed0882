"""Activations that edits need and the kernel does not compute: of SAEs that must run as a whole, and of other sites.

An edit may depend on the residual of an earlier site: through a gate, or because a transcoder reads its MLP's input.
The hook there computes a *reading*, which the hooks of later sites use in the same forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from inference.engine.kernels.native.fallback import Replacement
from inference.engine.kernels.row_tiles import by_tiles
from inference.interventions import FeatureReader, GateKey, Reconstructor, Site

ReadingKey = tuple[Site, str] | GateKey
"""A site and the key of a reader, or a gate that the prompt decides."""
Readings = Mapping[ReadingKey, Tensor]
"""The values of a step, ``[tokens, m]`` float32. Those of tokens that do not need them are undefined."""


def activations_of(reader: FeatureReader, hidden: Tensor, features: Tensor, *, batch_invariant: bool) -> Tensor:
    """Return the activations ``[tokens, m]`` of hidden states ``[tokens, d]``."""

    def read(rows: Tensor) -> Tensor:
        return reader.activations(rows, features)

    return by_tiles(read, hidden.float()) if batch_invariant else read(hidden.float())


def reconstruction_by(reader: Reconstructor, hidden: Tensor, *, batch_invariant: bool) -> Tensor:
    """Return the reconstructions ``[tokens, d]`` of hidden states."""
    return by_tiles(reader.reconstruct, hidden.float()) if batch_invariant else reader.reconstruct(hidden.float())


@dataclass(frozen=True, slots=True)
class Reading:
    """Some features' activations at a site, for edits at later sites."""

    key: ReadingKey
    reader: FeatureReader
    tokens: Tensor  # [t] int64, places in the step
    features: Tensor  # [m] int64
    batch_invariant: bool = False

    def of_own(self, hidden: Tensor) -> Tensor:
        """Return ``[tokens, m]`` for ``[tokens, d]``: the activations of :attr:`tokens`, and 0 for others."""
        own = self.of_all(hidden[self.tokens])
        values = own.new_zeros(len(hidden), own.shape[1])
        values[self.tokens] = own
        return values

    def of_all(self, hidden: Tensor) -> Tensor:
        """Return ``[tokens, m]``: the activations of all tokens, or their reconstructions, ``[tokens, d]``."""
        if isinstance(self.reader, Reconstructor):
            return reconstruction_by(self.reader, hidden, batch_invariant=self.batch_invariant)
        return activations_of(self.reader, hidden, self.features, batch_invariant=self.batch_invariant)


@dataclass(frozen=True, slots=True)
class GivenActivations:
    """The activations that some entries of a site are given in a step.

    ``reading``: the reading that has them, in its ``columns``; None if the SAE runs at this site, and ``columns`` are
    its features.
    """

    reader: FeatureReader
    tokens: Tensor  # [t] int64, places in the step
    columns: Tensor  # [m] int64
    slots: Tensor  # [m] int64, entries
    reading: ReadingKey | None = None
    batch_invariant: bool = False

    @property
    def replaces(self) -> bool:
        """Whether the entries replace the residual by a reconstruction, instead of being given activations."""
        return isinstance(self.reader, Reconstructor)

    def replacement(self, hidden: Tensor, reconstructed: Tensor | None) -> Replacement:
        """Return the step to the reconstruction, for hidden states ``[tokens, d]`` and, of a reading, its values."""
        assert isinstance(self.reader, Reconstructor), "only reconstructors replace"
        h = hidden.float()
        if reconstructed is None:
            reconstructed = reconstruction_by(self.reader, h, batch_invariant=self.batch_invariant)
        return Replacement(self.slots, reconstructed - h)

    @property
    def is_decided(self) -> bool:
        """Whether these are values of a gate that the prompt decides."""
        return isinstance(self.reading, GateKey)

    def of_own(self, hidden: Tensor, readings: Readings) -> Tensor:
        """Return ``[t, m]`` for the hidden states ``[tokens, d]`` of the step."""
        if self.reading is None:
            own = hidden[self.tokens]
            return activations_of(self.reader, own, self.columns, batch_invariant=self.batch_invariant)
        return readings[self.reading][self.tokens.unsqueeze(1), self.columns]

    def of_all(self, hidden: Tensor, readings: Readings) -> Tensor:
        """Return ``[tokens, m]``: the activations of all tokens."""
        if self.reading is None:
            return activations_of(self.reader, hidden, self.columns, batch_invariant=self.batch_invariant)
        return readings[self.reading][:, self.columns]
