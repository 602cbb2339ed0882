"""The hook protocol between steering and the engine.

Steering compiles a published profile into an :class:`Intervention`; the engine turns it into rows of per-layer
tables and applies them to the tokens that the phase selects. Neither knows the other. No Django here.

Per site and token with residual ``h`` (shape ``[d]``)::

    h' = h + sum(vector entries) + sum over reader entries of reader.delta(target(a) - a)

where ``a = reader.activations(h)`` of the edited features and ``target(a) = clip(gain * a + offset, lower, upper)``.
So add is (gain 1, offset c), scale is (gain g, offset 0), clamp to t is (gain 0, offset t), ablate is clamp to 0,
at_least and at_most set ``lower`` and ``upper``. Additive edits of un-normalised SAEs are folded into the vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

SiteKind = Literal["resid_pre", "resid_post", "mlp_out", "attn_out"]
Phase = Literal["prompt", "generation", "both"]
SITE_KINDS: tuple[SiteKind, ...] = ("resid_pre", "resid_post", "mlp_out", "attn_out")


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A place in the model: ``resid_post`` of layer N is the output of ``model.layers[N]``.

    ``resid_pre`` is that layer's input, ``mlp_out`` the output of its MLP, ``attn_out`` the input of ``o_proj``
    (TransformerLens' hook_z, heads concatenated).
    """

    layer: int
    kind: SiteKind = "resid_post"

    def __str__(self) -> str:
        return f"layers.{self.layer}.{self.kind}"


class FeatureReader(Protocol):
    """What the engine needs of an SAE: exact activations of some features, and their effect on the residual."""

    @property
    def key(self) -> str:
        """Identifies the weights; edits through the same key share work."""

    @property
    def d_in(self) -> int: ...

    @property
    def d_sae(self) -> int: ...

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        """``[tokens, d_in]`` float32 and ``[m]`` int64 feature indices -> ``[tokens, m]`` float32."""

    def delta(self, change: Tensor, features: Tensor, h: Tensor) -> Tensor:
        """Changes of activations ``[tokens, m]`` -> change of the residual ``[tokens, d_in]``, float32."""


@dataclass(frozen=True)
class VectorEdit:
    """Adds ``vector`` (``[d]``, float32, on the CPU)."""

    site: Site
    vector: Tensor
    phase: Phase = "both"


@dataclass(frozen=True)
class FeatureRule:
    """Moves one feature's activation ``a`` to ``clip(gain * a + offset, lower, upper)``."""

    feature: int
    gain: float = 1.0
    offset: float = 0.0
    lower: float = float("-inf")
    upper: float = float("inf")
    only_if_active: bool = False


@dataclass(frozen=True)
class ReaderEdit:
    """Feature rules that read the residual through one SAE."""

    site: Site
    reader: FeatureReader
    rules: tuple[FeatureRule, ...]
    phase: Phase = "both"


@dataclass(frozen=True)
class Intervention:
    """A compiled profile version. ``fingerprint`` identifies its whole effect, weights included.

    Tokens whose id is in ``skip_token_ids`` (the model's special tokens) are left alone.
    """

    fingerprint: str
    edits: tuple[VectorEdit | ReaderEdit, ...]
    skip_token_ids: frozenset[int] = frozenset()

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(sorted({edit.site for edit in self.edits}))

    def program(self, phase: Phase) -> str:
        """Identity of what acts on the tokens of a phase; empty where nothing does."""
        if not any(edit.phase in {phase, "both"} for edit in self.edits):
            return ""
        everywhere = all(edit.phase == "both" for edit in self.edits)
        return self.fingerprint if everywhere else f"{self.fingerprint}:{phase}"
