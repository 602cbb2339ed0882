"""Build the grammar of a whole answer: reasoning, then required tool calls or structured output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inference.text.dialects.argument_form import form_of
from inference.text.dialects.tagged_call import Tags
from inference.text.dialects.thinking import ThinkingMarks
from inference.text.dialects.tool_format import CallShape
from inference.text.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Literals:
    """Writes texts as terminals. ``special_tokens``: marks that are special tokens of the tokenizer."""

    special_tokens: Mapping[str, int]

    def terminal(self, text: str) -> str:
        parts, rest = [], text
        while rest:
            places = [(rest.find(mark), mark) for mark in self.special_tokens if mark in rest]
            place, mark = min(places, default=(len(rest), ""))
            if place:
                parts.append(json.dumps(rest[:place], ensure_ascii=False))
            if mark:
                parts.append(f"<[{self.special_tokens[mark]}]>")
            rest = rest[place + len(mark) :]
        return " ".join(parts)

    def text_before(self, rule: str, mark: str) -> Iterator[str]:
        """Yield a rule for any text up to and including ``mark``."""
        if any(mark.startswith(special) for special in self.special_tokens):
            yield f"{rule}: TEXT {self.terminal(mark)}"
        else:
            yield f"{rule}[lazy]: TEXT {json.dumps(mark, ensure_ascii=False)}"


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of the request. ``parameters`` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


MAX_FREE = 16  # arguments of a tool without declared parameters


def tagged_arguments(
    literals: Literals, number: int, tool: OfferedTool, tags: Tags, parts: dict[str, Grammar]
) -> Iterator[str]:
    """Yield the rule ``arguments{number}``: the parameters in order, optional if not required.

    For strings it enforces only ``enum`` and ``const``.
    """
    schema = tool.parameters
    properties: Mapping[str, Any] = schema.get("properties") or {}
    if not properties:
        yield from _free(literals, number, tags, is_closed=schema.get("additionalProperties") is False)
        return
    required = schema.get("required") or ()
    chosen = []
    for place, (key, value) in enumerate(properties.items()):
        name = f"{number}_{place}"
        before = f"{tags.key}{key}{tags.key_end}{tags.gap}{tags.value}{_opening(tags)}"
        yield f"pair{name}: {literals.terminal(before)} value{name}{_terminal(literals, tags.gap)}"
        yield from _tagged_value(literals, name, value, schema, tags, parts)
        chosen.append(f"pair{name}" if key in required else f"pair{name}?")
    yield f"arguments{number}: {' '.join(chosen)}"


def _tagged_value(
    literals: Literals, name: str, value: Any, root: Mapping[str, Any], tags: Tags, parts: dict[str, Grammar]
) -> Iterator[str]:
    end = f"{tags.padding}{tags.value_end}"
    if form_of(value, root) != "text":
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        parts[f"json{name}"] = Grammar.of_schema({**value, **definitions} if isinstance(value, dict) else value)
        yield f"value{name}: @json{name} {literals.terminal(end)}"
    elif texts := _choices(value):
        yield f"value{name}: ({' | '.join(texts)}) {literals.terminal(end)}"
    else:
        yield from literals.text_before(f"value{name}", end)


def _choices(value: Mapping[str, Any]) -> list[str]:
    """Return the allowed strings of a schema."""
    given = [value["const"]] if "const" in value else value.get("enum") or []
    return [json.dumps(text, ensure_ascii=False) for text in given if isinstance(text, str)]


def _free(literals: Literals, number: int, tags: Tags, *, is_closed: bool) -> Iterator[str]:
    if is_closed:
        yield f'arguments{number}: ""'
        return
    behind = f"{tags.key_end}{tags.gap}{tags.value}{_opening(tags)}"
    yield f"arguments{number}: free{number}{{0,{MAX_FREE}}}"
    pair = f"{literals.terminal(tags.key)} FREE_KEY{number} {literals.terminal(behind)} free_value{number}"
    yield f"free{number}: {pair}{_terminal(literals, tags.gap)}"
    yield f"FREE_KEY{number}: /[A-Za-z_][A-Za-z0-9_]*/"
    yield from literals.text_before(f"free_value{number}", f"{tags.padding}{tags.value_end}")


def _opening(tags: Tags) -> str:
    """Return the padding, unless the whitespace before it includes it already."""
    return "" if tags.padding and not tags.value and tags.gap.endswith(tags.padding) else tags.padding


def _terminal(literals: Literals, text: str) -> str:
    return f" {literals.terminal(text)}" if text else ""


MAX_CALLS = 32  # in one answer; without a limit weak models never stop calling
ANY_OBJECT: dict[str, Any] = {"type": "object"}

ThinkingState = Literal["none", "possible", "begun"]


@dataclass(frozen=True, slots=True)
class CallSpec:
    """Calls of ``tools`` in the notation ``shape``: at least one if ``must_call``, at most ``max_calls``."""

    shape: CallShape
    tools: Sequence[OfferedTool]
    must_call: bool
    max_calls: int = MAX_CALLS


def answer_grammar(
    *,
    literals: Literals,
    marks: ThinkingMarks | None = None,
    thinking: ThinkingState = "none",
    calls: CallSpec | None = None,
    body: Grammar | None = None,
    content_opening: str = "",
) -> Grammar:
    """Return the grammar of reasoning followed by calls or ``body``. If calls are optional, any text is allowed too.

    ``content_opening`` precedes content.
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


