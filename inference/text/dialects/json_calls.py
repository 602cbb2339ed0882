"""JSON out of arriving text: single values passed on as they come, and calls written as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from inference.text.dialects.events import AnswerEvent, ToolCallWriter
from inference.text.dialects.text_buffer import Parser, TextBuffer, Waiting, gathered, mapped, stripped

_CLOSERS = {"{": "}", "[": "]"}
_AFTER_SCALAR = frozenset(",]}\n\r\t ")


class _Scan:
    """Where a value ends, by brackets and quotes alone: whether it is good JSON is for its reader to say."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self._is_scalar = False
        self.is_broken = False

    def end_in(self, text: str) -> int | None:
        """The place in ``text`` where the value has ended, or cannot go on (``is_broken``); None where it goes on."""
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
        """Whether the end of all text is the value's end."""
        return self._is_scalar

    def _string_goes_on(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            return False
        elif character < " ":  # no string holds control characters, so somebody forgot its end
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
    """Yield the text of the value that comes next; False where it breaks off or is none.

    What does not belong to it stays in the buffer.
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
    """The string that comes next, decoded; None where there is none. What was taken of it is lost then."""
    yield from buffer.skip_space()
    if not buffer.text.startswith('"'):
        return None
    raw, _ = yield from gathered(json_value(buffer))
    return decoded_text(raw)


def decoded_text(raw: str) -> str | None:
    """The string that ``raw`` is in JSON, None if it is something else."""
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
    """What is known of the object so far. ``early``: arguments that came before the name."""

    is_marked: bool
    name: str | None = None
    early: str | None = None
    has_arguments: bool = False


def call_object(buffer: TextBuffer, calls: ToolCallWriter, *, is_marked: bool = True) -> Parser[AnswerEvent, bool]:
    """Read the object that comes next. False where it is broken: then a call may be open, and the buffer is inside it.

    Keys may come in any order; those that mean nothing here are passed over. Where no mark says that this is a call,
    only one of a tool on offer is, with keys that belong to calls.
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
    """The arguments of the open call, as they come. Some models write them as JSON inside a JSON string."""
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
    """The open call's arguments are no JSON: all up to the earliest of ``marks``, which is taken, belongs to them."""
    mark = yield from mapped(stripped(buffer.until(marks)), calls.arguments)
    yield calls.end()
    return mark


def _unwrapped(text: str) -> str:
    if text == "null":
        return "{}"
    inner = decoded_text(text) if text.startswith('"') else None
    return text if inner is None else inner
