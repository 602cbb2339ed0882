"""Run a step so that an item that raises or runs out of memory fails alone.

An attempt that raises is undone and its items are run again in halves, until the cause is isolated: about ``2 log2 n``
attempts for one failing item of n. If memory runs out, a single item is also made smaller, if possible, before it
fails.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from inference.engine.stats import StepCounters

logger = logging.getLogger(__name__)

OUT_OF_MEMORY = "out_of_memory"
SERVER_ERROR = "server_error"
_MESSAGES = {
    OUT_OF_MEMORY: "The server ran out of memory for this request.",
    SERVER_ERROR: "The model failed on this request.",
}


class StepItem(Protocol):
    """One request's share of a step: a chunk of a sequence, or a text to embed."""

    @property
    def num_tokens(self) -> int: ...


P = TypeVar("P", bound=StepItem)
R = TypeVar("R")  # what an attempt returns
Restore = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Failure(Generic[P]):
    """An item that cannot run; ``code`` and ``message`` are shown to its client."""

    item: P
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StepResult(Generic[P, R]):
    """Successful attempts (items that ran together, with their output), and the failed items.

    An item that ran may be smaller than requested.
    """

    attempts: list[tuple[list[P], R]] = field(default_factory=list)
    failures: list[Failure[P]] = field(default_factory=list)

    @property
    def ran(self) -> list[P]:
        return [item for items, _ in self.attempts for item in items]


def nothing_to_restore(_: object) -> Restore:
    """Return an undo function for items that an attempt does not change: it does nothing."""
    return lambda: None


def cannot_shrink(_: object, __: str) -> None:
    """Return None: the item cannot be split."""


class StepIsolation(Generic[P, R]):
    """Runs items by ``run``, one forward pass over some of them.

    ``remember`` is called before each attempt and returns a function that restores an item. ``shrink`` makes a single
    failed item smaller, or returns None. ``free_memory`` is called after an attempt that ran out of memory.
    """

    def __init__(
        self,
        run: Callable[[list[P]], R],
        *,
        remember: Callable[[P], Restore] = nothing_to_restore,
        shrink: Callable[[P, str], P | None] = cannot_shrink,
        free_memory: Callable[[], None] | None = None,
    ) -> None:
        self._run = run
        self._remember = remember
        self._shrink = shrink
        self._free_memory = free_memory or free_unused_memory
        self.counters = StepCounters()

    def run(self, items: list[P]) -> StepResult[P, R]:
        """Run the items. Raises only errors of the device or the process, such as AcceleratorError and SystemExit."""
        began_at = time.monotonic()
        result: StepResult[P, R] = StepResult()
        self._attempt(items, result)
        self.counters.seconds.add(time.monotonic() - began_at)
        self.counters.sequences.add(len(items))
        self.counters.tokens.add(sum(item.num_tokens for item in items))
        return result

    def _attempt(self, items: list[P], result: StepResult[P, R]) -> None:
        restores = [self._remember(item) for item in items]
        code = self._try(items, result)
        if not code:
            return
        self.counters.faults[code] += 1
        for restore in restores:
            restore()
        if code == OUT_OF_MEMORY:
            self._free_memory()
        smaller = self._smaller(items, code)
        for some in smaller:
            self._attempt(some, result)
        if not smaller:
            result.failures.append(Failure(items[0], code, _MESSAGES[code]))

    def _try(self, items: list[P], result: StepResult[P, R]) -> str:
        """Run the items. Return the error code, or "". On return no traceback holds tensors."""
        try:
            result.attempts.append((items, self._run(items)))
        except torch.AcceleratorError:
            raise  # the device is lost for this process: every further call would raise too
        except Exception as error:
            # An error of a model or a hook concerns only the requests of this attempt.
            code = OUT_OF_MEMORY if is_out_of_memory(error) else SERVER_ERROR
            logger.exception("A step of %d sequences failed (%s); isolating the cause.", len(items), code)
            return code
        return ""

    def _smaller(self, items: list[P], code: str) -> list[list[P]]:
        """Return the smaller attempts to try instead; none for a single item that cannot shrink."""
        if len(items) > 1:
            middle = len(items) // 2
            return [items[:middle], items[middle:]]
        shrunk = self._shrink(items[0], code)
        return [] if shrunk is None else [[shrunk]]


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out. On the CPU torch raises a RuntimeError."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def free_unused_memory() -> None:
    """Free memory that torch caches or that only reference cycles keep alive."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
