"""The protocol between steering and the engine.

Steering compiles a published profile into an :class:`Intervention`. The engine turns it into rows of per-site tables
and applies them to the tokens that the edits select. No Django here.

Per site and token with residual ``h`` (shape ``[d]``)::

    h' = h + sum of vectors + sum over feature rules of change * scale * write
    change = clip((gain - 1) * a + offset, lower - a, upper - a)      0 if a gate is closed

where ``a`` is the feature's activation of ``h``. So add is (gain 1, offset c), scale is (gain g, offset 0), clamp to t
is (gain 0, offset t), ablate is clamp to 0, at_least and at_most set ``lower`` and ``upper``. A steering vector is the
only feature of a reader that activates by ``h v`` and writes ``v``. All edits of a site read the same ``h``. Last, a
norm edit scales ``h'`` back to the norm of ``h``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from inference.segments import ALL_SEGMENTS, Segment

if TYPE_CHECKING:
    from torch import Tensor

SiteKind = Literal["resid_pre", "resid_post", "mlp_in", "mlp_raw", "mlp_out", "attn_out", "resid_mid", "mlp_norm"]
Phase = Literal[
    "prompt", "generation", "both", "from_last_prompt_token", "before_last_prompt_token", "last_prompt_token"
]
"""Which tokens an edit may act on. The last two result from composing interventions."""
Zone = Literal["prompt", "last_prompt_token", "generation"]
"""Where a token is: in the prompt before its last token, the last one (whose logits give the first generated token), or
after it."""
ZONES: Mapping[Phase, frozenset[Zone]] = {
    "prompt": frozenset({"prompt", "last_prompt_token"}),
    "generation": frozenset({"generation"}),
    "both": frozenset({"prompt", "last_prompt_token", "generation"}),
    "from_last_prompt_token": frozenset({"last_prompt_token", "generation"}),
    "before_last_prompt_token": frozenset({"prompt"}),
    "last_prompt_token": frozenset({"last_prompt_token"}),
}
Normalization = Literal["none", "constant_norm_rescale", "layer_norm"]
SITE_KINDS: tuple[SiteKind, ...] = ("resid_pre", "resid_post", "mlp_in", "mlp_raw", "mlp_out", "attn_out")
"""The sites that edits, SAEs and captures may name. Transcoders may read at the others, which nothing writes to."""
_FORWARD_ORDER: tuple[SiteKind, ...] = (
    "resid_pre", "attn_out", "resid_mid", "mlp_norm", "mlp_in", "mlp_raw", "mlp_out", "resid_post",
)  # fmt: skip
MAX_GATES = 2
MAX_PROMPT_GATES = 3  # of an intervention: each one doubles its rows in the tables


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A place in the model: ``resid_post`` of layer N is the output of ``model.layers[N]``.

    ``resid_pre`` is that layer's input, ``mlp_in`` the input of its MLP module (after the norm before it), ``mlp_raw``
    the output of that module, ``mlp_out`` the MLP's contribution to
    the residual (after the post-norm that some architectures have), ``attn_out`` the input of ``o_proj``
    (TransformerLens' hook_z, heads concatenated). ``resid_mid`` is the input of the norm before the MLP, and
    ``mlp_norm`` that norm's output before its gain and bias (TransformerLens' ln2.hook_normalized), in float32.
    """

    layer: int
    kind: SiteKind = "resid_post"

    def __str__(self) -> str:
        return f"layers.{self.layer}.{self.kind}"

    @property
    def label(self) -> str:
        """The site in pages and messages: "layer 6 (resid_post)"."""
        return site_label(str(self))

    def comes_after(self, other: Site) -> bool:
        """Return whether the forward pass computes this site after the other one."""
        return self._order > other._order

    @property
    def _order(self) -> tuple[int, int]:
        return self.layer, _FORWARD_ORDER.index(self.kind)


_SITE_NAME = re.compile(r"layers\.(\d+)\.(\w+)")


def site_label(name: str) -> str:
    """Return the label of a site's stored name: "layers.6.resid_post" becomes "layer 6 (resid_post)"."""
    return _SITE_NAME.sub(r"layer \1 (\2)", name)


