"""The grammar of arguments between tags: strings as they stand, everything else as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from inference.dialects.argument_form import form_of
from inference.dialects.literals import Literals
from inference.dialects.offered_tool import OfferedTool
from inference.dialects.tagged_call import Tags
from inference.grammars import Grammar

MAX_FREE = 16  # arguments of a tool that names none


def tagged_arguments(
    literals: Literals, number: int, tool: OfferedTool, tags: Tags, parts: dict[str, Grammar]
) -> Iterator[str]:
    """The rule ``arguments{number}``: each parameter in its order, those that are not required only perhaps.

    Of strings the grammar knows ``enum`` and ``const``, and of others nothing but the end.
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
        yield from _value(literals, name, value, schema, tags, parts)
        chosen.append(f"pair{name}" if key in required else f"pair{name}?")
    yield f"arguments{number}: {' '.join(chosen)}"


def _value(
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
    """As terminals."""
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
    """The padding, unless the blanks before it are one already."""
    return "" if tags.padding and not tags.value and tags.gap.endswith(tags.padding) else tags.padding


def _terminal(literals: Literals, text: str) -> str:
    return f" {literals.terminal(text)}" if text else ""
