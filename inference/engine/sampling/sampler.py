"""Next tokens for a batch, each row with its own parameters and generator.

Order: grammar and other bans, logit bias, penalties, temperature, top-k, top-p, min-p, typical-p (transformers' order
of warpers). Log-probabilities that are reported are the model's own, before any of these. Rows that need nothing
special cost the search for their greatest logit, and a step costs one copy from the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from inference.engine.messages import TokenLogprob
from inference.engine.sampling.logit_edits import edit
from inference.engine.sampling.logprobs import measure_logprobs, read_logprobs
from inference.engine.sampling.table import LogprobRows, RandomRows, SamplingTable, build_table
from inference.engine.sampling.token_masks import TokenMasks
from inference.engine.sampling.transfers import to_device
from inference.engine.sampling.truncation import SECOND_WIDTH, Search, truncated_weights
from inference.engine.scheduling.sequence import Sequence

PEAK_BLOCK = 512  # tokens
DRAW_BLOCK = 128  # tokens
NUMBERS_AT_ONCE = 64  # drawn from a sequence's generator
NO_NUMBERS = torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Per row: the token, its log-probabilities where asked for, and whether the token means anything.

    It means nothing where the logits are not ``finite``, or where no token ``is_possible`` since all are forbidden.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    finite: list[bool]
    is_possible: list[bool]


class Sampler:
    """Chooses tokens, and keeps the batch's parameters on the device for as long as the batch stays the same.

    ``reach`` is that of a first :class:`Search`; None looks as far as needed on the CPU, where nobody waits for that.
    """

    def __init__(self, reach: int | None = None) -> None:
        self._table: SamplingTable | None = None
        self._reach = reach

    def sample(self, logits: Tensor, sequences: list[Sequence], masks: TokenMasks | None = None) -> Sampled:
        """``logits`` is ``[rows, vocab]`` in any type and is left as it is. A sequence may stand in several rows
        in a row: there the further ones come after its drafts.

        Rows whose greatest logit is NaN or infinite are not finite; single places of minus infinity are fine.
        """
        if not sequences:
            return Sampled([], [], [], [])
        table = self._table_for(logits, sequences, masks.rows if masks else ())
        uniforms = _uniforms(table.random, logits.device) if table.random else NO_NUMBERS
        first = (0 if logits.device.type == "cpu" else SECOND_WIDTH) if self._reach is None else self._reach
        sampled = _sample(logits, table, masks, uniforms, Search(first))
        # Rare, and only now known: a distribution so flat that the first look did not suffice.
        return sampled or _sample(logits, table, masks, uniforms, Search())  # type: ignore[return-value]

    def forget(self) -> None:
        """Let go of the last batch's sequences."""
        self._table = None

    def _table_for(self, logits: Tensor, sequences: list[Sequence], masked: tuple[int, ...]) -> SamplingTable:
        if self._table is None or not self._table.fits(sequences, masked):
            self._table = build_table(sequences, masked, logits.shape[1], logits.device)
        return self._table


def sample(logits: Tensor, sequences: list[Sequence], masks: TokenMasks | None = None) -> Sampled:
    """:meth:`Sampler.sample` for a batch of a single step."""
    return Sampler().sample(logits, sequences, masks)


def note_token(sequence: Sequence, token_id: int) -> None:
    """Keep the counts that penalties need."""
    if sequence.history is not None:
        sequence.history.note(token_id)


def draw_ahead(sequence: Sequence, count: int) -> None:
    """Have at least ``count`` of the sequence's own numbers at hand."""
    while len(sequence.uniforms) < count:
        numbers = torch.rand(NUMBERS_AT_ONCE, dtype=torch.float64, generator=sequence.generator).tolist()
        sequence.uniforms[:0] = numbers  # the last is the next


def _sample(
    logits: Tensor, table: SamplingTable, masks: TokenMasks | None, uniforms: Tensor, search: Search
) -> Sampled | None:
    """None where the search turned out too short."""
    best, tokens = peaks(logits)
    is_possible = torch.ones_like(tokens, dtype=torch.bool)
    if table.worked is not None:
        tokens[table.worked], is_possible[table.worked] = _choose(
            logits[table.worked], best[table.worked], tokens[table.worked], table, masks, uniforms, search
        )
    return _to_host(logits, tokens, torch.isfinite(best), is_possible, table.logprobs, search.too_short)


