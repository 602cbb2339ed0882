"""What one rendering of a foreign template may cost. Without Django and torch.

The unit is a character written. Elements of new lists and dicts count as more, because they take more memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

ELEMENT_COST = 16
TURN_COST = 4  # of a loop
MAX_WORK = 32_000_000
MAX_CPU_S = 1.0  # of the rendering thread, so that a busy machine does not fail honest templates
UNITS_PER_CLOCK_READING = 4_096


class TemplateLimitError(Exception):
    """The template asked for more time, memory or output than rendering may take."""


class RenderBudget:
    """Counts units down to zero, and reads the thread's CPU clock now and then."""

    def __init__(self, max_work: int = MAX_WORK, max_cpu_s: float = MAX_CPU_S) -> None:
        self.left = max_work
        self._max_cpu_s = max_cpu_s
        self._ends_at = time.thread_time() + max_cpu_s
        self._next_reading = max_work - UNITS_PER_CLOCK_READING

    def spend(self, units: int) -> None:
        """Take ``units``; TemplateLimitError when they or the time are used up."""
        self.left -= units
        if self.left < 0:
            raise TemplateLimitError("it builds more text than a chat template may")
        if self.left < self._next_reading:
            self._next_reading = self.left - UNITS_PER_CLOCK_READING
            if time.thread_time() > self._ends_at:
                raise TemplateLimitError(f"it runs longer than {self._max_cpu_s:g} s")

    def spend_on_text(self, value: object) -> None:
        """Take what writing ``value`` out costs: shared parts each time, all characters."""
        self.spend(len(value) if isinstance(value, str) else written_cost(value, self.left))

    def spend_on_elements(self, value: object) -> None:
        """Take what building ``value`` costs: its elements, nested ones too; the strings in it exist already."""
        self.spend(len(value) if isinstance(value, str) else element_cost(value, self.left))


def written_cost(value: object, limit: int) -> int:
    """Elements and characters in ``value``; stops counting beyond ``limit``."""
    return _cost(value, limit, per_character=1)


def element_cost(value: object, limit: int) -> int:
    """Elements in ``value``, nested ones included; stops counting beyond ``limit``."""
    return _cost(value, limit, per_character=0)


def _cost(value: object, limit: int, *, per_character: int) -> int:
    total = 0
    stack = [value]
    while stack and total <= limit:
        item = stack.pop()
        total += ELEMENT_COST
        if isinstance(item, str):
            total += per_character * len(item)
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        elif isinstance(item, int):
            total += item.bit_length() // 3
    return total


_current: ContextVar[RenderBudget] = ContextVar("render_budget")


@contextmanager
def spending(budget: RenderBudget) -> Iterator[RenderBudget]:
    """Make ``budget`` the one that the sandbox charges in this thread."""
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def current_budget() -> RenderBudget:
    return _current.get()
