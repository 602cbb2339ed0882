"""Mistral's calls: ``[TOOL_CALLS]`` before a list of objects, or, newer, a name, ``[ARGS]`` and an object."""

from __future__ import annotations

from inference.text.dialects.events import AnswerEvent, Calls, Prose
from inference.text.dialects.json_calls import arguments, broken_call, call_object
from inference.text.dialects.source import Reading, Source, gathered

MARK, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def read_mistral(source: Source, calls: Calls) -> Reading[AnswerEvent, None]:
    prose = Prose()
    mark = yield from prose.until(source, (MARK,))
    while mark is not None:
        source.keep()
        yield from source.skip_space()
        if (yield from source.starts_with("[")) or source.text.startswith("{"):
            is_whole = yield from _objects(source, calls)
        else:
            is_whole = yield from _named(source, calls)
        kept = source.kept()
        if calls.is_open:
            mark = yield from broken_call(source, calls, (MARK,))
            continue
        if not is_whole:
            yield from prose.say(MARK + kept)
        mark = yield from prose.until(source, (MARK,))


def _objects(source: Source, calls: Calls) -> Reading[AnswerEvent, bool]:
    is_list = yield from source.accepts("[")
    while True:
        yield from source.skip_space()
        if is_list and (yield from source.accepts("]")):
            return True
        if not (yield from call_object(source, calls)):
            return False
        source.keep()  # what was read is a call, and no content if the rest is broken
        yield from source.skip_space()
        if not (yield from source.accepts(",")):
            yield from source.accepts("]")
            return True


def _named(source: Source, calls: Calls) -> Reading[AnswerEvent, bool]:
    name, mark = yield from source.before((ARGS, CALL_ID, "{"))
    if mark is None or not name.strip():
        return False
    if (yield from source.accepts(CALL_ID)):
        yield from gathered(source.until((ARGS,)))
    else:
        yield from source.accepts(ARGS)
    yield calls.start(name.strip())
    if not (yield from arguments(source, calls)):
        return False
    yield calls.end()
    return True
