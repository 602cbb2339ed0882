"""Analyses of captured residuals: logit lenses, and attributions of a token to the features of an SAE.

Plain data, the counterpart of :mod:`inference.captures`: a client captures residuals first, by a
:class:`~inference.engine.messages.GenerationRequest`, and sends them back with one of these requests. An analysis has
no KV cache and no place in the batch. The engine runs it in small units in the background.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from inference.interventions import FeatureDecoder, Site
from inference.steering_refs import SAERef

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Metric = Literal["logit", "logprob"]
MAX_TOKENS = 512  # of an attribution
MAX_NODES = 5000
MAX_LENS_ROWS = 8192


class _OfResiduals:
    """What the server asks of every request, the same for all analyses."""

    __slots__ = ()

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """No tokens: they were counted when the residuals were captured."""
        return ()

    @property
    def max_events(self) -> int:
        """The result and the end."""
        return 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LensRequest(_OfResiduals):
    """Predict the next token from each residual ``[rows, d]`` float32, as if it left the last layer.

    The final norm and the unembedding are the model's own. ``count``: the most likely tokens to return. ``targets``: a
    token for each row whose log-probability and rank are returned too; empty for none.
    """

    request_id: str
    model: str
    residuals: NDArray[np.float32]
    count: int
    targets: tuple[int, ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class LensEvent:
    """The most likely tokens of each row, best first, and log-probability and rank (from 1) of the row's target."""

    index: int
    tokens: NDArray[np.int64]  # [rows, count]
    logprobs: NDArray[np.float32]  # [rows, count]
    target_logprobs: NDArray[np.float32]  # [rows], or [0] without targets
    target_ranks: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttributionRequest(_OfResiduals):
    """Attribute the token that follows the last of ``token_ids`` to the features of an SAE at a residual site.

    ``residual`` ``[tokens, d]`` float32: what the SAE reads. ``inputs``: the inputs of the layers after the site, in
    order, and last the output of the final layer, likewise. The gradient of the metric flows back through these layers,
    each recomputed from its captured input; its output is compared with the next input, except for the
    ``steered_layers``, whose outputs are changed by steering. Steering counts as a constant. The SAE does not read the
    ``skipped_places``, at which the whole residual counts as its error.

    The metric of token ``t`` with logits ``z``: ``logit`` is ``z[t] - mean(z)``, or ``z[t] - z[contrast]``;
    ``logprob`` is ``log softmax(z)[t]``, or its difference to that of ``contrast``, which is the same as with logits.
    """

    request_id: str
    model: str
    token_ids: tuple[int, ...]
    residual: NDArray[np.float32]
    inputs: tuple[NDArray[np.float32], ...]
    reader: SAERef | FeatureDecoder
    target: int
    contrast: int | None = None
    metric: Metric = "logit"
    max_nodes: int = MAX_NODES
    steered_layers: frozenset[int] = frozenset()
    skipped_places: frozenset[int] = frozenset()
    index: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class AttributionEvent:
    """The attributions ``a_i * d metric / d a_i`` of the strongest nodes, largest size first, and the rest.

    With residual ``x``, its gradient ``g`` and the reconstruction ``xhat`` of each token: ``errors`` are ``g (x -
    xhat)``, ``biases`` are ``g`` times the decoder bias (and the mean that a layer norm removes). Attributions, errors
    and biases of all tokens add up to ``total``, the sum of ``g x``. ``other`` is the sum over active features that are
    not listed. ``difference``: how far the recomputed layers were from the captured residuals, relative to their norm.
    """

    index: int
    logit: float
    logprob: float
    metric: float
    places: NDArray[np.int64]
    features: NDArray[np.int64]
    activations: NDArray[np.float32]
    attributions: NDArray[np.float64]
    other: float
    num_active: int
    errors: NDArray[np.float64]  # [tokens]
    biases: NDArray[np.float64]  # [tokens]
    total: float
    difference: float


AnalysisRequest = LensRequest | AttributionRequest
AnalysisEvent = LensEvent | AttributionEvent


def attribution_sites(site: Site, num_layers: int) -> tuple[Site, ...]:
    """Return where to capture for the attribution to an SAE at a residual site: what it reads, then ``inputs``."""
    assert site.kind in {"resid_pre", "resid_post"}, "other sites are not in the residual stream"
    first = site.layer + (site.kind == "resid_post")
    return (site, *(Site(layer, "resid_pre") for layer in range(first, num_layers)), Site(num_layers - 1, "resid_post"))
