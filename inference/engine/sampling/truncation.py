"""Top-k, top-p, min-p and typical-p: which tokens may be drawn, in transformers' order of warpers.

No row is sorted whole where the best few hundred tokens decide. Tokens that tie with the last one kept are kept, so
that a row's distribution does not depend on the order of the vocabulary nor on the rows beside it. The exception is a
top-p that one token suffices for: then only the token that greedy decoding takes is left, whatever ties with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

FIRST_WIDTH = 256  # tokens looked at first where only a mass is asked for
SECOND_WIDTH = 4096  # then; where these do not suffice either, all

Rows = slice | Tensor  # all rows, or their places


@dataclass(frozen=True, slots=True)
class Limit:
    """One parameter: the rows that have it, and their values ``[rows, 1]``."""

    rows: Rows
    values: Tensor


@dataclass(frozen=True, slots=True)
class Limits:
    """``width`` is the greatest top-k; ``unbounded`` ``[rows of top_p]`` marks those without a top-k."""

    top_k: Limit | None = None
    top_p: Limit | None = None
    min_p: Limit | None = None
    typical_p: Limit | None = None
    width: int = 0
    unbounded: Tensor | None = None


@dataclass(slots=True)
class Search:
    """How many of the best tokens are looked at where only a mass is asked for.

    ``reach`` 0: as many as are needed, and the host waits to see that. Else so many at once, and ``too_short`` gets
    flags that say whether they did not suffice.
    """

    reach: int = 0
    too_short: list[Tensor] = field(default_factory=list)


def truncated_weights(
    scaled: Tensor, best: Tensor, tokens: Tensor, limits: Limits, search: Search | None = None
) -> Tensor:
    """``[rows, vocab]`` probabilities up to a factor a row; the best token has weight 1, forbidden ones 0.

    ``scaled`` are logits ``[rows, vocab]`` over temperature in float32, ``best`` ``[rows]`` their greatest and
    ``tokens`` ``[rows]`` the first ones that have it.
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
    """``Limit.values`` are int64, at most ``width``."""
    some = scaled[limit.rows]
    floor = some.topk(width).values.gather(1, limit.values - 1)
    _keep(weights, limit, some, floor)


def _cut_top_p(weights: Tensor, scaled: Tensor, tokens: Tensor, limit: Limit, limits: Limits, search: Search) -> None:
    some, mass = scaled[limit.rows], weights[limit.rows]
    width = limits.width if limits.unbounded is None else max(limits.width, FIRST_WIDTH)
    needed = limit.values * mass.sum(-1, keepdim=True)
    floor = _floor_of_mass(some, mass, needed, width, limits.unbounded, search)
    is_alone = needed <= 1.0  # the best token's weight
    _keep(weights, limit, some, floor.masked_fill(is_alone, torch.inf))
    rows = torch.arange(len(weights), device=weights.device)[limit.rows]
    places = tokens[limit.rows]
    weights[rows, places] = weights[rows, places].masked_fill(is_alone.squeeze(1), 1.0)


def _cut_typical(weights: Tensor, limit: Limit, search: Search) -> None:
    """Meister et al. 2022, arXiv 2202.00666: the tokens whose surprise is nearest to the entropy."""
    some = weights[limit.rows]
    surprise = -(some / some.sum(-1, keepdim=True)).log()  # infinite where forbidden
    entropy = torch.where(some > 0, surprise * (-surprise).exp(), 0.0).sum(-1, keepdim=True)
    nearness = -(surprise - entropy).abs()
    everywhere = torch.ones(len(some), dtype=torch.bool, device=some.device)
    needed = limit.values * some.sum(-1, keepdim=True)
    floor = _floor_of_mass(nearness, some, needed, FIRST_WIDTH, everywhere, search)
    _keep(weights, limit, nearness, floor)


def _keep(weights: Tensor, limit: Limit, key: Tensor, floor: Tensor) -> None:
    """Of the limited rows, only weights whose ``key`` ``[rows, vocab]`` is at least ``floor`` ``[rows, 1]``.

    The comparison is written as float32, which a CPU does ten times faster than as bool.
    """
    is_kept = torch.ge(key, floor, out=torch.empty_like(key))
    if isinstance(limit.rows, slice):
        weights.mul_(is_kept)
    else:
        weights[limit.rows] = weights[limit.rows] * is_kept


def _floor_of_mass(
    key: Tensor, weights: Tensor, needed: Tensor, width: int, unbounded: Tensor | None, search: Search
) -> Tensor:
    """``[rows, 1]``: the key of the last token needed so that the greatest keys' weights add up to ``needed``.

    Rows for which the best ``width`` tokens do not suffice are looked at again with more. Only those marked in
    ``unbounded`` can be such: a top-k that is no wider leaves the others no further tokens but ties.
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
