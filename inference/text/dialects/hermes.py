"""Hermes' calls, which Qwen and many others write too: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

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
    """What stands between the marks: an object, or several, or what the model made of it."""
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
    """The rest of an object that is none: the open call's arguments as they stand, or content where no call is open."""
    kept = buffer.kept()
    if calls.is_open:
        yield from broken_call(buffer, calls, (END,))
    else:
        rest, mark = yield from gathered(buffer.until((END,)))
        yield from content.say(START + kept + rest + (mark or ""))
