"""Top-k, top-p, min-p and typical-p, in transformers' order of warpers.

Rows are not sorted completely if the best few hundred tokens suffice. Tokens that tie with the last one kept are kept,
so that a row's distribution does not depend on the order of the vocabulary or on other rows. The exception is a top-p
that one token satisfies: then only the token of greedy decoding is kept, even with ties.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

SUM_BLOCK = 256  # tokens
FIRST_WIDTH = 256  # tokens searched first for a probability mass
SECOND_WIDTH = 4096  # searched next; if these do not suffice either, all

Rows = slice | Tensor  # all rows, or their indices


@dataclass(frozen=True, slots=True)
class Limit:
    """One parameter: the rows that set it, and their values ``[rows, 1]``."""

    rows: Rows
    values: Tensor


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a batch. ``width``: the largest top-k. ``unbounded`` ``[rows of top_p]``: rows without a top-k."""

    top_k: Limit | None = None
    top_p: Limit | None = None
    min_p: Limit | None = None
    typical_p: Limit | None = None
    width: int = 0
    unbounded: Tensor | None = None


@dataclass(slots=True)
class Search:
    """How many of the best tokens are searched for a probability mass.

    ``reach`` 0: as many as necessary, which synchronises with the host. Otherwise a fixed number, and flags are
    appended to ``too_short`` that tell whether it was insufficient.
    """

    reach: int = 0
    too_short: list[Tensor] = field(default_factory=list)


def truncated_weights(
    scaled: Tensor, best: Tensor, tokens: Tensor, limits: Limits, search: Search | None = None
) -> Tensor:
    """Return ``[rows, vocab]`` weights, proportional to probabilities; 1 for the best token, 0 for excluded ones.

    ``scaled``: logits ``[rows, vocab]`` divided by temperature, float32. ``best`` ``[rows]``: their maxima, and
    ``tokens`` ``[rows]`` the first index of each.
    """
    search = search or Search()
    weights = (scaled - best.unsqueeze(1)).exp_()
    if limits.top_k is not None:
        _cut_top_k(weights, scaled, limits.top_k, limits.width)
    if limits.top_p is not None:
        _cut_top_p(weights, scaled, tokens, limits.top_p, limits, search)
    if limits.min_p is not None:
        _keep(weights, limits.min_p, weights[limits.min_p.rows], limits.min_p.values)
    if limits.typical_p is not None:
        _cut_typical(weights, limits.typical_p, search)
    return weights


def _cut_top_k(weights: Tensor, scaled: Tensor, limit: Limit, width: int) -> None:
    """Apply top-k. ``Limit.values`` are int64, at most ``width``."""
    some = scaled[limit.rows]
    floor = some.topk(width).values.gather(1, limit.values - 1)
    _keep(weights, limit, some, floor)


def _cut_top_p(weights: Tensor, scaled: Tensor, tokens: Tensor, limit: Limit, limits: Limits, search: Search) -> None:
    some, mass = scaled[limit.rows], weights[limit.rows]
    width = limits.width if limits.unbounded is None else max(limits.width, FIRST_WIDTH)
    needed = limit.values * row_sums(mass)
    floor = _floor_of_mass(some, mass, needed, width, limits.unbounded, search)
    is_alone = needed <= 1.0  # the best token's weight
    _keep(weights, limit, some, floor.masked_fill(is_alone, torch.inf))
    rows = torch.arange(len(weights), device=weights.device)[limit.rows]
    places = tokens[limit.rows]
    weights[rows, places] = weights[rows, places].masked_fill(is_alone.squeeze(1), 1.0)


def _cut_typical(weights: Tensor, limit: Limit, search: Search) -> None:
    """Apply typical-p (Meister et al. 2022, arXiv 2202.00666): keep tokens whose surprise is closest to the entropy."""
    some = weights[limit.rows]
    sums = row_sums(some)
    surprise = -(some / sums).log()  # infinite for excluded tokens
    entropy = row_sums(torch.where(some > 0, surprise * (-surprise).exp(), 0.0))
    nearness = -(surprise - entropy).abs()
    everywhere = torch.ones(len(some), dtype=torch.bool, device=some.device)
    needed = limit.values * sums
    floor = _floor_of_mass(nearness, some, needed, FIRST_WIDTH, everywhere, search)
    _keep(weights, limit, nearness, floor)


def row_sums(values: Tensor) -> Tensor:
    """Return the sum of each row, ``[rows, 1]``, in an order that does not depend on the number of rows.

    torch splits the sum of a single long row between threads, but not those of several rows, or of short ones.
    """
    rows, width = values.shape
    blocks = functional.pad(values, (0, -width % SUM_BLOCK)) if width % SUM_BLOCK else values
    return blocks.reshape(rows, -1, SUM_BLOCK).sum(-1).sum(-1, keepdim=True)


def _keep(weights: Tensor, limit: Limit, key: Tensor, floor: Tensor) -> None:
    """Keep only weights of the limited rows whose ``key`` ``[rows, vocab]`` is at least ``floor`` ``[rows, 1]``.

    The comparison result is float32, which is ten times faster than bool on a CPU.
    """
    is_kept = torch.ge(key, floor, out=torch.empty_like(key))
    if isinstance(limit.rows, slice):
        weights.mul_(is_kept)
    else:
        weights[limit.rows] = weights[limit.rows] * is_kept


def _floor_of_mass(
    key: Tensor, weights: Tensor, needed: Tensor, width: int, unbounded: Tensor | None, search: Search
) -> Tensor:
    """Return ``[rows, 1]``: the key of the last token needed so that the weights of the largest keys sum to ``needed``.

    Rows for which the best ``width`` tokens do not suffice are searched again with more. Only those in ``unbounded``
    can need it: for the others, a top-k of at most that width leaves no further tokens except ties.
    """
    vocab = key.shape[1]
    width = min(width if unbounded is None else max(width, search.reach), vocab)
    greatest = key.topk(width)
    reached = weights.gather(1, greatest.indices).double().cumsum(-1)
    num_before = (reached < needed).sum(-1, keepdim=True)
    floor = greatest.values.gather(1, num_before.clamp(max=width - 1))
    if unbounded is None or width == vocab:
        return floor
    short = (num_before.squeeze(1) == width) & unbounded
    if search.reach:
        search.too_short.append(short.any())
    elif bool(short.any()):
        rows = short.nonzero().squeeze(1)
        wider = SECOND_WIDTH if width < SECOND_WIDTH else vocab
        floor[rows] = _floor_of_mass(key[rows], weights[rows], needed[rows], wider, unbounded[rows], search)
    return floor