@dataclass(frozen=True, slots=True)
class FeatureColumns:
    """Some features of an SAE in linear form, float32: ``m`` rows each.

    With ``x`` the normalised residual and ``s`` the token's scale, ``pre = x read + bias``, ``a = pre`` if
    ``pre > threshold`` and 0 otherwise, and a change of ``a`` by 1 moves the residual by ``s write``. ``read`` is None
    if an activation depends on other features too; :meth:`FeatureReader.activations` computes it then.
    """

    write: Tensor  # [m, d_in]
    read: Tensor | None = None  # [m, d_in]
    bias: Tensor | None = None  # [m]; None for zeros
    threshold: Tensor | None = None  # [m]; None for no threshold: a = pre
    normalization: Normalization = "none"


class FeatureReader(Protocol):
    """The part of an SAE that the engine uses: exact activations of some features, and their decoder rows."""

    @property
    def key(self) -> str:
        """Identifies the weights; edits through the same key share work."""

    @property
    def d_in(self) -> int: ...

    @property
    def d_sae(self) -> int: ...

    def columns(self, features: Tensor) -> FeatureColumns:
        """Return the columns of ``[m]`` int64 feature indices. Called once per profile, not per step."""

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        """Return activations ``[tokens, m]`` float32 for ``[tokens, d_in]`` float32 and ``[m]`` int64 feature indices.

        Called in a step only if the columns have no ``read``.
        """


@runtime_checkable
class Reconstructor(FeatureReader, Protocol):
    """A reader whose only feature, by a change of 1, replaces the residual by a reconstruction. Its activation is 0."""

    def reconstruct(self, h: Tensor) -> Tensor:
        """Return what replaces the residual, ``[tokens, d]`` float32, for what is read, ``[tokens, d_in]`` float32."""


class FeatureEncoder(FeatureReader, Protocol):
    """An SAE that can compute all of its features."""

    def encode(self, h: Tensor) -> Tensor:
        """Return activations ``[tokens, d_sae]`` float32 for ``[tokens, d_in]`` float32."""


class FeatureDecoder(FeatureEncoder, Protocol):
    """An SAE that can reconstruct what it reads."""

    def decode(self, activations: Tensor, h: Tensor) -> Tensor:
        """Return the reconstruction ``[tokens, d]`` of activations ``[tokens, d_sae]``, normalised as for ``h``.

        Differentiable with respect to the activations.
        """


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens with ``after <= index < first``. Each phase counts its own tokens from 0.

    ``from_last_prompt_token`` counts from that token, so the first generated token has index 1.
    """

    after: int = 0
    first: int | None = None

    def __contains__(self, index: int) -> bool:
        return self.after <= index and (self.first is None or index < self.first)

    def overlaps(self, other: Window) -> bool:
        ends = [window.first for window in (self, other) if window.first is not None]
        return not ends or max(self.after, other.after) < min(ends)


ALL_TOKENS = Window()


def window_in(zone: Zone, phase: Phase, window: Window) -> Window | None:
    """Return a phase's window as indices of a zone's tokens; None if it is empty.

    The last prompt token is counted as part of the prompt, so its index depends on the prompt's length.
    """
    if zone not in ZONES[phase]:
        return None
    if phase != "from_last_prompt_token":
        return window
    if zone == "last_prompt_token":
        return ALL_TOKENS if 0 in window else None
    first = None if window.first is None else window.first - 1
    shifted = Window(max(window.after - 1, 0), first)
    return None if first is not None and first <= shifted.after else shifted


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """The position of a token. ``index`` counts the prompt's tokens or the generated ones from 0, ``segment_index``
    those of the token's segment. A prompt has no segments.
    """

    zone: Zone
    index: int
    segment: Segment | None = None
    segment_index: int = 0


@dataclass(frozen=True, kw_only=True)
class ChosenTokens:
    """The tokens to which an edit applies. Special tokens are those of :attr:`Intervention.skip_token_ids`.

    ``segments`` and ``segment_window`` select among generated tokens and do not affect those of the prompt. Attention
    sinks are tokens with an outlying residual norm that carry no meaning. Without ``sink_tokens``, the edit skips the
    first token of a prompt unless it is a special token, and any token whose residual norm at the site exceeds
    ``norm_limit``.
    """

    phase: Phase = "both"
    window: Window = ALL_TOKENS
    segments: frozenset[Segment] = ALL_SEGMENTS
    segment_window: Window = ALL_TOKENS
    special_tokens: bool = False
    sink_tokens: bool = True
    norm_limit: float = float("inf")

    def acts(self, place: TokenPlace, *, is_special: bool) -> bool:
        """Return whether the edit applies at a place, regardless of the residual's norm."""
        window = self.window_in(place.zone)
        if window is None or place.index not in window:
            return False
        if place.segment is not None and (
            place.segment not in self.segments or place.segment_index not in self.segment_window
        ):
            return False
        if place.zone != "generation" and place.index == 0 and not (self.sink_tokens or is_special):
            return False
        return self.special_tokens or not is_special

    def starts_in(self, zone: Zone) -> frozenset[int]:
        """Return the indices in the zone at which the edit may start or stop to apply."""
        window = self.window_in(zone)
        if window is None:
            return frozenset()
        ends = {window.after} if window.first is None else {window.after, window.first}
        return frozenset(ends if self.sink_tokens or zone == "generation" else ends | {1})

    def window_in(self, zone: Zone) -> Window | None:
        """Return the edit's window in a zone; see :func:`window_in`."""
        return window_in(zone, self.phase, self.window)

    @property
    def depends_on_last_prompt_token(self) -> bool:
        """Whether the edit treats the last prompt token differently from the tokens before it."""
        return ("prompt" in ZONES[self.phase]) != ("last_prompt_token" in ZONES[self.phase])

    @property
    def depends_on_segments(self) -> bool:
        """Whether the edit depends on a token's segment."""
        return self.segments != ALL_SEGMENTS or self.segment_window != ALL_TOKENS


