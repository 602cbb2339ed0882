"""A buffer for text that arrives in pieces, and parsers, generators that pause while they need more text.

A parser yields its results, and None when it needs more text. The caller adds text to the buffer, or ends it, and
resumes the parser. So a parser is written as if the whole text were available.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar


def first_mark(text: str, marks: Sequence[str]) -> tuple[int, int] | None:
    """Return the start and end of the earliest of ``marks``; None if there is none."""
    places = [(place, place + len(mark)) for mark in marks if (place := text.find(mark)) >= 0]
    return min(places, default=None)


def open_end(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest suffix of ``text`` that is a prefix of one of ``marks``."""
    return max((_overlap(text, mark) for mark in marks), default=0)


def _overlap(text: str, mark: str) -> int:
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0


T = TypeVar("T")
R = TypeVar("R")
Item = TypeVar("Item")
Parser = Generator[Item | None, None, R]  # None: more text is needed
Waiting = Generator[None, None, R]  # a parser without results: it only waits


class TextBuffer:
    """``text`` has arrived and is not consumed yet. ``position`` counts consumed characters."""

    def __init__(self) -> None:
        self.text = ""
        self.is_ended = False
        self.position = 0
        self._kept: list[str] | None = None

    def add(self, text: str) -> None:
        self.text += text

    def end(self) -> None:
        self.is_ended = True

    def take(self, length: int) -> str:
        taken, self.text = self.text[:length], self.text[length:]
        self.position += len(taken)
        if self._kept is not None:
            self._kept.append(taken)
        return taken

    def give_back(self, text: str) -> None:
        """Undo the last :meth:`take` of ``text``."""
        self.text = text + self.text
        self.position -= len(text)
        if self._kept is not None:
            self._kept = ["".join(self._kept).removesuffix(text)]

    def keep(self) -> None:
        """Start to record consumed text, until :meth:`kept` is called."""
        self._kept = []

    def kept(self) -> str:
        """Return the text consumed since :meth:`keep`, and stop recording."""
        text, self._kept = "".join(self._kept or ()), None
        return text

    def more(self) -> Waiting[bool]:
        """Wait for more text. Returns False at the end."""
        while not self.text and not self.is_ended:
            yield None
        return bool(self.text)

    def starts_with(self, mark: str) -> Waiting[bool]:
        """Return whether ``mark`` comes next, as soon as that is certain."""
        while mark.startswith(self.text) and len(self.text) < len(mark) and not self.is_ended:
            yield None
        return self.text.startswith(mark)

    def accepts(self, mark: str) -> Waiting[bool]:
        """Consume ``mark`` if it comes next. Returns whether it did."""
        found = yield from self.starts_with(mark)
        if found:
            self.take(len(mark))
        return found

    def skip_space(self) -> Waiting[None]:
        while (yield from self.more()):
            rest = self.text.lstrip()
            self.take(len(self.text) - len(rest))
            if rest:
                return

    def before(self, marks: Sequence[str]) -> Waiting[tuple[str, str | None]]:
        """Consume the text before the earliest of ``marks``. Returns the text and the mark, which is not consumed."""
        text, mark = yield from gathered(self.until(marks))
        self.give_back(mark or "")
        return text, mark

    def until(self, marks: Sequence[str]) -> Parser[str, str | None]:
        """Yield the text before the earliest of ``marks`` as soon as it is certain.

        Consumes and returns the mark; None if the text ends without one. No mark may be a prefix of another one.
        """
        while True:
            found = first_mark(self.text, marks)
            if found is not None:
                start, end = found
                if start:
                    yield self.take(start)
                return self.take(end - start)
            certain = len(self.text) - (0 if self.is_ended else open_end(self.text, marks))
            if certain:
                yield self.take(certain)
            if self.is_ended:
                return None
            yield None


def mapped(parser: Parser[T, R], make: Callable[[T], Item]) -> Parser[Item, R]:
    """Apply ``make`` to each result of a parser."""
    while True:
        try:
            item = next(parser)
        except StopIteration as end:
            result: R = end.value
            return result
        yield None if item is None else make(item)


def gathered(parser: Parser[str, R]) -> Waiting[tuple[str, R]]:
    """Return the whole text of a parser, and its return value."""
    parts: list[str] = []
    while True:
        try:
            item = next(parser)
        except StopIteration as end:
            return "".join(parts), end.value
        if item is None:
            yield None
        else:
            parts.append(item)


def stripped(parser: Parser[str, R]) -> Parser[str, R]:
    """Remove whitespace at the end of a parser's text. Whitespace is held until more text follows."""
    held = ""
    while True:
        try:
            item = next(parser)
        except StopIteration as end:
            result: R = end.value
            return result
        if item is None:
            yield None
            continue
        held += item
        certain = len(held.rstrip())
        if certain:
            yield held[:certain]
            held = held[certain:]
