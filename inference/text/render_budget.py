"""The budget of rendering an untrusted template. No Django or torch here.

The unit is one output character. Elements of new lists and dicts cost more, because they take more memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

ELEMENT_COST = 16
TURN_COST = 4  # of a loop iteration
MAX_WORK = 32_000_000
MAX_CPU_S = 1.0  # CPU time of the rendering thread, so that a busy machine does not fail valid templates
UNITS_PER_CLOCK_READING = 4_096


class TemplateLimitError(Exception):
    """The template exceeded its budget of time, memory or output."""


class RenderBudget:
    """Counts units down to zero, and checks the thread's CPU clock occasionally."""

    def __init__(self, max_work: int = MAX_WORK, max_cpu_s: float = MAX_CPU_S) -> None:
        self.left = max_work
        self._max_cpu_s = max_cpu_s
        self._ends_at = time.thread_time() + max_cpu_s
        self._next_reading = max_work - UNITS_PER_CLOCK_READING

    def spend(self, units: int) -> None:
        """Spend ``units``. Raise TemplateLimitError if they or the time are used up."""
        self.left -= units
        if self.left < 0:
            raise TemplateLimitError("it builds too much text")
        if self.left < self._next_reading:
            self._next_reading = self.left - UNITS_PER_CLOCK_READING
            if time.thread_time() > self._ends_at:
                raise TemplateLimitError(f"it runs longer than {self._max_cpu_s:g} s")

    def spend_on_text(self, value: object) -> None:
        """Spend the cost of writing ``value``: all characters, and shared objects each time."""
        self.spend(len(value) if isinstance(value, str) else written_cost(value, self.left))

    def spend_on_elements(self, value: object) -> None:
        """Spend the cost of building ``value``: its elements, nested ones included, without existing strings."""
        self.spend(len(value) if isinstance(value, str) else element_cost(value, self.left))


def written_cost(value: object, limit: int) -> int:
    """Return the number of elements and characters in ``value``; stops counting beyond ``limit``."""
    return _cost(value, limit, per_character=1)


def element_cost(value: object, limit: int) -> int:
    """Return the number of elements in ``value``, nested ones included; stops counting beyond ``limit``."""
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
    """Charge the sandbox's work in this thread to ``budget``."""
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def current_budget() -> RenderBudget:
    return _current.get()
