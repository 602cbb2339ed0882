"""Sample the next tokens of a batch, each row with its own parameters and generator.

Order: grammar and other bans, logit bias, penalties, temperature, top-k, top-p, min-p, typical-p (transformers' order
of warpers). Reported log-probabilities are the model's, before any of these. Rows without special parameters only
need an argmax, and a step needs one copy from the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from inference.engine.messages import TokenLogprob
from inference.engine.sampling.logit_edits import edit
from inference.engine.sampling.logprobs import measure_logprobs, read_logprobs
from inference.engine.sampling.table import LogprobRows, RandomRows, SamplingTable, SimpleRows, build_table
from inference.engine.sampling.token_masks import TokenMasks
from inference.engine.sampling.transfers import HostCopy, to_device
from inference.engine.sampling.truncation import SECOND_WIDTH, Search, truncated_weights
from inference.engine.scheduling.sequence import Sequence

PEAK_BLOCK = 512  # tokens
DRAW_BLOCK = 128  # tokens
NUMBERS_AT_ONCE = 64  # drawn from a sequence's generator
NO_NUMBERS = torch.empty(0, dtype=torch.float64)

Meanwhile = Callable[[Tensor], None]  # gets the sampled tokens, on the device


@dataclass(frozen=True, slots=True)
class Sampled:
    """The result per row: the token, its log-probabilities if requested, and whether the token is valid.

    It is invalid if the logits are not ``finite``, or no token ``is_possible`` because all are forbidden.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    finite: list[bool]
    is_possible: list[bool]


class Sampler:
    """Samples tokens, and keeps the batch's parameters on the device while the batch stays the same.

    ``reach``: that of a first :class:`Search`; None searches as far as necessary on the CPU, where that is free.
    """

    def __init__(self, reach: int | None = None) -> None:
        self._table: SamplingTable | None = None
        self._reach = reach

    def sample(
        self,
        logits: Tensor,
        sequences: list[Sequence],
        masks: TokenMasks | None = None,
        meanwhile: Meanwhile | None = None,
    ) -> Sampled:
        """Sample from ``logits`` ``[rows, vocab]`` of any dtype, which are not modified. Consecutive rows may belong to
        one sequence: the further ones are those after its drafts.

        Rows whose largest logit is NaN or infinite are not finite; minus infinity at single tokens is allowed.
        ``meanwhile`` is called with the tokens ``[rows]`` on the device while they are copied to the host, again if
        they change.
        """
        if not sequences:
            return Sampled([], [], [], [])
        table = self._table_for(logits, sequences, masks.rows if masks else ())
        if table.simple is not None and _can_choose_on(logits.device):
            return _choose_quickly(logits, table, table.simple, meanwhile)
        uniforms = _uniforms(table.random, logits.device) if table.random else NO_NUMBERS
        first = (0 if logits.device.type == "cpu" else SECOND_WIDTH) if self._reach is None else self._reach
        sampled = _sample(logits, table, masks, uniforms, Search(first), meanwhile)
        # Rare, and only known now: a distribution so flat that the first search was not sufficient.
        return sampled or _sample(logits, table, masks, uniforms, Search(), meanwhile)  # type: ignore[return-value]

    def forget(self) -> None:
        """Release the sequences of the last batch."""
        self._table = None

    def _table_for(self, logits: Tensor, sequences: list[Sequence], masked: tuple[int, ...]) -> SamplingTable:
        if self._table is None or not self._table.fits(sequences, masked):
            self._table = build_table(sequences, masked, logits.shape[1], logits.device)
        return self._table


def sample(logits: Tensor, sequences: list[Sequence], masks: TokenMasks | None = None) -> Sampled:
    """Call :meth:`Sampler.sample` for a batch of a single step."""
    return Sampler().sample(logits, sequences, masks)


def note_token(sequence: Sequence, token_id: int) -> None:
    """Update the token counts for penalties."""
    if sequence.history is not None:
        sequence.history.note(token_id)


