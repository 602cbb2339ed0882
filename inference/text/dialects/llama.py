"""Llama's notations of calls.

Llama 3 writes ``{"name": ..., "parameters": {...}}``, or several of these separated by semicolons. Without a mark, an
object is a call only if it names an offered tool. Llama 3.2 and Llama 4 write only a Python list,
``[name(key=value), ...]``.
"""

from __future__ import annotations

from inference.text.dialects.events import AnswerEvent, ContentWriter, ToolCallWriter
from inference.text.dialects.json_calls import broken_call, call_object
from inference.text.dialects.python_call import python_call
from inference.text.dialects.text_buffer import Parser, TextBuffer
from inference.text.dialects.thinking import begins_with

PYTHON_TAG = "<|python_tag|>"


def parse_llama_json(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
    content = ContentWriter()
    yield from begins_with(buffer, PYTHON_TAG)
    while True:
        buffer.keep()
        yield from buffer.skip_space()
        if not (yield from buffer.starts_with("{")):
            break
        if not (yield from call_object(buffer, calls, is_marked=False)):
            break
        yield from buffer.skip_space()
        if not ((yield from buffer.accepts(";")) or (yield from buffer.accepts(","))):
            buffer.keep()
            break
    kept = buffer.kept()
    if calls.is_open:
        yield from broken_call(buffer, calls, ())
        return
    yield from content.write(kept)
    yield from content.until(buffer, ())


PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"


def parse_pythonic(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
    content = ContentWriter()
    yield from begins_with(buffer, PYTHON_START)
    buffer.keep()
    yield from buffer.skip_space()
    if (yield from buffer.accepts("[")):
        yield from _list(buffer, calls)
    kept = buffer.kept()
    if calls.is_open:
        yield from broken_call(buffer, calls, (PYTHON_END,))
    else:
        yield from content.write(kept)
    while (yield from content.until(buffer, (PYTHON_END,))) is not None:
        pass


def _list(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
    while True:
        yield from buffer.skip_space()
        if not (yield from python_call(buffer, calls)):
            return
        buffer.keep()
        yield from buffer.skip_space()
        if not (yield from buffer.accepts(",")):
            if (yield from buffer.accepts("]")):
                buffer.keep()
            return
