"""Tool calls as events: numbered, each begun once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inference.dialects.argument_form import ArgumentForms
from inference.dialects.events import ToolCallArguments, ToolCallEnd, ToolCallStart

NewId = Callable[[], str]


class Calls:
    """Makes the events of one answer's calls. At most one call is open at a time.

    ``names`` are those of the tools on offer, for notations that only a name tells from content; ``forms`` tells of
    their arguments, for those that write strings without quotes.
    """

    def __init__(
        self,
        new_id: NewId,
        names: frozenset[str] = frozenset(),
        forms: Mapping[str, ArgumentForms] | None = None,
    ) -> None:
        self.names = names
        self.forms: Mapping[str, ArgumentForms] = forms or {}
        self._new_id = new_id
        self._count = 0
        self.is_open = False

    def start(self, name: str) -> ToolCallStart:
        assert not self.is_open, "a call ends before the next one begins"
        self.is_open = True
        self._count += 1
        return ToolCallStart(self._count - 1, self._new_id(), name)

    def arguments(self, text: str) -> ToolCallArguments:
        return ToolCallArguments(self._count - 1, text)

    def end(self) -> ToolCallEnd:
        self.is_open = False
        return ToolCallEnd(self._count - 1)