def draw_ahead(sequence: Sequence, count: int) -> None:
    """Draw random numbers of the sequence until at least ``count`` are available."""
    while len(sequence.uniforms) < count:
        numbers = torch.rand(NUMBERS_AT_ONCE, dtype=torch.float64, generator=sequence.generator).tolist()
        sequence.uniforms[:0] = numbers  # the last one is used next


def _can_choose_on(device: torch.device) -> bool:
    from inference.engine.kernels.gpu.sampling import works_on  # requires Triton

    return works_on(device)


def _choose_quickly(logits: Tensor, table: SamplingTable, simple: SimpleRows, meanwhile: Meanwhile | None) -> Sampled:
    """Sample a simple batch in three kernels instead of up to 80."""
    from inference.engine.kernels.gpu.sampling import choose_tokens  # requires Triton

    uniforms = None
    if simple.temperatures is not None:
        numbers = [0.0 if s.request.sampling.is_greedy else _uniform(s) for s in table.sequences]
        uniforms = to_device(numbers, logits.device, torch.float64)
    tokens, flags = choose_tokens(logits, simple.temperatures, uniforms, simple.limits)
    sampled = _to_host(logits, tokens, flags, table.logprobs, [], meanwhile)
    assert sampled is not None, "no search can be too short"
    return sampled


def _sample(
    logits: Tensor,
    table: SamplingTable,
    masks: TokenMasks | None,
    uniforms: Tensor,
    search: Search,
    meanwhile: Meanwhile | None,
) -> Sampled | None:
    """Sample the batch. Returns None if the search was not sufficient."""
    best, tokens = peaks(logits)
    is_possible = torch.ones_like(tokens, dtype=torch.bool)
    if table.worked is not None:
        tokens[table.worked], is_possible[table.worked] = _choose(
            logits[table.worked], best[table.worked], tokens[table.worked], table, masks, uniforms, search
        )
    flags = torch.stack([tokens.int(), torch.isfinite(best).int(), is_possible.int()], 1)
    return _to_host(logits, tokens, flags, table.logprobs, search.too_short, meanwhile)


def _choose(
    logits: Tensor,
    best: Tensor,
    tokens: Tensor,
    table: SamplingTable,
    masks: TokenMasks | None,
    uniforms: Tensor,
    search: Search,
) -> tuple[Tensor, Tensor]:
    """Sample the edited rows. ``best`` and ``tokens``: largest value and argmax of the unedited logits."""
    if not table.edits.are_none:
        logits = logits.to(torch.float32, copy=True)
        edit(logits, table.edits, masks)
        best, tokens = peaks(logits)
    if table.random is not None:
        tokens = tokens.clone()
        tokens[table.random.rows] = _draw(logits, best, tokens, table.random, uniforms, search)
    return tokens, best != -torch.inf


def _draw(logits: Tensor, best: Tensor, tokens: Tensor, random: RandomRows, uniforms: Tensor, search: Search) -> Tensor:
    scaled = logits[random.rows].float() / random.temperature
    scaled_best = best[random.rows].float() / random.temperature.squeeze(1)
    return draw(truncated_weights(scaled, scaled_best, tokens[random.rows], random.limits, search), uniforms)


def _uniforms(random: RandomRows, device: torch.device) -> Tensor:
    """Return a random number per row. Further rows of a sequence use its further numbers."""
    return to_device([_uniform(sequence) for sequence in random.sequences], device, torch.float64)


def _uniform(sequence: Sequence) -> float:
    """Return the next random number of the sequence in [0, 1), which does not depend on other rows."""
    draw_ahead(sequence, 1)
    return sequence.uniforms.pop()


