"""Calls of Hermes, Qwen and many other models: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from inference.text.dialects.events import AnswerEvent, ContentWriter, ToolCallWriter
from inference.text.dialects.json_calls import broken_call, call_object
from inference.text.dialects.text_buffer import Parser, TextBuffer, gathered

START, END = "<tool_call>", "</tool_call>"


def parse_hermes(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
    content = ContentWriter()
    while (yield from content.until(buffer, (START,))) is not None:
        yield from _block(buffer, calls, content)


def _block(buffer: TextBuffer, calls: ToolCallWriter, content: ContentWriter) -> Parser[AnswerEvent, None]:
    """Parse the text between the marks: one or more objects, or invalid text."""
    while True:
        buffer.keep()
        yield from buffer.skip_space()
        if not (yield from call_object(buffer, calls)):
            yield from _broken_block(buffer, calls, content)
            return
        yield from buffer.skip_space()
        if (yield from buffer.accepts(END)) or not (yield from buffer.starts_with("{")):
            return


def _broken_block(buffer: TextBuffer, calls: ToolCallWriter, content: ContentWriter) -> Parser[AnswerEvent, None]:
    """Pass on the rest of an invalid object: as arguments of the open call, or as content if none is open."""
    kept = buffer.kept()
    if calls.is_open:
        yield from broken_call(buffer, calls, (END,))
    else:
        rest, mark = yield from gathered(buffer.until((END,)))
        yield from content.write(START + kept + rest + (mark or ""))
