"""DeepSeek's calls: V3 and R1 write a kind, a name and a fenced object between marks, V3.1 a name and an object."""

from __future__ import annotations

from inference.text.dialects.events import AnswerEvent, ContentWriter, ToolCallWriter
from inference.text.dialects.json_calls import arguments, broken_call
from inference.text.dialects.text_buffer import Parser, TextBuffer, gathered

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
KIND, FENCE = "function", "```json"


def parse_deepseek(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
    content = ContentWriter()
    while True:
        mark = yield from content.until(buffer, (CALLS_BEGIN, CALL_BEGIN, CALLS_END))
        if mark is None:
            return
        if mark == CALL_BEGIN:
            yield from _call(buffer, calls, content)


def _call(buffer: TextBuffer, calls: ToolCallWriter, content: ContentWriter) -> Parser[AnswerEvent, None]:
    buffer.keep()
    name, mark = yield from gathered(buffer.until((SEPARATOR, CALL_END)))
    if mark == SEPARATOR and name.strip() == KIND:
        name, mark = yield from gathered(buffer.until(("\n", CALL_END)))
        yield from buffer.skip_space()
        yield from buffer.accepts(FENCE)
    kept = buffer.kept()
    if mark in {None, CALL_END} or not name.strip():
        yield from content.write(CALL_BEGIN + kept)
        return
    yield calls.start(name.strip())
    if not (yield from arguments(buffer, calls)):
        yield from broken_call(buffer, calls, (CALL_END,))
        return
    yield calls.end()
    yield from gathered(buffer.until((CALL_END,)))  # the end of the fence
