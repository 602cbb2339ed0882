"""Parse calls with one tag per argument and unquoted strings, as Qwen3-Coder and GLM write them.

The tool's schema says which arguments are strings. These are passed on as they arrive; others are checked for JSON when
they are complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from inference.text.dialects.argument_form import ArgumentForm
from inference.text.dialects.events import AnswerEvent, ContentWriter, ToolCallWriter
from inference.text.dialects.json_calls import broken_call
from inference.text.dialects.text_buffer import Parser, TextBuffer, gathered, mapped

_PYTHON = {"True": "true", "False": "false", "None": "null"}  # Python literals that models write instead of JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """``start function NAME name_end (key KEY key_end value VALUE value_end)* function_end end``, with blanks between.

    ``padding`` surrounds a value and is not part of it. ``gap`` is the whitespace written between tags.
    """

    start: str
    end: str
    key: str
    key_end: str
    value_end: str
    function: str = ""
    name_end: str = ""
    function_end: str = ""
    value: str = ""
    padding: str = ""
    gap: str = ""

    @property
    def behind_name(self) -> tuple[str, ...]:
        return (self.name_end,) if self.name_end else ("\n", self.key, self.end)


QWEN_CODER = Tags(
    start="<tool_call>",
    end="</tool_call>",
    function="<function=",
    name_end=">",
    function_end="</function>",
    key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    padding="\n",
    gap="\n",
)
GLM = Tags(
    start="<tool_call>",
    end="</tool_call>",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    gap="\n",
)
GLM_47 = replace(GLM, gap="")


def parser_for(tags: Tags) -> Callable[[TextBuffer, ToolCallWriter], Parser[AnswerEvent, None]]:
    def read(buffer: TextBuffer, calls: ToolCallWriter) -> Parser[AnswerEvent, None]:
        content = ContentWriter()
        while (yield from content.until(buffer, (tags.start,))) is not None:
            yield from _call(buffer, calls, content, tags)

    return read


def _call(buffer: TextBuffer, calls: ToolCallWriter, content: ContentWriter, tags: Tags) -> Parser[AnswerEvent, None]:
    buffer.keep()
    name = yield from _name(buffer, tags)
    kept = buffer.kept()
    if not name:
        rest, mark = yield from gathered(buffer.until((tags.end,)))
        yield from content.write(tags.start + kept + rest + (mark or ""))
        return
    yield calls.start(name)
    if not (yield from _arguments(buffer, calls, name, tags)):
        yield from broken_call(buffer, calls, (tags.end,))
        return
    yield calls.end()
    yield from gathered(buffer.until((tags.end,)))


def _name(buffer: TextBuffer, tags: Tags) -> Parser[AnswerEvent, str]:
    """Return the name of the call; empty if there is none."""
    yield from buffer.skip_space()
    if tags.function and not (yield from buffer.accepts(tags.function)):
        return ""
    name, mark = yield from buffer.before(tags.behind_name)
    if mark is None:
        return ""
    if tags.name_end:
        yield from buffer.accepts(tags.name_end)
    return name.strip()


def _arguments(buffer: TextBuffer, calls: ToolCallWriter, name: str, tags: Tags) -> Parser[AnswerEvent, bool]:
    """Yield the arguments as one JSON object. Returns False if there is other text between them, or the text ends."""
    forms = calls.forms.get(name, {})
    before = "{"
    while True:
        yield from buffer.skip_space()
        if not (yield from buffer.accepts(tags.key)):
            break
        key, mark = yield from gathered(buffer.until((tags.key_end,)))
        if tags.value:
            yield from buffer.skip_space()
        if mark is None or not (yield from buffer.accepts(tags.value)):
            return False
        yield calls.arguments(f"{before}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        before = ", "
        if not (yield from mapped(_value(buffer, tags, forms.get(key.strip(), "scalar")), calls.arguments)):
            return False
    if not (yield from buffer.starts_with(tags.function_end or tags.end)):
        return False
    yield calls.arguments("{}" if before == "{" else "}")
    return True


def _value(buffer: TextBuffer, tags: Tags, form: ArgumentForm) -> Parser[str, bool]:
    """Yield the value as JSON. Returns False if the text ends inside it."""
    if tags.padding:
        yield from buffer.accepts(tags.padding)
    inside = _unpadded(buffer.until((tags.value_end,)), tags.padding)
    if form == "text":
        yield '"'
        mark = yield from mapped(inside, lambda text: json.dumps(text, ensure_ascii=False)[1:-1])
        yield '"'
        return mark is not None
    if form == "structure":
        return (yield from inside) is not None
    text, mark = yield from gathered(inside)
    yield scalar(text.strip())
    return mark is not None


def scalar(text: str) -> str:
    """Return JSON unchanged, anything else as a JSON string."""
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text


def _refuse(word: str) -> None:
    raise ValueError(word)  # NaN and infinities are not JSON


def _unpadded(parser: Parser[str, str | None], padding: str) -> Parser[str, str | None]:
    """Remove ``padding`` at the end. Padding is held until it is known whether text follows."""
    held = ""
    while True:
        try:
            item = next(parser)
        except StopIteration as end:
            mark: str | None = end.value
            if held and mark is None:
                yield held
            return mark
        if item is None:
            yield None
            continue
        text = held + item
        held = padding if padding and text.endswith(padding) else ""
        if len(text) > len(held):
            yield text[: len(text) - len(held)]
