"""Harmony, the format of gpt-oss: each message has a header with its channel and, for a call, its recipient.

``<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...``. The prompt ends with
``<|start|>assistant``. A call is ``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``,
and it ends the answer. Commentary without a recipient is content.
"""

from __future__ import annotations

import re

from inference.text.dialects.events import AnswerEvent, ContentWriter, ReasoningDelta, ToolCallWriter
from inference.text.dialects.json_calls import arguments, broken_call
from inference.text.dialects.text_buffer import Parser, TextBuffer, gathered, mapped, stripped

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ASSISTANT = f"{START}assistant"
ANALYSIS = "analysis"
FUNCTIONS = "functions."
ENDS = (END, CALL, RETURN, START)
MARKS = (*ENDS, CHANNEL)
RECIPIENT = "to="
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def parse_harmony(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
    """Parse an answer. Text outside messages is content too. The prompt's header may continue with a recipient."""
    content = ContentWriter()
    if (yield from buffer.starts_with(f" {RECIPIENT}")) or (yield from buffer.starts_with(RECIPIENT)):
        mark = yield from _message(buffer, calls, content)
    else:
        mark = yield from content.until(buffer, MARKS)
    while mark is not None:
        if mark in {START, CHANNEL}:
            mark = yield from _message(buffer, calls, content)
        else:
            mark = yield from content.until(buffer, MARKS)


def _message(buffer: TextBuffer, calls: ToolCallWriter, content: ContentWriter) -> Parser[AnswerEvent, str | None]:
    """Parse a message and return the mark that ends it."""
    header, mark = yield from gathered(buffer.until((MESSAGE, *ENDS)))
    if mark != MESSAGE:
        return mark
    recipient = _RECIPIENT.search(header)
    if recipient is not None:
        return (yield from _call(buffer, calls, recipient.group(1).removeprefix(FUNCTIONS)))
    if header.rpartition(CHANNEL)[2].strip().startswith(ANALYSIS):
        return (yield from mapped(stripped(buffer.until(ENDS)), ReasoningDelta))
    return (yield from content.until(buffer, ENDS))


def _call(buffer: TextBuffer, calls: ToolCallWriter, name: str) -> Parser[AnswerEvent, str | None]:
    yield calls.start(name)
    if not (yield from arguments(buffer, calls)):
        return (yield from broken_call(buffer, calls, ENDS))
    yield calls.end()
    _, mark = yield from gathered(buffer.until(ENDS))
    return mark