def _thought(literals: Literals, marks: ThinkingMarks | None, thinking: ThinkingState) -> Iterator[str]:
    if marks is None or thinking == "none":
        yield "start: answer"
        return
    yield from literals.text_before("thought", marks.end)
    begun = f"{literals.terminal(marks.start)} thought" if thinking == "possible" else "thought"
    after = "start: (BLANKS? THOUGHT BLANKS?)? answer" if thinking == "possible" else "start: THOUGHT BLANKS? answer"
    yield "BLANKS: /[ \\t\\r\\n]+/"
    yield after.replace("THOUGHT", begun)


def _calls(literals: Literals, spec: CallSpec, parts: dict[str, Grammar]) -> Iterator[str]:
    """Yield the rules ``calls`` and ``more`` (the calls after the first one)."""
    shape, separator = spec.shape, literals.terminal(spec.shape.separator)
    has_more = spec.max_calls > 1 and not shape.ends_answer
    further = f"({separator} call){{0,{spec.max_calls - 1}}}" if has_more else ""
    yield f"calls: {literals.terminal(shape.opening)} call more"
    yield f"more: {further} {literals.terminal(shape.closing)}".rstrip() if further or shape.closing else 'more: ""'
    yield f"call: {' | '.join(f'call{number}' for number in range(len(spec.tools)))}"
    for number, tool in enumerate(spec.tools):
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
    """Return the schema without additional properties, because weak models would keep inventing arguments."""
    return {"additionalProperties": False, **schema} if schema.get("properties") else dict(schema)


def _keywords(number: int, tool: OfferedTool, parts: dict[str, Grammar]) -> Iterator[str]:
    """Yield rules for ``key=value`` of each parameter in order, optional if not required."""
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


def _free_text(literals: Literals, spec: CallSpec) -> Iterator[str]:
    """Yield rules for content and calls after it. Calls without a mark are recognised by their first character."""
    shape = spec.shape
    if shape.content_opening:  # content has its own mark, and a call is the whole answer
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
    yield f"marked: {' | '.join(f'marked{number}' for number in range(len(spec.tools)))}"
    for number, tool in enumerate(spec.tools):
        before = (shape.first + tool.name + shape.between).removeprefix(shape.mark)
        yield f"marked{number}: {literals.terminal(before)} arguments{number} {literals.terminal(shape.after)}"
