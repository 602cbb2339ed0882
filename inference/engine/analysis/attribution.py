"""Attribution of a token to the features of an SAE: gradient times activation.

For a metric ``m`` (see :class:`~inference.analyses.AttributionRequest`), ``g = dm/dx`` is its gradient with respect to
the residual ``x`` that the SAE reads, at each token. With ``x = sum_i a_i w_i + bias + error``, node ``i`` gets ``a_i
dm/da_i = a_i (g w_i)``, the first-order estimate of the effect of ablating it (attribution patching with a zero
baseline; Marks et al. 2024, Sparse Feature Circuits, eq. 1), and the error its own node. Nothing is frozen: unlike
Ameisen et al. 2025 (Circuit Tracing), the gradient passes through attention patterns, norms and MLPs.

One layer at a time is recomputed and differentiated, so that the memory is that of one layer's graph, and the batch
waits for no more than one layer.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from inference.analyses import AttributionEvent, AttributionRequest, Metric
from inference.captures import loaded
from inference.engine.analysis.errors import AnalysisError
from inference.engine.analysis.layers import LayerStack
from inference.engine.scheduling.step_isolation import is_out_of_memory

if TYPE_CHECKING:
    from inference.interventions import FeatureDecoder

logger = logging.getLogger(__name__)
MAX_ENCODED = 1 << 22  # activations at a time
# The difference of a recomputed layer, relative to the residual's norm: the packed kernels round in another order.
TOLERANCES = {torch.float32: 1e-2, torch.float16: 5e-2, torch.bfloat16: 1e-1}
NOT_FINITE = "The gradient is not finite, so the token cannot be attributed."


@dataclass(frozen=True, slots=True)
class _Explained:
    """The metric, and its gradient at the output of the last layer ``[tokens, d]``."""

    logit: float
    logprob: float
    metric: float
    gradient: Tensor


def run_attribution(stack: LayerStack, request: AttributionRequest) -> Generator[None, None, AttributionEvent]:
    """Attribute, and yield after each layer."""
    with _supported():
        arguments = stack.arguments(request.token_ids)
        explained = _explain(stack, request)
    gradient, difference = explained.gradient, 0.0
    yield
    first = len(stack) - len(request.inputs) + 1
    for layer in reversed(range(first, len(stack))):
        hidden, following = (_tensor(request.inputs[layer - first + after], stack) for after in (0, 1))
        with _supported():
            output, gradient = _backward(stack, layer, hidden, arguments[layer], gradient)
        if layer not in request.steered_layers:
            difference = max(difference, _difference(layer, output, following))
        yield
    nodes = _Nodes(request.max_nodes, request.skipped_places)
    residual = torch.from_numpy(request.residual).to(stack.device)
    reader = loaded(request.reader)
    at_once = max(1, MAX_ENCODED // reader.d_sae)
    for start in range(0, len(residual), at_once):
        nodes.add(start, residual[start : start + at_once], gradient[start : start + at_once].float(), reader)
        yield
    return nodes.event(request, explained, difference)


@contextmanager
def _supported() -> Iterator[None]:
    """Turn an error of the model's code into an AnalysisError."""
    try:
        yield
    except torch.AcceleratorError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        logger.warning("A model could not be differentiated layer by layer.", exc_info=error)
        raise AnalysisError(
            "model_not_differentiable",
            "The layers of this model cannot be run and differentiated one at a time, as attribution needs.",
        ) from error


def _tensor(values: np.ndarray, stack: LayerStack) -> Tensor:
    return torch.from_numpy(values).to(stack.device, stack.dtype)


@torch.enable_grad()
def _explain(stack: LayerStack, request: AttributionRequest) -> _Explained:
    outputs = _tensor(request.inputs[-1], stack)
    row = outputs[-1:].clone().requires_grad_()
    logits = stack.logits(row)[0].float()
    logprobs = logits.log_softmax(-1)
    metric = _metric(logits, logprobs, request.target, request.contrast, request.metric)
    (of_row,) = torch.autograd.grad(metric, row)
    gradient = torch.zeros_like(outputs)
    gradient[-1] = of_row[0]
    if not metric.isfinite():
        raise AnalysisError("not_finite", NOT_FINITE)
    target = request.target
    return _Explained(logits[target].item(), logprobs[target].item(), metric.item(), gradient)


