"""The model's log-probabilities of sampled tokens and of the most likely ones, for many places at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.engine.messages import TokenLogprob
from inference.engine.sampling.transfers import to_device

PLACES_AT_ONCE = 64  # of a prompt: limits the float32 copy


def measure_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> Tensor:
    """Return int32 ``[places, 2 + 2 * num_top]`` on the logits' device: rank, logprob, ids and logprobs of the best.

    Float32 values are stored as bits, so that a step needs only one copy to the host.
    """
    values = logits.float().log_softmax(-1)  # row by row: logsumexp splits the sum of a single row between threads
    chosen = values.gather(1, token_ids.unsqueeze(1))
    is_better = torch.gt(values, chosen, out=torch.empty_like(values))  # as float32, which is ten times faster on a CPU
    rank = is_better.sum(-1, keepdim=True) + 1
    top = values.topk(num_top)
    bits = torch.cat([chosen, top.values], 1).view(torch.int32)
    return torch.cat([rank.int(), bits[:, :1], top.indices.int(), bits[:, 1:]], 1)


def read_logprobs(measured: NDArray[np.int32], token_ids: Sequence[int], num_tops: Sequence[int]) -> list[TokenLogprob]:
    """Decode the result of :func:`measure_logprobs`, with the requested number of top tokens per place."""
    most = (measured.shape[1] - 2) // 2
    ranks, ids = measured[:, 0].tolist(), measured[:, 2 : 2 + most].tolist()
    logprobs = np.ascontiguousarray(measured[:, 1]).view(np.float32).tolist()
    values = np.ascontiguousarray(measured[:, 2 + most :]).view(np.float32).tolist()
    return [
        TokenLogprob(token_id, logprob, tuple(zip(top_ids[:num], top_values[:num], strict=True)), rank)
        for token_id, logprob, rank, top_ids, top_values, num in zip(
            token_ids, logprobs, ranks, ids, values, num_tops, strict=True
        )
    ]


def prompt_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Return the log-probabilities of ``token_ids``, each at its place of ``logits`` ``[places, vocab]``."""
    if not token_ids:
        return []
    num_top = min(num_top, logits.shape[1])
    tokens = to_device(token_ids, logits.device)
    parts = [
        measure_logprobs(logits[first:end], tokens[first:end], num_top)
        for first in range(0, len(token_ids), PLACES_AT_ONCE)
        for end in [min(first + PLACES_AT_ONCE, len(token_ids))]
    ]
    return read_logprobs(torch.cat(parts).cpu().numpy(), token_ids, [num_top] * len(token_ids))


def scores(logits: Tensor, token_ids: Sequence[int], *, keep: bool) -> tuple[list[float], Tensor | None]:
    """Return the log-probabilities of ``token_ids``, each at its place of ``logits`` ``[places, vocab]``.

    With ``keep``, return the whole distributions (float32) too.
    """
    tokens = to_device(token_ids, logits.device).unsqueeze(1)
    if keep:
        distributions = logits.float().log_softmax(-1)
        return distributions.gather(1, tokens).squeeze(1).tolist(), distributions
    parts = [
        logits[first : first + PLACES_AT_ONCE].float().log_softmax(-1).gather(1, tokens[first : first + PLACES_AT_ONCE])
        for first in range(0, len(token_ids), PLACES_AT_ONCE)
    ]
    return torch.cat(parts).squeeze(1).tolist(), None