def _choose(
    logits: Tensor,
    best: Tensor,
    tokens: Tensor,
    table: SamplingTable,
    masks: TokenMasks | None,
    uniforms: Tensor,
    search: Search,
) -> tuple[Tensor, Tensor]:
    """Tokens of the worked rows and whether they have one; ``best`` and ``tokens`` are those of the bare logits."""
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
    """``[rows]``, in their order: further rows of a sequence take its further numbers."""
    return to_device([_uniform(sequence) for sequence in random.sequences], device, torch.float64)


def _uniform(sequence: Sequence) -> float:
    """The next of the sequence's own numbers in [0, 1), so that its tokens do not depend on the rows beside it."""
    draw_ahead(sequence, 1)
    return sequence.uniforms.pop()


def _to_host(
    logits: Tensor,
    tokens: Tensor,
    finite: Tensor,
    is_possible: Tensor,
    wanted: LogprobRows | None,
    too_short: list[Tensor],
) -> Sampled | None:
    """All that the step has to say in one copy; None where one of the flags ``too_short`` is set."""
    rows = len(tokens)
    told = [tokens.int(), finite.int(), is_possible.int()]
    if wanted is not None:
        told.append(measure_logprobs(logits[wanted.rows], tokens[wanted.rows], max(wanted.num_tops)).flatten())
    told.extend(flag.int().view(1) for flag in too_short)
    host = torch.cat(told).cpu().numpy()
    if too_short:
        if host[-len(too_short) :].any():
            return None
        host = host[: -len(too_short)]
    token_ids: list[int] = host[:rows].tolist()
    logprobs: list[TokenLogprob | None] = [None] * rows
    if wanted is not None:
        measured = host[3 * rows :].reshape(len(wanted.places), -1)
        ids = [token_ids[place] for place in wanted.places]
        for place, logprob in zip(wanted.places, read_logprobs(measured, ids, wanted.num_tops), strict=True):
            logprobs[place] = logprob
    return Sampled(
        token_ids,
        logprobs,
        host[rows : 2 * rows].astype(bool).tolist(),
        host[2 * rows : 3 * rows].astype(bool).tolist(),
    )


def peaks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Greatest values ``[rows]`` and the first places that have them, in the logits' own type. NaN is the greatest.

    In two steps, blocks and then the best block: torch's ``max`` that also gives places is 2 to 6 times slower than
    ``amax``, its ``argmax`` 12 times for bfloat16 on a CPU.
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
    """One token a row: ``weights`` ``[rows, vocab]`` need not add up to 1, ``uniform`` ``[rows]`` is float64 in [0, 1).

    In two steps, blocks and then places in a block, so that only one pass goes over the vocabulary. A row without a
    weight above zero gives a token that means nothing.
    """
    rows, vocab = weights.shape
    blocks = functional.pad(weights, (0, -vocab % DRAW_BLOCK)) if vocab % DRAW_BLOCK else weights
    blocks = blocks.reshape(rows, -1, DRAW_BLOCK)  # [rows, blocks, DRAW_BLOCK]
    sums = blocks.sum(-1).double()
    block, rest = _find(sums, uniform.unsqueeze(1))
    chosen = blocks[torch.arange(rows, device=weights.device), block.squeeze(1)].double()
    place, _ = _find(chosen, rest)
    drawn = (block * DRAW_BLOCK + place).clamp_(max=vocab - 1)
    # Rounding can put the target on the very end of the distribution, past its last possible token.
    is_possible = weights.gather(1, drawn).squeeze(1) > 0
    return torch.where(is_possible, drawn.squeeze(1), weights.argmax(-1)) if rows else drawn.squeeze(1)


def _find(weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Where ``share`` ``[rows, 1]`` of the total is reached, and which share of that place's own weight is used up."""
    ends = weights.cumsum(-1)
    target = share * ends[:, -1:]
    place = torch.searchsorted(ends, target, right=True).clamp_(max=weights.shape[1] - 1)
    own = weights.gather(1, place)
    return place, ((target - (ends.gather(1, place) - own)) / own).clamp_(0.0, 1.0)
