"""The logit lens (nostalgebraist 2020): the next tokens that residuals predict."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from inference.analyses import LensEvent, LensRequest
from inference.engine.analysis.errors import AnalysisError
from inference.engine.analysis.layers import LayerStack

ROWS = 64  # of a unit


def run_lens(stack: LayerStack, request: LensRequest) -> Generator[None, None, LensEvent]:
    """Compute the lens in units of ROWS rows, and yield after each."""
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for start in range(0, len(request.residuals), ROWS):
        rows = torch.from_numpy(request.residuals[start : start + ROWS]).to(stack.device, stack.dtype)
        parts.append(_read(stack, rows, request.count, request.targets[start : start + ROWS]))
        yield
    tokens, logprobs, target_logprobs, ranks = (torch.cat(found).cpu().numpy() for found in zip(*parts, strict=True))
    return LensEvent(request.index, tokens, logprobs, target_logprobs, ranks)


@torch.no_grad()
def _read(
    stack: LayerStack, rows: Tensor, count: int, targets: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logprobs = stack.logits(rows).float().log_softmax(-1)
    if logprobs.isnan().any():
        raise AnalysisError("not_finite", "The lens is not finite: a residual has values that are not.")
    best = logprobs.topk(count, dim=-1)
    if not targets:
        return best.indices, best.values, logprobs.new_empty(0), best.indices.new_empty(0)
    chosen = logprobs.gather(1, torch.tensor(targets, device=rows.device).unsqueeze(1))
    return best.indices, best.values, chosen[:, 0], (logprobs > chosen).sum(-1) + 1
