"""Harmony, which gpt-oss writes: every message has a header that names its channel, and, of a call, its recipient.

``<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...``. The prompt ends with
``<|start|>assistant``. A call is ``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``,
and it ends the answer. Commentary without a recipient is said to the user.
"""

from __future__ import annotations

import re

from inference.text.dialects.events import AnswerEvent, Calls, Prose, ReasoningDelta
from inference.text.dialects.json_calls import arguments, broken_call
from inference.text.dialects.source import Reading, Source, gathered, mapped, stripped

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ASSISTANT = f"{START}assistant"
ANALYSIS = "analysis"
FUNCTIONS = "functions."
ENDS = (END, CALL, RETURN, START)
MARKS = (*ENDS, CHANNEL)
RECIPIENT = "to="
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def read_harmony(source: Source, calls: Calls) -> Reading[AnswerEvent, None]:
    """What stands outside of messages is content, too. The prompt's header may go on with a recipient."""
    prose = Prose()
    if (yield from source.starts_with(f" {RECIPIENT}")) or (yield from source.starts_with(RECIPIENT)):
        mark = yield from _message(source, calls, prose)
    else:
        mark = yield from prose.until(source, MARKS)
    while mark is not None:
        if mark in {START, CHANNEL}:
            mark = yield from _message(source, calls, prose)
        else:
            mark = yield from prose.until(source, MARKS)


def _message(source: Source, calls: Calls, prose: Prose) -> Reading[AnswerEvent, str | None]:
    """The mark that ends it."""
    header, mark = yield from gathered(source.until((MESSAGE, *ENDS)))
    if mark != MESSAGE:
        return mark
    recipient = _RECIPIENT.search(header)
    if recipient is not None:
        return (yield from _call(source, calls, recipient.group(1).removeprefix(FUNCTIONS)))
    if header.rpartition(CHANNEL)[2].strip().startswith(ANALYSIS):
        return (yield from mapped(stripped(source.until(ENDS)), ReasoningDelta))
    return (yield from prose.until(source, ENDS))


def _call(source: Source, calls: Calls, name: str) -> Reading[AnswerEvent, str | None]:
    yield calls.start(name)
    if not (yield from arguments(source, calls)):
        return (yield from broken_call(source, calls, ENDS))
    yield calls.end()
    _, mark = yield from gathered(source.until(ENDS))
    return mark
