"""Bit masks of the allowed next tokens, for grammars and thinking budgets.

A matcher belongs to one sequence. In a step, a mask thread fills its row while the model runs; after the rows are
collected, the engine thread uses it. The two never overlap, so there are no locks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.engine.messages import ThinkingBudget

if TYPE_CHECKING:
    from llguidance import LLMatcher

logger = logging.getLogger(__name__)
WORD_BITS = 32
ALL = -1  # int32 with all bits set
TOO_COMPLEX = "The grammar became too complex for the server's limits. Simplify it."
MAX_MASK_THREADS = 8


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The masks of a step. ``rows``: the masked rows of its logits; ``bits``: int32 ``[len(rows), ceil(vocab / 32)]``.

    Bit i of word w allows token 32 * w + i, which is llguidance's layout.
    """

    rows: tuple[int, ...]
    bits: Tensor

    def banned(self, vocab_size: int, device: torch.device) -> Tensor:
        """Return bool ``[len(rows), vocab_size]`` on ``device``, True for forbidden tokens."""
        if device.type == "cpu":
            # Four times faster than shifts, but only available in numpy.
            octets = self.bits.cpu().contiguous().numpy().view(np.uint8)
            allowed = torch.from_numpy(np.unpackbits(octets, axis=1, bitorder="little", count=vocab_size))
        else:
            allowed = unpack_by_shifts(self.bits.to(device, non_blocking=True))[:, :vocab_size]
            allowed = torch.nn.functional.pad(allowed, (0, vocab_size - allowed.shape[1]))
        return allowed == 0


def unpack_by_shifts(bits: Tensor) -> Tensor:
    """Unpack int32 ``[rows, words]`` to ``[rows, 32 * words]`` of 0 and 1, on the tensor's device."""
    places = torch.arange(WORD_BITS, dtype=torch.int32, device=bits.device)
    return ((bits.unsqueeze(-1) >> places) & 1).flatten(1)


class Matcher(Protocol):
    """Decides which tokens may come next; see :class:`GrammarMatcher`."""

    @property
    def error(self) -> str: ...

    @property
    def is_finished(self) -> bool: ...

    def fill(self, bits: NDArray[np.int32]) -> None: ...

    def accept(self, token_id: int) -> None: ...


class GrammarMatcher:
    """Follows a sequence through its grammar. ``error`` is a sentence once it cannot continue."""

    def __init__(self, template: LLMatcher) -> None:
        self._template = template
        self._matcher: LLMatcher | None = None  # copied by the first fill, off the engine thread
        self.error = ""

    @property
    def is_finished(self) -> bool:
        """Return whether the output is complete. An output that may continue is not finished."""
        return self._matcher is not None and not self.error and self._matcher.is_stopped()

    def fill(self, bits: NDArray[np.int32]) -> None:
        """Write the mask of the next token into ``[words]``; never raises. Masks of a matcher in error allow all."""
        try:
            if self._matcher is None:
                self._matcher = self._template.deep_copy()
            assert bits.flags.c_contiguous
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            if self._matcher.is_error():
                self._note_error()
        except BaseException:  # a Rust panic is not an Exception; it must end this sequence only
            logger.exception("A token mask could not be computed.")
            self.error = self.error or TOO_COMPLEX
        if self.error:
            bits.fill(ALL)

    def accept(self, token_id: int) -> None:
        """Advance by a sampled token; never raises. A token that the grammar forbids sets ``error``."""
        if self.error or self._matcher is None:
            return
        try:
            if not self._matcher.consume_token(token_id):
                self._note_error()
        except BaseException:  # a Rust panic, as in fill
            logger.exception("A token could not be added to a grammar.")
            self.error = TOO_COMPLEX

    def _note_error(self) -> None:
        assert self._matcher is not None
        logger.warning("A grammar failed: %s", self._matcher.get_error()[:500])
        self.error = TOO_COMPLEX


class PendingMasks:
    """Masks that threads are computing."""

    def __init__(self, rows: tuple[int, ...], bits: NDArray[np.int32], work: list[Future[None]]) -> None:
        self._rows = rows
        self._bits = bits
        self._work = work

    def wait(self) -> None:
        """Wait until no thread uses the matchers; also after a failed forward pass."""
        wait(self._work)

    def result(self) -> TokenMasks | None:
        """Return the masks; None if no row has a grammar."""
        self.wait()
        return TokenMasks(self._rows, torch.from_numpy(self._bits)) if self._rows else None


class MaskComputer:
    """The mask threads of one model. llguidance releases the GIL while it computes, so the forward pass continues."""

    def __init__(self, vocab_size: int, num_threads: int | None = None) -> None:
        self._num_words = -(-vocab_size // 32)
        self._num_threads = num_threads or max(1, min(MAX_MASK_THREADS, (os.cpu_count() or 1) // 4))
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="masks")  # starts threads when needed

    def start(self, matchers: Sequence[Matcher | None]) -> PendingMasks:
        """Start to compute the masks of a step's sampling rows. Rows without a grammar have no matcher."""
        rows = tuple(row for row, matcher in enumerate(matchers) if matcher is not None)
        bits = np.empty((len(rows), self._num_words), dtype=np.int32)
        jobs = [(matcher, bits[i]) for i, matcher in enumerate(m for m in matchers if m is not None)]
        parts = [jobs[i :: self._num_threads] for i in range(min(self._num_threads, len(jobs)))]
        return PendingMasks(rows, bits, [self._pool.submit(_fill_all, part) for part in parts])

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _fill_all(jobs: list[tuple[Matcher, NDArray[np.int32]]]) -> None:
    for matcher, bits in jobs:
        matcher.fill(bits)


class ThinkingMatcher:
    """Allows all tokens, or those of ``grammar``, until the budget for reasoning is used up; then only its end."""

    def __init__(self, budget: ThinkingBudget, grammar: GrammarMatcher | None) -> None:
        self._budget = budget
        self._grammar = grammar
        self._is_thinking = budget.has_begun
        self._has_ended = False
        self._num_tokens = 0

    @property
    def error(self) -> str:
        return self._grammar.error if self._grammar is not None else ""

    @property
    def is_finished(self) -> bool:
        return self._grammar is not None and self._grammar.is_finished

    def fill(self, bits: NDArray[np.int32]) -> None:
        """Write the mask; see :meth:`GrammarMatcher.fill`."""
        if self._grammar is None:
            bits.fill(ALL)
        else:
            self._grammar.fill(bits)
        if self._is_thinking and self._num_tokens >= self._budget.max_tokens:
            bits.fill(0)
            word, bit = divmod(self._budget.end_id, 32)
            bits[word] = np.array(1 << bit, dtype=np.uint32).astype(np.int32)

    def accept(self, token_id: int) -> None:
        """Advance by a token; see :meth:`GrammarMatcher.accept`."""
        if self._grammar is not None:
            self._grammar.accept(token_id)
        if token_id == self._budget.end_id:
            self._is_thinking, self._has_ended = False, True
        elif self._is_thinking:
            self._num_tokens += 1
        elif token_id == self._budget.start_id and not self._has_ended:
            self._is_thinking = True
