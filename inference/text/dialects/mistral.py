"""Mistral's calls: ``[TOOL_CALLS]`` before a list of objects, or, newer, a name, ``[ARGS]`` and an object."""

from __future__ import annotations

from inference.text.dialects.events import AnswerEvent, ContentWriter, ToolCallWriter
from inference.text.dialects.json_calls import arguments, broken_call, call_object
from inference.text.dialects.text_buffer import Parser, TextBuffer, gathered

MARK, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def parse_mistral(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
    content = ContentWriter()
    mark = yield from content.until(buffer, (MARK,))
    while mark is not None:
        buffer.keep()
        yield from buffer.skip_space()
        if (yield from buffer.starts_with("[")) or buffer.text.startswith("{"):
            is_whole = yield from _objects(buffer, calls)
        else:
            is_whole = yield from _named(buffer, calls)
        kept = buffer.kept()
        if calls.is_open:
            mark = yield from broken_call(buffer, calls, (MARK,))
            continue
        if not is_whole:
            yield from content.write(MARK + kept)
        mark = yield from content.until(buffer, (MARK,))


def _objects(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, bool]:
    is_list = yield from buffer.accepts("[")
    while True:
        yield from buffer.skip_space()
        if is_list and (yield from buffer.accepts("]")):
            return True
        if not (yield from call_object(buffer, calls)):
            return False
        buffer.keep()  # the text so far is a call, not content, even if the rest is invalid
        yield from buffer.skip_space()
        if not (yield from buffer.accepts(",")):
            yield from buffer.accepts("]")
            return True


def _named(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, bool]:
    name, mark = yield from buffer.before((ARGS, CALL_ID, "{"))
    if mark is None or not name.strip():
        return False
    if (yield from buffer.accepts(CALL_ID)):
        yield from gathered(buffer.until((ARGS,)))
    else:
        yield from buffer.accepts(ARGS)
    yield calls.start(name.strip())
    if not (yield from arguments(buffer, calls)):
        return False
    yield calls.end()
    return True
