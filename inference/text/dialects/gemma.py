"""Gemma's notations of calls.

FunctionGemma and Gemma 4 write ``call:name{key:value}`` between marks, with marks around strings too. Gemma 3 writes
Python in a fence, ``tool_code``, sometimes inside ``print`` or a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from inference.text.dialects.events import AnswerEvent, Calls, Prose
from inference.text.dialects.json_calls import broken_call
from inference.text.dialects.python_call import python_call
from inference.text.dialects.source import Reading, Source, Waiting, gathered, mapped

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


def reader_of(marks: GemmaMarks) -> Callable[[Source, Calls], Reading[AnswerEvent, None]]:
    def read(source: Source, calls: Calls) -> Reading[AnswerEvent, None]:
        prose = Prose()
        while (yield from prose.until(source, (marks.start,))) is not None:
            yield from _call(source, calls, prose, marks)

    return read


def _call(source: Source, calls: Calls, prose: Prose, marks: GemmaMarks) -> Reading[AnswerEvent, None]:
    source.keep()
    yield from source.skip_space()
    yield from source.accepts(PREFIX)
    name, mark = yield from source.before(("{", marks.end))
    if mark != "{" or not name.strip():
        yield from gathered(source.until((marks.end,)))
        kept = source.kept()
        yield from prose.say(marks.start + kept)
        return
    source.kept()
    yield calls.start(name.strip())
    if not (yield from mapped(_value(source, marks.quote, MAX_DEPTH), calls.arguments)):
        yield from broken_call(source, calls, (marks.end,))
        return
    yield calls.end()
    yield from gathered(source.until((marks.end,)))


def _value(source: Source, quote: str, depth: int) -> Reading[str, bool]:
    """Yield JSON for the value that comes next; False where it breaks off."""
    yield from source.skip_space()
    if (yield from source.accepts(quote)):
        yield '"'
        mark = yield from mapped(source.until((quote,)), _inside_string)
        yield '"'
        return mark is not None
    if depth and (yield from source.accepts("{")):
        return (yield from _members(source, quote, depth - 1, "}"))
    if depth and (yield from source.accepts("[")):
        return (yield from _members(source, quote, depth - 1, "]"))
    text, mark = yield from source.before((",", "}", "]", "\n"))
    yield _scalar(text.strip())
    return mark is not None and bool(text.strip())


def _members(source: Source, quote: str, depth: int, closer: str) -> Reading[str, bool]:
    """Those of an object or a list, and the end of it."""
    yield "{" if closer == "}" else "["
    before = ""
    while True:
        yield from source.skip_space()
        if (yield from source.accepts(closer)):
            break
        if closer == "}":
            key = yield from _key(source, quote)
            if key is None:
                return False
            yield f"{before}{json.dumps(key, ensure_ascii=False)}: "
        else:
            yield before
        if not (yield from _value(source, quote, depth)):
            return False
        before = ", "
        yield from source.skip_space()
        yield from source.accepts(",")
    yield closer
    return True


def _key(source: Source, quote: str) -> Waiting[str | None]:
    if (yield from source.accepts(quote)):
        key, mark = yield from gathered(source.until((quote,)))
        yield from source.accepts(":")
        return key if mark else None
    key, mark = yield from source.before((":", "}", "\n"))
    if mark != ":":
        source.give_back(key)
        return None
    yield from source.accepts(":")
    return key.strip()


def _inside_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _scalar(text: str) -> str:
    """JSON's own words and numbers as they are, anything else as a string."""
    is_json = text in {"true", "false", "null"} or NUMBER.fullmatch(text) is not None
    return text if is_json else json.dumps(text, ensure_ascii=False)


FENCE, END = "```tool_code", "```"


def read_gemma_code(source: Source, calls: Calls) -> Reading[AnswerEvent, None]:
    prose = Prose()
    while (yield from prose.until(source, (FENCE,))) is not None:
        yield from _block(source, calls, prose)


def _block(source: Source, calls: Calls, prose: Prose) -> Reading[AnswerEvent, None]:
    source.keep()
    has_calls = False
    while True:
        yield from source.skip_space()
        if has_calls and (yield from source.accepts(END)):
            return
        for opening in ("[", "print("):
            yield from source.accepts(opening)
        if not (yield from python_call(source, calls)):
            break
        has_calls = True
        source.keep()
        for closing in (")", ",", "]"):
            yield from source.skip_space()
            yield from source.accepts(closing)
    kept = source.kept()
    if calls.is_open:
        yield from broken_call(source, calls, (END,))
        return
    rest, mark = yield from gathered(source.until((END,)))
    yield from prose.say(("" if has_calls else FENCE) + kept + rest + (mark or ""))