def _to_host(
    logits: Tensor,
    tokens: Tensor,
    flags: Tensor,
    requested: LogprobRows | None,
    too_short: list[Tensor],
    meanwhile: Meanwhile | None,
) -> Sampled | None:
    """Copy the results of the step to the host at once. Returns None if one of the flags ``too_short`` is set.

    ``flags``: int32 ``[rows, 3]``, the tokens, whether the logits are finite, and whether a token is possible.
    """
    rows = len(tokens)
    parts = [flags.flatten()]
    if requested is not None:
        parts.append(
            measure_logprobs(logits[requested.rows], tokens[requested.rows], max(requested.num_tops)).flatten()
        )
    parts.extend(flag.int().view(1) for flag in too_short)
    copy = HostCopy(torch.cat(parts) if len(parts) > 1 else parts[0])
    if meanwhile is not None:
        meanwhile(tokens)
    host = copy.numpy()
    if too_short:
        if host[-len(too_short) :].any():
            return None
        host = host[: -len(too_short)]
    by_row = host[: 3 * rows].reshape(rows, 3)
    token_ids: list[int] = by_row[:, 0].tolist()
    logprobs: list[TokenLogprob | None] = [None] * rows
    if requested is not None:
        measured = host[3 * rows :].reshape(len(requested.places), -1)
        ids = [token_ids[place] for place in requested.places]
        for place, logprob in zip(requested.places, read_logprobs(measured, ids, requested.num_tops), strict=True):
            logprobs[place] = logprob
    return Sampled(token_ids, logprobs, by_row[:, 1].astype(bool).tolist(), by_row[:, 2].astype(bool).tolist())


def peaks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest value per row and its first index, in the logits' dtype. NaN counts as the largest.

    Searches blocks and then the best block, because torch's ``max`` with indices is 2 to 6 times slower than ``amax``,
    and its ``argmax`` 12 times for bfloat16 on a CPU.
    """
    rows, vocab = logits.shape
    whole = vocab - vocab % PEAK_BLOCK
    if whole == 0:
        best = logits.max(-1)
        return best.values, best.indices
    by_block = logits[:, :whole].reshape(rows, -1, PEAK_BLOCK).amax(-1)
    if whole < vocab:
        by_block = torch.cat([by_block, logits[:, whole:].amax(-1, keepdim=True)], 1)
    start = by_block.max(-1).indices.unsqueeze(1) * PEAK_BLOCK
    places = (start + torch.arange(PEAK_BLOCK, device=logits.device)).clamp_(max=vocab - 1)
    best = logits.gather(1, places).max(-1)
    return best.values, places.gather(1, best.indices.unsqueeze(1)).view(rows)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw a token per row. ``weights`` ``[rows, vocab]`` need not sum to 1; ``uniform`` ``[rows]`` is float64 in [0,
    1).

    Draws a block and then a token in it, so that only one pass over the vocabulary is needed. The token of a row
    without positive weights is meaningless.
    """
    rows, vocab = weights.shape
    blocks = functional.pad(weights, (0, -vocab % DRAW_BLOCK)) if vocab % DRAW_BLOCK else weights
    blocks = blocks.reshape(rows, -1, DRAW_BLOCK)  # [rows, blocks, DRAW_BLOCK]
    sums = blocks.sum(-1).double()
    block, rest = _find(sums, uniform.unsqueeze(1))
    chosen = blocks[torch.arange(rows, device=weights.device), block.squeeze(1)].double()
    place, _ = _find(chosen, rest)
    drawn = (block * DRAW_BLOCK + place).clamp_(max=vocab - 1)
    # Rounding can move the target to the end of the distribution, past its last possible token.
    is_possible = weights.gather(1, drawn).squeeze(1) > 0
    return torch.where(is_possible, drawn.squeeze(1), weights.argmax(-1)) if rows else drawn.squeeze(1)


def _find(weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place where ``share`` ``[rows, 1]`` of the total is reached, and the share used of its weight."""
    ends = weights.cumsum(-1)
    target = share * ends[:, -1:]
    place = torch.searchsorted(ends, target, right=True).clamp_(max=weights.shape[1] - 1)
    own = weights.gather(1, place)
    return place, ((target - (ends.gather(1, place) - own)) / own).clamp_(0.0, 1.0)
