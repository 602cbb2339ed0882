"""Hermes' calls, which Qwen and many others write too: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from inference.text.dialects.events import AnswerEvent, Calls, Prose
from inference.text.dialects.json_calls import broken_call, call_object
from inference.text.dialects.source import Reading, Source, gathered

START, END = "<tool_call>", "</tool_call>"


def read_hermes(source: Source, calls: Calls) -> Reading[AnswerEvent, None]:
    prose = Prose()
    while (yield from prose.until(source, (START,))) is not None:
        yield from _block(source, calls, prose)


def _block(source: Source, calls: Calls, prose: Prose) -> Reading[AnswerEvent, None]:
    """What stands between the marks: an object, or several, or what the model made of it."""
    while True:
        source.keep()
        yield from source.skip_space()
        if not (yield from call_object(source, calls)):
            yield from _broken_block(source, calls, prose)
            return
        yield from source.skip_space()
        if (yield from source.accepts(END)) or not (yield from source.starts_with("{")):
            return


def _broken_block(source: Source, calls: Calls, prose: Prose) -> Reading[AnswerEvent, None]:
    """The rest of an object that is none: the open call's arguments as they stand, or content where no call is open."""
    kept = source.kept()
    if calls.is_open:
        yield from broken_call(source, calls, (END,))
    else:
        rest, mark = yield from gathered(source.until((END,)))
        yield from prose.say(START + kept + rest + (mark or ""))
