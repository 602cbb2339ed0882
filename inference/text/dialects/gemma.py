"""Gemma's notations of calls.

FunctionGemma and Gemma 4 write ``call:name{key:value}`` between marks, with marks around strings too. Gemma 3 writes
Python in a fence, ``tool_code``, sometimes inside ``print`` or a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from inference.text.dialects.events import AnswerEvent, ContentWriter, ToolCallWriter
from inference.text.dialects.json_calls import broken_call
from inference.text.dialects.python_call import python_call
from inference.text.dialects.text_buffer import Parser, TextBuffer, Waiting, gathered, mapped

MAX_DEPTH = 32
PREFIX = "call:"
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class GemmaMarks:
    start: str
    end: str
    quote: str


FUNCTION_GEMMA = GemmaMarks("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA_4 = GemmaMarks("<|tool_call>", "<tool_call|>", '<|"|>')


def parser_for(marks: GemmaMarks) -> Callable[[TextBuffer, ToolCallWriter], Parser[AnswerEvent, None]]:
    def read(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
        content = ContentWriter()
        while (yield from content.until(buffer, (marks.start,))) is not None:
            yield from _call(buffer, calls, content, marks)

    return read


def _call(
    buffer: TextBuffer, calls: ToolCallWriter, content: ContentWriter, marks: GemmaMarks
) -> Parser[AnswerEvent, None]:
    buffer.keep()
    yield from buffer.skip_space()
    yield from buffer.accepts(PREFIX)
    name, mark = yield from buffer.before(("{", marks.end))
    if mark != "{" or not name.strip():
        yield from gathered(buffer.until((marks.end,)))
        kept = buffer.kept()
        yield from content.write(marks.start + kept)
        return
    buffer.kept()
    yield calls.start(name.strip())
    if not (yield from mapped(_value(buffer, marks.quote, MAX_DEPTH), calls.arguments)):
        yield from broken_call(buffer, calls, (marks.end,))
        return
    yield calls.end()
    yield from gathered(buffer.until((marks.end,)))


def _value(buffer: TextBuffer, quote: str, depth: int) -> Parser[str, bool]:
    """Yield the next value as JSON. Returns False if it is incomplete or invalid."""
    yield from buffer.skip_space()
    if (yield from buffer.accepts(quote)):
        yield '"'
        mark = yield from mapped(buffer.until((quote,)), _inside_string)
        yield '"'
        return mark is not None
    if depth and (yield from buffer.accepts("{")):
        return (yield from _members(buffer, quote, depth - 1, "}"))
    if depth and (yield from buffer.accepts("[")):
        return (yield from _members(buffer, quote, depth - 1, "]"))
    text, mark = yield from buffer.before((",", "}", "]", "\n"))
    yield _scalar(text.strip())
    return mark is not None and bool(text.strip())


def _members(buffer: TextBuffer, quote: str, depth: int, closer: str) -> Parser[str, bool]:
    """Yield the members of an object or a list, up to and including its closing bracket."""
    yield "{" if closer == "}" else "["
    before = ""
    while True:
        yield from buffer.skip_space()
        if (yield from buffer.accepts(closer)):
            break
        if closer == "}":
            key = yield from _key(buffer, quote)
            if key is None:
                return False
            yield f"{before}{json.dumps(key, ensure_ascii=False)}: "
        else:
            yield before
        if not (yield from _value(buffer, quote, depth)):
            return False
        before = ", "
        yield from buffer.skip_space()
        yield from buffer.accepts(",")
    yield closer
    return True


def _key(buffer: TextBuffer, quote: str) -> Waiting[str | None]:
    if (yield from buffer.accepts(quote)):
        key, mark = yield from gathered(buffer.until((quote,)))
        yield from buffer.accepts(":")
        return key if mark else None
    key, mark = yield from buffer.before((":", "}", "\n"))
    if mark != ":":
        buffer.give_back(key)
        return None
    yield from buffer.accepts(":")
    return key.strip()


def _inside_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _scalar(text: str) -> str:
    """Return JSON literals and numbers unchanged, anything else as a string."""
    is_json = text in {"true", "false", "null"} or NUMBER.fullmatch(text) is not None
    return text if is_json else json.dumps(text, ensure_ascii=False)


FENCE, END = "```tool_code", "```"


def parse_gemma_code(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
    content = ContentWriter()
    while (yield from content.until(buffer, (FENCE,))) is not None:
        yield from _block(buffer, calls, content)


def _block(buffer: TextBuffer, calls: ToolCallWriter, content: ContentWriter) -> Parser[AnswerEvent, None]:
    buffer.keep()
    has_calls = False
    while True:
        yield from buffer.skip_space()
        if has_calls and (yield from buffer.accepts(END)):
            return
        for opening in ("[", "print("):
            yield from buffer.accepts(opening)
        if not (yield from python_call(buffer, calls)):
            break
        has_calls = True
        buffer.keep()
        for closing in (")", ",", "]"):
            yield from buffer.skip_space()
            yield from buffer.accepts(closing)
    kept = buffer.kept()
    if calls.is_open:
        yield from broken_call(buffer, calls, (END,))
        return
    rest, mark = yield from gathered(buffer.until((END,)))
    yield from content.write(("" if has_calls else FENCE) + kept + rest + (mark or ""))