def _metric(logits: Tensor, logprobs: Tensor, target: int, contrast: int | None, metric: Metric) -> Tensor:
    if contrast is not None:
        return logits[target] - logits[contrast]
    return logits[target] - logits.mean() if metric == "logit" else logprobs[target]


@torch.enable_grad()
def _backward(
    stack: LayerStack, layer: int, hidden: Tensor, arguments: object, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the layer's output, and the gradient at its input."""
    hidden = hidden.clone().requires_grad_()
    output = stack.run(layer, hidden, arguments)  # type: ignore[arg-type]
    (found,) = torch.autograd.grad(output, hidden, gradient)
    if not found.isfinite().all():
        raise AnalysisError("not_finite", NOT_FINITE)
    return output.detach(), found


def _difference(layer: int, output: Tensor, captured: Tensor) -> float:
    """Return the median difference of the tokens. Raise AnalysisError if the layer computes something else alone."""
    wide, expected = output.float(), captured.float()
    relative = (wide - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    difference = float(relative.median())
    if not difference <= TOLERANCES.get(output.dtype, TOLERANCES[torch.float32]):
        raise AnalysisError(
            "model_not_differentiable",
            f"Layer {layer} of this model gives another result when it runs alone ({difference:.1%} of the residual's "
            "norm), so its gradient is not that of the request.",
        )
    return difference


class _Nodes:
    """The strongest nodes so far, and sums over all."""

    def __init__(self, most: int, skipped: frozenset[int]) -> None:
        self._most = most
        self._skipped = skipped
        self._kept: list[Tensor] = []  # [4, n] float64: place, feature, activation, attribution
        self._num_active = 0
        self._sum = 0.0
        self._errors: list[Tensor] = []
        self._biases: list[Tensor] = []
        self._total = 0.0

    def add(self, start: int, x: Tensor, gradient: Tensor, reader: FeatureDecoder) -> None:
        """Add the tokens ``[n, d]`` from ``start`` on."""
        places = range(start, start + len(x))
        is_read = torch.tensor([place not in self._skipped for place in places], device=x.device).unsqueeze(-1)
        with torch.no_grad():
            a = reader.encode(x).float() * is_read
        with torch.enable_grad():
            leaf = a.clone().requires_grad_()
            decoded = reader.decode(leaf, x)
            (slope,) = torch.autograd.grad((decoded * gradient).sum(), leaf)
        attributions = a.double() * slope.double()
        decoded, wide = decoded.detach().double() * is_read, gradient.double()
        self._errors.append(((x.double() - decoded) * wide).sum(-1))
        self._biases.append((reader.decode(torch.zeros_like(a), x).double() * is_read * wide).sum(-1))
        self._total += float((x.double() * wide).sum())
        rows, features = a.nonzero(as_tuple=True)
        chosen = attributions[rows, features]
        self._num_active += len(rows)
        self._sum += float(chosen.sum())
        found = torch.stack([(rows + start).double(), features.double(), a[rows, features].double(), chosen])
        self._kept = [self._strongest(torch.cat([*self._kept, found.cpu()], dim=1))]

    def _strongest(self, found: Tensor) -> Tensor:
        if found.shape[1] <= self._most:
            return found
        return found[:, found[3].abs().topk(self._most).indices]

    def event(self, request: AttributionRequest, explained: _Explained, difference: float) -> AttributionEvent:
        kept = self._kept[0]
        kept = kept[:, kept[3].abs().argsort(descending=True, stable=True)]
        errors, biases = torch.cat(self._errors), torch.cat(self._biases)
        if not (kept.isfinite().all() and errors.isfinite().all() and biases.isfinite().all()):
            raise AnalysisError("not_finite", NOT_FINITE)
        return AttributionEvent(
            index=request.index,
            logit=explained.logit,
            logprob=explained.logprob,
            metric=explained.metric,
            places=kept[0].numpy().astype(np.int64),
            features=kept[1].numpy().astype(np.int64),
            activations=kept[2].numpy().astype(np.float32),
            attributions=kept[3].numpy(),
            other=self._sum - float(kept[3].sum()),
            num_active=self._num_active,
            errors=errors.cpu().numpy(),
            biases=biases.cpu().numpy(),
            total=self._total,
            difference=difference,
        )
