"""Parse calls in Python syntax, ``name(key=value, ...)``, and convert their arguments to JSON."""

from __future__ import annotations

import ast
import json

from inference.text.dialects.events import AnswerEvent, ToolCallWriter
from inference.text.dialects.text_buffer import Parser, TextBuffer, Waiting

MAX_LITERAL = 1_000_000  # characters
_OPENERS, _CLOSERS = frozenset("([{"), frozenset(")]}")


def python_call(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, bool]:
    """Parse the next call if it names an offered tool. If it is invalid, the buffer stays inside it."""
    name, mark = yield from buffer.before(("(", "\n"))
    if mark != "(" or name.strip() not in calls.names:
        buffer.give_back(name)
        return False
    yield from buffer.accepts("(")
    yield calls.start(name.strip())
    yield calls.arguments("{")
    before = ""
    while True:
        yield from buffer.skip_space()
        if (yield from buffer.accepts(")")):
            break
        key, mark = yield from buffer.before(("=", ")", ","))
        if mark != "=" or not key.strip().isidentifier():
            buffer.give_back(key)
            return False
        yield from buffer.accepts("=")
        value = yield from _value(buffer)
        if value is None:
            buffer.give_back(f"{key}=")
            return False
        yield calls.arguments(f"{before}{json.dumps(key.strip())}: {_as_json(value)}")
        before = ", "
        yield from buffer.accepts(",")
    yield calls.arguments("}")
    yield calls.end()
    return True


def _value(buffer: TextBuffer) -> Waiting[str | None]:
    """Return the text up to the comma or bracket that ends the value; None if the text ends first."""
    depth, quote, is_escaped, place = 0, "", False, 0
    while True:
        while place == len(buffer.text):
            if buffer.is_ended:
                return None
            yield None
        character = buffer.text[place]
        if quote:
            if not is_escaped and character == quote:
                quote = ""
            is_escaped = character == "\\" and not is_escaped
        elif character in "'\"":
            quote = character
        elif character in _OPENERS:
            depth += 1
        elif depth == 0 and (character == "," or character in _CLOSERS):
            return buffer.take(place).strip()
        elif character in _CLOSERS:
            depth -= 1
        place += 1


def _as_json(text: str) -> str:
    """Convert a Python literal to JSON. JSON literals and other text stay unchanged."""
    if len(text) > MAX_LITERAL:
        return text
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
