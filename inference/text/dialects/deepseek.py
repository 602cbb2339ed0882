"""DeepSeek's calls: V3 and R1 write a kind, a name and a fenced object between marks, V3.1 a name and an object."""

from __future__ import annotations

from inference.text.dialects.events import AnswerEvent, Calls, Prose
from inference.text.dialects.json_calls import arguments, broken_call
from inference.text.dialects.source import Reading, Source, gathered

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
KIND, FENCE = "function", "```json"


def read_deepseek(source: Source, calls: Calls) -> Reading[AnswerEvent, None]:
    prose = Prose()
    while True:
        mark = yield from prose.until(source, (CALLS_BEGIN, CALL_BEGIN, CALLS_END))
        if mark is None:
            return
        if mark == CALL_BEGIN:
            yield from _call(source, calls, prose)


def _call(source: Source, calls: Calls, prose: Prose) -> Reading[AnswerEvent, None]:
    source.keep()
    name, mark = yield from gathered(source.until((SEPARATOR, CALL_END)))
    if mark == SEPARATOR and name.strip() == KIND:
        name, mark = yield from gathered(source.until(("\n", CALL_END)))
        yield from source.skip_space()
        yield from source.accepts(FENCE)
    kept = source.kept()
    if mark in {None, CALL_END} or not name.strip():
        yield from prose.say(CALL_BEGIN + kept)
        return
    yield calls.start(name.strip())
    if not (yield from arguments(source, calls)):
        yield from broken_call(source, calls, (CALL_END,))
        return
    yield calls.end()
    yield from gathered(source.until((CALL_END,)))  # the fence's end
