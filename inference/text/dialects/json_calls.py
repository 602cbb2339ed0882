"""Parse JSON from arriving text: single values, passed on as they arrive, and calls written as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from inference.text.dialects.events import AnswerEvent, ToolCallWriter
from inference.text.dialects.text_buffer import Parser, TextBuffer, Waiting, gathered, mapped, stripped

_CLOSERS = {"{": "}", "[": "]"}
_AFTER_SCALAR = frozenset(",]}\n\r\t ")


class _Scan:
    """Finds the end of a value by brackets and quotes alone, without validating the JSON."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self._is_scalar = False
        self.is_broken = False

    def end_in(self, text: str) -> int | None:
        """Return the place in ``text`` where the value ends or becomes invalid (``is_broken``), or None."""
        for place, character in enumerate(text):
            if self._in_string:
                if self._string_goes_on(character):
                    continue
                if self.is_broken:
                    return place
            elif self._is_scalar and character in _AFTER_SCALAR:
                return place
            else:
                self._outside_strings(character)
                if self.is_broken:
                    return place
            if not (self._closers or self._in_string or self._is_scalar):
                return place + 1
        return None

    @property
    def may_end(self) -> bool:
        """Return whether the value is complete if the text ends here."""
        return self._is_scalar

    def _string_goes_on(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            return False
        elif character < " ":  # control characters are invalid in strings: its end was forgotten
            self.is_broken = True
            return False
        return True

    def _outside_strings(self, character: str) -> None:
        if character == '"':
            self._in_string = True
        elif character in _CLOSERS:
            self._closers.append(_CLOSERS[character])
        elif character in "}]":
            if not self._closers or self._closers.pop() != character:
                self.is_broken = True
        elif not self._closers:
            self._is_scalar = character not in ",:"
            self.is_broken = not self._is_scalar


def json_value(buffer: TextBuffer) -> Parser[str, bool]:
    """Yield the text of the next value. Returns False if it is incomplete or not a value.

    Text after the value stays in the buffer.
    """
    yield from buffer.skip_space()
    scan = _Scan()
    while (yield from buffer.more()):
        end = scan.end_in(buffer.text)
        taken = buffer.take(len(buffer.text) if end is None else end)
        if taken:
            yield taken
        if end is not None:
            return not scan.is_broken
    return scan.may_end


def json_text(buffer: TextBuffer) -> Waiting[str | None]:
    """Return the next string, decoded; None if there is none. The text consumed by then is lost."""
    yield from buffer.skip_space()
    if not buffer.text.startswith('"'):
        return None
    raw, _ = yield from gathered(json_value(buffer))
    return decoded_text(raw)


def decoded_text(raw: str) -> str | None:
    """Decode ``raw`` as a JSON string; None if it is something else."""
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


NAMES = ("name", "function_name")
ARGUMENTS = ("arguments", "parameters", "args")


_SCALARS = frozenset('"-0123456789tfn')
KNOWN = frozenset((*NAMES, *ARGUMENTS, "type", "id", "description"))


@dataclass(slots=True)
class _Object:
    """The object so far. ``early``: arguments that precede the name."""

    is_marked: bool
    name: str | None = None
    early: str | None = None
    has_arguments: bool = False


def call_object(buffer: TextBuffer, calls: ToolCallWriter, *, is_marked: bool = True) -> Parser[AnswerEvent, bool]:
    """Parse the next object as a call. Returns False if it is invalid; a call may be open then.

    Keys may be in any order, and unknown keys are ignored. Without a mark, an object is a call only if it names an
    offered tool and has only keys of calls.
    """
    found = _Object(is_marked)
    if not (yield from buffer.accepts("{")):
        return False
    while True:
        yield from buffer.skip_space()
        if (yield from buffer.accepts("}")):
            break
        if not (yield from _member(buffer, calls, found)):
            return False
        yield from buffer.skip_space()
        yield from buffer.accepts(",")
    if found.name is None:
        return False
    if not found.has_arguments:
        yield calls.arguments("{}")
    yield calls.end()
    return True


def _member(buffer: TextBuffer, calls: ToolCallWriter, found: _Object) -> Parser[AnswerEvent, bool]:
    key = yield from json_text(buffer)
    yield from buffer.skip_space()
    if key is None or not (yield from buffer.accepts(":")) or not (found.is_marked or key in KNOWN):
        return False
    yield from buffer.skip_space()
    if key in NAMES and found.name is None:
        return (yield from _name(buffer, calls, found))
    if key in ARGUMENTS and found.name is not None and not found.has_arguments:
        found.has_arguments = True
        return (yield from arguments(buffer, calls))
    text, is_whole = yield from gathered(json_value(buffer))
    if key in ARGUMENTS and found.early is None:
        found.early = text
    return is_whole


def _name(buffer: TextBuffer, calls: ToolCallWriter, found: _Object) -> Parser[AnswerEvent, bool]:
    name = yield from json_text(buffer)
    if not name or not (found.is_marked or name in calls.names):
        return False
    found.name = name
    yield calls.start(name)
    if found.early is not None:
        found.has_arguments = True
        yield calls.arguments(_unwrapped(found.early))
    return True


def arguments(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, bool]:
    """Yield the arguments of the open call as they arrive. Some models write them as JSON in a JSON string."""
    yield from buffer.skip_space()
    if buffer.text[:1] in {"{", "["}:
        return (yield from mapped(json_value(buffer), calls.arguments))
    if buffer.text[:1] not in _SCALARS:
        return False
    text, is_whole = yield from gathered(json_value(buffer))
    if text:
        yield calls.arguments(_unwrapped(text))
    return is_whole


def broken_call(buffer: TextBuffer, calls: ToolCallWriter, marks: Sequence[str]) -> Parser[AnswerEvent, str | None]:
    """Yield the text up to the earliest of ``marks`` as arguments of the open call, which are not valid JSON."""
    mark = yield from mapped(stripped(buffer.until(marks)), calls.arguments)
    yield calls.end()
    return mark


def _unwrapped(text: str) -> str:
    if text == "null":
        return "{}"
    inner = decoded_text(text) if text.startswith('"') else None
    return text if inner is None else inner