@dataclass(frozen=True)
class VectorEdit(ChosenTokens):
    """Add ``vector`` (``[d]``, float32 or float64, on the CPU). The vectors of a row are summed in float64."""

    site: Site
    vector: Tensor


GateScope = Literal["token", "prompt_mean", "prompt_last"]
"""What a gate is decided on: each token by itself, or once per request on the mean of the prompt's tokens, or on its
last token."""


class GateKey(NamedTuple):
    """Identifies the value that a gate compares with its threshold."""

    site: Site | None
    reader: str
    feature: int
    scope: GateScope
    pools_residual: bool


@dataclass(frozen=True)
class Gate:
    """A condition: the feature's activation exceeds ``above``.

    ``site`` is where the activation is read, before the edits there; None is the edit's own site, otherwise it is one
    that the forward pass computes before. With a ``scope`` of the prompt, one decision holds for all generated tokens
    and the last prompt token, and the gate needs a ``site``. ``pools_residual``: the activation of the mean residual
    counts, not the mean of the activations.
    """

    reader: FeatureReader
    feature: int
    above: float
    site: Site | None = None
    scope: GateScope = "token"
    pools_residual: bool = False

    @property
    def key(self) -> GateKey:
        return GateKey(self.site, self.reader.key, self.feature, self.scope, self.pools_residual)


Decisions = tuple[bool, ...]
"""Which of :attr:`Intervention.prompt_gates` are open."""


@dataclass(frozen=True)
class FeatureRule:
    """Change a feature's activation ``a`` to ``clip(gain * a + offset, lower, upper)`` if all gates are open.

    ``only_if_active`` is a gate on ``a > 0``; it counts towards MAX_GATES.
    """

    feature: int
    gain: float = 1.0
    offset: float = 0.0
    lower: float = float("-inf")
    upper: float = float("inf")
    only_if_active: bool = False
    gates: tuple[Gate, ...] = ()


@dataclass(frozen=True)
class ReaderEdit(ChosenTokens):
    """Feature rules that share one SAE. ``reads_at``: the earlier site where it reads, if not ``site``."""

    site: Site
    reader: FeatureReader
    rules: tuple[FeatureRule, ...]
    reads_at: Site | None = None

    @property
    def readers(self) -> tuple[FeatureReader, ...]:
        """All readers of the edit: its own, and those of its gates."""
        return (self.reader, *(gate.reader for gate in self.gates))

    @property
    def gates(self) -> tuple[Gate, ...]:
        return tuple(gate for rule in self.rules for gate in rule.gates)

    @property
    def read_sites(self) -> frozenset[Site]:
        """The earlier sites whose residuals the edit reads."""
        sites = {self.reads_at, *(gate.site for gate in self.gates)}
        return frozenset(site for site in sites if site is not None and site != self.site)


