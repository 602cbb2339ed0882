"""The grammar of a whole answer: reasoning first, then the calls that a request demands, or its structured output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inference.dialects.call_shape import CallShape
from inference.dialects.literals import Literals
from inference.dialects.offered_tool import OfferedTool
from inference.dialects.tagged_grammar import tagged_arguments
from inference.dialects.thinking import ThinkingMarks
from inference.grammars import Grammar

MAX_CALLS = 32  # in one answer; without a bound weak models never stop calling
ANY_OBJECT: dict[str, Any] = {"type": "object"}

Thinking = Literal["none", "possible", "begun"]


@dataclass(frozen=True, slots=True)
class CallWish:
    """Calls in the notation of ``shape``: of one of ``tools``, at least one if ``must_call``, at most ``max_calls``."""

    shape: CallShape
    tools: Sequence[OfferedTool]
    must_call: bool
    max_calls: int = MAX_CALLS


def answer_grammar(
    *,
    literals: Literals,
    marks: ThinkingMarks | None = None,
    thinking: Thinking = "none",
    calls: CallWish | None = None,
    body: Grammar | None = None,
    content_opening: str = "",
) -> Grammar:
    """Reasoning, and then calls or ``body``; with neither, and calls only allowed, any text is an answer too.

    ``content_opening`` stands before content.
    """
    lines = ["TEXT: /(.|\\n)*/", *_thought(literals, marks, thinking)]
    parts: dict[str, Grammar] = {}
    answers: list[str] = []
    if calls is not None:
        lines += _calls(literals, calls, parts)
        answers.append("calls" if calls.must_call or body is not None else "called_text")
    if body is not None and not (calls is not None and calls.must_call):
        parts["body"] = body
        answers.append(f"{literals.terminal(content_opening)} @body".strip())
    elif calls is not None and not calls.must_call:
        lines += _free_text(literals, calls)
        answers.append("free_text")
    lines.append(f"answer: {' | '.join(answers)}")
    return Grammar.composed("\n".join(lines), parts)


def _thought(literals: Literals, marks: ThinkingMarks | None, thinking: Thinking) -> Iterator[str]:
    if marks is None or thinking == "none":
        yield "start: answer"
        return
    yield from literals.text_before("thought", marks.end)
    begun = f"{literals.terminal(marks.start)} thought" if thinking == "possible" else "thought"
    after = "start: (BLANKS? THOUGHT BLANKS?)? answer" if thinking == "possible" else "start: THOUGHT BLANKS? answer"
    yield "BLANKS: /[ \\t\\r\\n]+/"
    yield after.replace("THOUGHT", begun)


def _calls(literals: Literals, wish: CallWish, parts: dict[str, Grammar]) -> Iterator[str]:
    """The rules ``calls``, and ``more``: all after a first call."""
    shape, separator = wish.shape, literals.terminal(wish.shape.separator)
    has_more = wish.max_calls > 1 and not shape.ends_answer
    further = f"({separator} call){{0,{wish.max_calls - 1}}}" if has_more else ""
    yield f"calls: {literals.terminal(shape.opening)} call more"
    yield f"more: {further} {literals.terminal(shape.closing)}".rstrip() if further or shape.closing else 'more: ""'
    yield f"call: {' | '.join(f'call{number}' for number in range(len(wish.tools)))}"
    for number, tool in enumerate(wish.tools):
        before, after = literals.terminal(shape.before + tool.name + shape.between), literals.terminal(shape.after)
        yield f"call{number}: {before} arguments{number} {after}"
        yield from _arguments(literals, shape, number, tool, parts)


def _arguments(
    literals: Literals, shape: CallShape, number: int, tool: OfferedTool, parts: dict[str, Grammar]
) -> Iterator[str]:
    if shape.arguments == "python":
        yield from _keywords(number, tool, parts)
    elif shape.tags is not None:
        yield from tagged_arguments(literals, number, tool, shape.tags, parts)
    elif shape.arguments == "gemma":
        yield f"arguments{number}: gemma_object"
        if number == 0:
            yield from _gemma_values(literals, shape.quote)
    else:
        parts[f"parameters{number}"] = Grammar.of_schema(closed(tool.parameters))
        yield f"arguments{number}: @parameters{number}"


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without arguments that the tool does not name: weak models would go on inventing them."""
    return {"additionalProperties": False, **schema} if schema.get("properties") else dict(schema)


def _keywords(number: int, tool: OfferedTool, parts: dict[str, Grammar]) -> Iterator[str]:
    """``key=value`` for each parameter in its order, those that are not required only perhaps."""
    schema = tool.parameters
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = [key for key in properties if key in (schema.get("required") or ())]
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    optional = [key for key in properties if key not in required]
    for place, key in enumerate([*required, *optional]):
        name = f"value{number}_{place}"
        value = properties[key]
        parts[name] = Grammar.of_schema({**value, **definitions} if isinstance(value, dict) else value)
        yield f"pair{number}_{place}: {json.dumps(key + '=')} @{name}"
    pairs = [f"pair{number}_{place}" for place in range(len(required))]
    chosen = ' ", " '.join(pairs)
    for place in range(len(required), len(properties)):
        chosen = f'({chosen} (", " pair{number}_{place})?)' if chosen else f"pair{number}_{place}?"
    yield f"arguments{number}: {chosen}" if chosen else f'arguments{number}: ""'


def _gemma_values(literals: Literals, quote: str) -> Iterator[str]:
    mark = literals.terminal(quote)
    yield f"gemma_string: {mark} gemma_text"
    yield from literals.text_before("gemma_text", quote)
    yield "GEMMA_WORD: /true|false|null|-?(0|[1-9][0-9]*)(\\.[0-9]+)?/"
    yield "GEMMA_KEY: /[A-Za-z_][A-Za-z0-9_]*:/"
    yield "gemma_value: gemma_string | GEMMA_WORD | gemma_object | gemma_list"
    yield 'gemma_object: "{" (GEMMA_KEY gemma_value ("," GEMMA_KEY gemma_value)*)? "}"'
    yield 'gemma_list: "[" (gemma_value ("," gemma_value)*)? "]"'


def _free_text(literals: Literals, wish: CallWish) -> Iterator[str]:
    """Content, and calls after content; a notation without a mark is told from content by its first character."""
    shape = wish.shape
    if shape.content_opening:  # content has a mark of its own, and a call is the whole answer
        yield f"free_text: {literals.terminal(shape.content_opening)} TEXT"
        yield "called_text: calls"
        return
    if not shape.mark:
        yield f'free_text: /[^\\{shape.first[:1]}](.|\\n)*/ | ""'
        yield "called_text: calls"
        return
    yield "free_text: TEXT"
    yield from literals.text_before("head", shape.mark)
    yield "called_text: head marked more"
    yield f"marked: {' | '.join(f'marked{number}' for number in range(len(wish.tools)))}"
    for number, tool in enumerate(wish.tools):
        before = (shape.first + tool.name + shape.between).removeprefix(shape.mark)
        yield f"marked{number}: {literals.terminal(before)} arguments{number} {literals.terminal(shape.after)}"
