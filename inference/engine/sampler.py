"""Next tokens for a batch, each row with its own parameters and generator.

Order: token masks, logit bias, penalties, temperature, top-k, top-p, min-p (transformers' order of warpers).
Log-probabilities that are reported are the model's own, before any of these. Rows that need nothing special cost one
argmax.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.messages import SamplingParams, TokenLogprob
from inference.engine.request import Sequence
from inference.engine.token_masks import TokenMasks


@dataclass(frozen=True, slots=True)
class Sampled:
    """Per row: the token, its log-probabilities where asked for, and whether the logits were finite."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    finite: list[bool]


def sample(logits: Tensor, sequences: list[Sequence], masks: TokenMasks | None = None) -> Sampled:
    """``logits`` is ``[rows, vocab]``; rows with NaN or infinite logits get a token that means nothing."""
    logits = logits.float()
    finite = torch.isfinite(logits).all(-1).tolist()
    params = [s.request.sampling for s in sequences]
    logprobs = _wanted_logprobs(logits, params)
    adjusted = _adjust(logits if masks is None else masks.apply(logits), sequences)
    tokens = adjusted.argmax(-1)
    random = [i for i, p in enumerate(params) if p.temperature > 0 and finite[i]]
    if random:
        tokens[random] = _draw(_warp(adjusted[random], [params[i] for i in random]), [sequences[i] for i in random])
    token_ids: list[int] = tokens.tolist()
    chosen = [
        None if row is None else token_logprob(row, token, p.logprobs or 0)
        for row, token, p in zip(logprobs, token_ids, params, strict=True)
    ]
    return Sampled(token_ids, chosen, finite)


def token_logprob(logprobs: Tensor, token_id: int, num_top: int) -> TokenLogprob:
    """Of one place: ``logprobs`` is ``[vocab]``."""
    top: tuple[tuple[int, float], ...] = ()
    if num_top:
        values, ids = logprobs.topk(min(num_top, logprobs.shape[0]))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token_id, float(logprobs[token_id]), top)


def note_token(sequence: Sequence, token_id: int) -> None:
    """Keep the counts that penalties need."""
    if sequence.counts is not None:
        sequence.counts[token_id] += 1
    if sequence.seen is not None:
        sequence.seen[token_id] = True


def _wanted_logprobs(logits: Tensor, params: list[SamplingParams]) -> list[Tensor | None]:
    return [None if p.logprobs is None else logits[i].log_softmax(-1) for i, p in enumerate(params)]


def _adjust(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """Logit bias and penalties, on a copy where any row has some."""
    special = [i for i, s in enumerate(sequences) if _is_adjusted(s.request.sampling)]
    if not special:
        return logits
    logits = logits.clone()
    for i in special:
        _adjust_row(logits[i], sequences[i])
    return logits


def _is_adjusted(p: SamplingParams) -> bool:
    return bool(p.logit_bias or p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0)


def _adjust_row(row: Tensor, sequence: Sequence) -> None:
    """In place on ``[vocab]``."""
    p = sequence.request.sampling
    if p.logit_bias:
        ids, values = zip(*p.logit_bias, strict=True)
        row.index_add_(0, torch.tensor(ids, device=row.device), torch.tensor(values, device=row.device))
    if p.repetition_penalty != 1.0:
        if sequence.seen is None:
            sequence.seen = torch.zeros(row.shape[0], dtype=torch.bool, device=row.device)
            sequence.seen[torch.tensor(sequence.token_ids, device=row.device)] = True
        weaker = torch.where(row > 0, row / p.repetition_penalty, row * p.repetition_penalty)
        torch.where(sequence.seen, weaker, row, out=row)
    if p.presence_penalty or p.frequency_penalty:
        if sequence.counts is None:
            generated = torch.tensor(sequence.token_ids[sequence.num_prompt :], dtype=torch.int64, device=row.device)
            sequence.counts = torch.bincount(generated, minlength=row.shape[0]).float()
        row -= p.frequency_penalty * sequence.counts + p.presence_penalty * (sequence.counts > 0)


def _warp(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """Probabilities ``[rows, vocab]`` after temperature, top-k, top-p and min-p."""
    temperature = logits.new_tensor([p.temperature for p in params]).unsqueeze(1)
    probs = (logits / temperature).softmax(-1)
    cut = [i for i, p in enumerate(params) if 0 < p.top_k < logits.shape[1] or p.top_p < 1.0]
    if cut:
        probs[cut] = _top_k_top_p(probs[cut], [params[i] for i in cut])
    if any(p.min_p > 0 for p in params):
        floor = probs.amax(-1, keepdim=True) * logits.new_tensor([p.min_p for p in params]).unsqueeze(1)
        probs = torch.where(probs < floor, 0.0, probs)
    return probs


def _top_k_top_p(probs: Tensor, params: list[SamplingParams]) -> Tensor:
    """Zero all but the k most likely, then all but the smallest set of them that reaches mass p."""
    vocab = probs.shape[1]
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=probs.device)
    k = torch.tensor([p.top_k or vocab for p in params], device=probs.device).unsqueeze(1)
    ordered = torch.where(rank < k, ordered, 0.0)
    ordered = ordered / ordered.sum(-1, keepdim=True)
    before = ordered.cumsum(-1) - ordered
    top_p = probs.new_tensor([p.top_p for p in params]).unsqueeze(1)
    kept = torch.where((before < top_p) | (rank == 0), ordered, 0.0)
    return torch.zeros_like(probs).scatter_(1, ids, kept)


def _draw(probs: Tensor, sequences: list[Sequence]) -> Tensor:
    """One token a row by inverse transform: a single uniform number from each row's generator."""
    uniform = torch.cat([torch.rand(1, dtype=torch.float64, generator=s.generator) for s in sequences])
    cdf = probs.double().cumsum(-1)
    target = (uniform.to(probs.device) * cdf[:, -1]).unsqueeze(1)
    drawn = torch.searchsorted(cdf, target, right=True).squeeze(1).clamp_(max=probs.shape[1] - 1)
    # Rounding can put the target on the very end of the distribution, past its last possible token.
    impossible = probs.gather(1, drawn.unsqueeze(1)).squeeze(1) <= 0
    return torch.where(impossible, probs.argmax(-1), drawn)