@dataclass(frozen=True)
class NormEdit(ChosenTokens):
    """Restore the residual's norm after all other edits of the site."""

    site: Site


Edit = VectorEdit | ReaderEdit | NormEdit


@dataclass(frozen=True, slots=True)
class Removal:
    """Directions that are ablated together at one site. ``rank`` is the dimension of their span."""

    site: Site
    num_directions: int
    rank: int


@dataclass(frozen=True, slots=True)
class InertEdit:
    """An edit of a profile that can never have an effect, by its ``number`` (from 0), and the reason."""

    number: int
    reason: str


def _decided(edit: Edit, is_open: Mapping[tuple[GateKey, float], bool]) -> Edit:
    """Return the edit without gates that are decided, and without rules that they close."""
    if not isinstance(edit, ReaderEdit) or all(gate.scope == "token" for gate in edit.gates):
        return edit
    open_rules = (
        replace(rule, gates=tuple(gate for gate in rule.gates if gate.scope == "token"))
        for rule in edit.rules
        if all(is_open[gate.key, gate.above] for gate in rule.gates if gate.scope != "token")
    )
    return replace(edit, rules=tuple(open_rules))


@dataclass(frozen=True)
class Intervention:
    """A compiled profile version. ``fingerprint`` identifies its effect, including the weights.

    Tokens whose id is in ``skip_token_ids`` (the model's special tokens) are changed only by edits that include them.
    ``required_segments``: segments that some edit acts on exclusively; it never acts on a model without them.
    ``removals`` and ``inert`` are for the receipt.
    """

    fingerprint: str
    edits: tuple[Edit, ...]
    skip_token_ids: frozenset[int] = frozenset()
    required_segments: frozenset[Segment] = frozenset()
    removals: tuple[Removal, ...] = ()
    inert: tuple[InertEdit, ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(sorted({edit.site for edit in self.edits}))

    @property
    def read_sites(self) -> frozenset[Site]:
        """The sites at which residuals are read for edits at later sites."""
        return frozenset().union(*(edit.read_sites for edit in self.edits if isinstance(edit, ReaderEdit)))

    @property
    def prompt_gates(self) -> tuple[Gate, ...]:
        """The gates that are decided once per request, each once."""
        gates = [gate for edit in self.edits if isinstance(edit, ReaderEdit) for gate in edit.gates]
        return tuple({(gate.key, gate.above): gate for gate in gates if gate.scope != "token"}.values())

    def decided(self, decisions: Decisions) -> Intervention:
        """Return the intervention without its prompt gates, given which of them are open.

        An edit without open rules still acts at its site, so that receipts count it, but changes nothing.
        """
        is_open = dict(zip([(gate.key, gate.above) for gate in self.prompt_gates], decisions, strict=True))
        return replace(self, edits=tuple(_decided(edit, is_open) for edit in self.edits))

    @property
    def depends_on_last_prompt_token(self) -> bool:
        """Whether the last prompt token may be steered differently from those before it."""
        return any(edit.depends_on_last_prompt_token for edit in self.edits)

    def program(self, phase: Literal["prompt", "generation"]) -> str:
        """Return an identifier of the edits that apply to the tokens of a phase; empty if none do.

        With :attr:`depends_on_last_prompt_token`, that token counts as generated. Both phases have the same identifier
        only if a token's place does not matter, so that one request's answer can be part of another one's prompt.
        """
        zones: set[Zone] = {phase}
        if self.depends_on_last_prompt_token and phase == "generation":
            zones.add("last_prompt_token")
        if all(zones.isdisjoint(ZONES[edit.phase]) for edit in self.edits):
            return ""
        everywhere = all(edit.phase == "both" and edit.window == ALL_TOKENS for edit in self.edits)
        return self.fingerprint if everywhere and not self.depends_on_segments else f"{self.fingerprint}:{phase}"

    @property
    def depends_on_segments(self) -> bool:
        """Whether the segments of the generated text must be known."""
        return any(edit.depends_on_segments for edit in self.edits)
