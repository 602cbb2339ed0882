"""Activations that edits need and the kernel does not compute: of SAEs that must run as a whole, and of other sites.

An edit may depend on the residual of an earlier site: through a gate, or because a transcoder reads its MLP's input.
The hook there computes a *reading*, which the hooks of later sites use in the same forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from inference.engine.kernels.native.fallback import Replacement
from inference.interventions import FeatureReader, GateKey, Reconstructor, Site

ReadingKey = tuple[Site, str] | GateKey
"""A site and the key of a reader, or a gate that the prompt decides."""
Readings = Mapping[ReadingKey, Tensor]
"""The values of a step, ``[tokens, m]`` float32. Those of tokens that do not need them are undefined."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Some features' activations at a site, for edits at later sites."""

    key: ReadingKey
    reader: FeatureReader
    tokens: Tensor  # [t] int64, places in the step
    features: Tensor  # [m] int64

    def of_own(self, hidden: Tensor) -> Tensor:
        """Return ``[tokens, m]`` for ``[tokens, d]``: the activations of :attr:`tokens`, and 0 for others."""
        own = self.of_all(hidden[self.tokens])
        values = own.new_zeros(len(hidden), own.shape[1])
        values[self.tokens] = own
        return values

    def of_all(self, hidden: Tensor) -> Tensor:
        """Return ``[tokens, m]``: the activations of all tokens, or their reconstructions, ``[tokens, d]``."""
        if isinstance(self.reader, Reconstructor):
            return self.reader.reconstruct(hidden.float())
        return self.reader.activations(hidden.float(), self.features)


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

    @property
    def replaces(self) -> bool:
        """Whether the entries replace the residual by a reconstruction, instead of being given activations."""
        return isinstance(self.reader, Reconstructor)

    def replacement(self, hidden: Tensor, reconstructed: Tensor | None) -> Replacement:
        """Return the step to the reconstruction, for hidden states ``[tokens, d]`` and, of a reading, its values."""
        assert isinstance(self.reader, Reconstructor), "only reconstructors replace"
        h = hidden.float()
        target = self.reader.reconstruct(h) if reconstructed is None else reconstructed
        return Replacement(self.slots, target - h)

    @property
    def is_decided(self) -> bool:
        """Whether these are values of a gate that the prompt decides."""
        return isinstance(self.reading, GateKey)

    def of_own(self, hidden: Tensor, readings: Readings) -> Tensor:
        """Return ``[t, m]`` for the hidden states ``[tokens, d]`` of the step."""
        if self.reading is None:
            return self.reader.activations(hidden[self.tokens].float(), self.columns)
        return readings[self.reading][self.tokens.unsqueeze(1), self.columns]

    def of_all(self, hidden: Tensor, readings: Readings) -> Tensor:
        """Return ``[tokens, m]``: the activations of all tokens."""
        if self.reading is None:
            return self.reader.activations(hidden.float(), self.columns)
        return readings[self.reading][:, self.columns]
