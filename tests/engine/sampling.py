"""Sequences without a model, and the distributions that the sampler draws them from."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.engine.output.detokenizer import Detokenizer, TokenDecoder
from inference.engine.sampling.logit_edits import edit
from inference.engine.sampling.sampler import peaks
from inference.engine.sampling.table import build_table
from inference.engine.sampling.token_masks import TokenMasks
from inference.engine.sampling.truncation import truncated_weights
from inference.engine.scheduling.sequence import Sequence
from tests.builders import build_request, build_tokenizer

VOCAB = 50
CPU = torch.device("cpu")
TOKENIZER = build_tokenizer().backend_tokenizer


def sequence(*, seed: int = 0, generated: tuple[int, ...] = (), stop_ids: tuple[int, ...] = (), **sampling) -> Sequence:
    """Of the prompt 1, 2, 3."""
    request = build_request((1, 2, 3), **sampling)
    decoder = Detokenizer(TokenDecoder(TOKENIZER))
    generator = torch.Generator().manual_seed(seed)
    made = Sequence(request, object(), 0.0, 8, decoder, generator, stop_ids=frozenset(stop_ids))
    made.token_ids.extend(generated)
    return made


def random_logits(rows: int, seed: int = 0, *, vocab: int = VOCAB, scale: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def edited(logits: Tensor, *sequences: Sequence, masks: TokenMasks | None = None) -> Tensor:
    """The logits of rows that are all worked on, after bans, biases and penalties."""
    table = build_table(list(sequences), masks.rows if masks else (), logits.shape[1], CPU)
    assert table.worked == slice(None)
    logits = logits.float().clone()
    edit(logits, table.edits, masks)
    return logits


def distribution(logits: Tensor, *sequences: Sequence) -> Tensor:
    """``[rows, vocab]``: the probabilities that rows are drawn by; greedy ones have one token each."""
    random = build_table(list(sequences), (), logits.shape[1], CPU).random
    best = peaks(logits)[1].unsqueeze(1)
    weights = torch.zeros(logits.shape, dtype=torch.float64).scatter_(1, best, 1.0)
    if random is not None:
        rows = [i for i, sequence in enumerate(sequences) if not sequence.request.sampling.is_greedy]
        scaled = edited(logits[rows], *(sequences[i] for i in rows)) / random.temperature
        weights[rows] = truncated_weights(scaled, *peaks(scaled), random.limits).double()
    return weights / weights.sum(-1, keepdim=True)
