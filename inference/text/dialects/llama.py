"""Llama's notations of calls.

Llama 3 writes ``{"name": ..., "parameters": {...}}`` alone, or several with semicolons between them. No mark tells them
from an answer that is JSON, so an object is a call only if it names a tool on offer. Llama 3.2 and Llama 4 write a
Python list, ``[name(key=value), ...]``, and nothing but it.
"""

from __future__ import annotations

from inference.text.dialects.events import AnswerEvent, Calls, Prose
from inference.text.dialects.json_calls import broken_call, call_object
from inference.text.dialects.python_call import python_call
from inference.text.dialects.source import Reading, Source
from inference.text.dialects.thinking import begins_with

PYTHON_TAG = "<|python_tag|>"


def read_llama_json(source: Source, calls: Calls) -> Reading[AnswerEvent, None]:
    prose = Prose()
    yield from begins_with(source, PYTHON_TAG)
    while True:
        source.keep()
        yield from source.skip_space()
        if not (yield from source.starts_with("{")):
            break
        if not (yield from call_object(source, calls, is_marked=False)):
            break
        yield from source.skip_space()
        if not ((yield from source.accepts(";")) or (yield from source.accepts(","))):
            source.keep()
            break
    kept = source.kept()
    if calls.is_open:
        yield from broken_call(source, calls, ())
        return
    yield from prose.say(kept)
    yield from prose.until(source, ())


PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"


def read_pythonic(source: Source, calls: Calls) -> Reading[AnswerEvent, None]:
    prose = Prose()
    yield from begins_with(source, PYTHON_START)
    source.keep()
    yield from source.skip_space()
    if (yield from source.accepts("[")):
        yield from _list(source, calls)
    kept = source.kept()
    if calls.is_open:
        yield from broken_call(source, calls, (PYTHON_END,))
    else:
        yield from prose.say(kept)
    while (yield from prose.until(source, (PYTHON_END,))) is not None:
        pass


def _list(source: Source, calls: Calls) -> Reading[AnswerEvent, None]:
    while True:
        yield from source.skip_space()
        if not (yield from python_call(source, calls)):
            return
        source.keep()
        yield from source.skip_space()
        if not (yield from source.accepts(",")):
            if (yield from source.accepts("]")):
                source.keep()
            return
