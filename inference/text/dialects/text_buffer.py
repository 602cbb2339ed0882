"""Text that arrives in pieces, read by generators that pause where they need more of it.

A reading yields what it makes of the text, and None where it waits. Whoever drives it adds text, or says that none
comes any more, and goes on. So a reader of a notation is written as if the whole text were there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar


def first_mark(text: str, marks: Sequence[str]) -> tuple[int, int] | None:
    """Where the earliest of ``marks`` begins and ends."""
    places = [(place, place + len(mark)) for mark in marks if (place := text.find(mark)) >= 0]
    return min(places, default=None)


def open_end(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that could become one of ``marks``."""
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
Waiting = Generator[None, None, R]  # a reading that makes nothing, it only waits


class TextBuffer:
    """``text`` is what has come and was not taken. ``position`` counts the characters taken."""

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
        """Remember what is taken from here on, until :meth:`kept` asks for it."""
        self._kept = []

    def kept(self) -> str:
        """What was taken since :meth:`keep`; from here on nothing is remembered."""
        text, self._kept = "".join(self._kept or ()), None
        return text

    def more(self) -> Waiting[bool]:
        """Wait for some text that is not taken; False at the end."""
        while not self.text and not self.is_ended:
            yield None
        return bool(self.text)

    def starts_with(self, mark: str) -> Waiting[bool]:
        """Whether ``mark`` comes next, once that is certain."""
        while mark.startswith(self.text) and len(self.text) < len(mark) and not self.is_ended:
            yield None
        return self.text.startswith(mark)

    def accepts(self, mark: str) -> Waiting[bool]:
        """Take ``mark`` if it comes next."""
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
        """The text before the earliest of ``marks``, which stays and is returned too."""
        text, mark = yield from gathered(self.until(marks))
        self.give_back(mark or "")
        return text, mark

    def until(self, marks: Sequence[str]) -> Parser[str, str | None]:
        """Yield the text before the earliest of ``marks`` as soon as it is certain.

        Takes the mark and returns it; None when the text ends without one. No mark may begin with another one.
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


def mapped(reading: Parser[T, R], make: Callable[[T], Item]) -> Parser[Item, R]:
    """The same reading with ``make`` of each item."""
    while True:
        try:
            item = next(reading)
        except StopIteration as end:
            result: R = end.value
            return result
        yield None if item is None else make(item)


def gathered(reading: Parser[str, R]) -> Waiting[tuple[str, R]]:
    """All text of a reading at once, with its result."""
    parts: list[str] = []
    while True:
        try:
            item = next(reading)
        except StopIteration as end:
            return "".join(parts), end.value
        if item is None:
            yield None
        else:
            parts.append(item)


def stripped(reading: Parser[str, R]) -> Parser[str, R]:
    """The same text without the blanks at its end, which are held until it is known what follows them."""
    held = ""
    while True:
        try:
            item = next(reading)
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
