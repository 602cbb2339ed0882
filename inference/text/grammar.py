"""What a request may ask its output to match, and the limits that are checked before anything is compiled.

A :class:`Grammar` crosses the border of the engine inside its SamplingParams. Of JSON schemas only known keywords are
accepted, bounded, with references into themselves only: a keyword that would be passed over makes output that the
client's own validator refuses, so it is an error by name. What the keywords mean, and their remaining conflicts, is
llguidance's business. Errors name the place as a JSON pointer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from core.errors import MillmError

MAX_DEPTH = 32  # subschemas inside each other
MAX_ENUM_VALUES = 1_000  # in the whole schema
MAX_NAMED = 10  # keywords that one message lists
MAX_POINTER = 200  # characters of a place that a message repeats
MAX_INTEGER = 2**53 - 1  # llguidance computes with 64-bit floats: larger integers would match their neighbours

_ONE = frozenset({"items", "additionalProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_VALUES = frozenset(
    {
        "$ref", "type", "enum", "const", "required", "format", "pattern", "minLength", "maxLength", "minimum",
        "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
        "minProperties", "maxProperties",
    }
)  # fmt: skip
_ANNOTATIONS = frozenset(
    {
        "$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly",
        "writeOnly", "discriminator", "contentEncoding", "contentMediaType", "contentSchema",
    }
)  # fmt: skip
_INT64_MAX = 2**63 - 1  # generators write it as the maximum of any 64-bit integer, and llguidance keeps to it
KEYWORDS = _ONE | _LISTS | _MAPS | _VALUES


class SchemaRuleError(ValueError):
    """The schema is outside the rules; the message says where and why."""


def check_schema(schema: Any, *, max_pattern_length: int) -> None:
    """Raise SchemaRuleError. Iterative: a schema may be as deep as it likes."""
    num_values = 0
    stack: list[tuple[Any, int, str]] = [(schema, 0, "#")]
    while stack:
        part, depth, pointer = stack.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise SchemaRuleError(f"A schema must be an object or a boolean{_at(pointer)}.")
        if depth > MAX_DEPTH:
            raise SchemaRuleError(f"It is nested more than {MAX_DEPTH} levels deep.")
        _check_keywords(part, pointer)
        _check_reference(part.get("$ref"), pointer)
        _check_patterns(part, max_pattern_length, pointer)
        _check_integers(part, pointer)
        num_values += len(part["enum"]) if isinstance(part.get("enum"), list) else 0
        stack.extend((inner, depth + 1, f"{pointer}/{place}") for place, inner in _subschemas(part))
    if num_values > MAX_ENUM_VALUES:
        raise SchemaRuleError(f"Its enums have {num_values} values, {MAX_ENUM_VALUES} are allowed.")


def _at(pointer: str) -> str:
    """The place for a message. Of the whole schema there is nothing to say."""
    if pointer == "#":
        return ""
    return f" at `{pointer if len(pointer) <= MAX_POINTER else pointer[:MAX_POINTER] + '...'}`"


def _check_keywords(part: dict[str, Any], pointer: str) -> None:
    unknown = [name for name in part if name not in KEYWORDS | _ANNOTATIONS and not _is_private(name)]
    if unknown:
        named = ", ".join(f"`{name[:50]}`" for name in unknown[:MAX_NAMED])
        raise SchemaRuleError(f"These keywords are not supported in a schema: {named}{_at(pointer)}. Leave them out.")


def _is_private(name: str) -> bool:
    """Extensions mean nothing to us; llguidance's own one would change how it reads the schema."""
    return name.startswith("x-") and name != "x-guidance"


def _check_reference(reference: Any, pointer: str) -> None:
    if reference is not None and not (isinstance(reference, str) and reference.startswith("#")):
        raise SchemaRuleError(
            f"The reference `{str(reference)[:200]}`{_at(pointer)} does not begin with `#`: references into the schema "
            "itself are allowed, nothing is fetched."
        )


def _check_patterns(part: dict[str, Any], max_length: int, pointer: str) -> None:
    named = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(named if isinstance(named, dict) else ())):
        if isinstance(pattern, str) and len(pattern) > max_length:
            raise SchemaRuleError(f"A pattern{_at(pointer)} has {len(pattern)} characters, {max_length} are allowed.")


def _check_integers(part: dict[str, Any], pointer: str) -> None:
    """Everywhere but in subschemas, annotations included: llguidance reads those too."""
    stack = [(name, value) for name, value in part.items() if name not in _ONE | _LISTS | _MAPS]
    while stack:
        place, value = stack.pop()
        if isinstance(value, dict):
            stack.extend((f"{place}/{_escaped(name)}", inner) for name, inner in value.items())
        elif isinstance(value, list):
            stack.extend((f"{place}/{number}", inner) for number, inner in enumerate(value))
        elif isinstance(value, int) and abs(value) > MAX_INTEGER and (place, value) != ("maximum", _INT64_MAX):
            raise SchemaRuleError(
                f"The integer{_at(f'{pointer}/{place}')} has to be between {-MAX_INTEGER} and {MAX_INTEGER}."
            )


def _subschemas(part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """With their places."""
    for name, value in part.items():
        if name in _ONE and not isinstance(value, list):
            yield name, value
        elif name in _ONE | _LISTS:
            yield from ((f"{name}/{number}", inner) for number, inner in enumerate(_list(value)))
        elif name in _MAPS and isinstance(value, dict):
            yield from ((f"{name}/{_escaped(key)}", inner) for key, inner in value.items())


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _escaped(name: str) -> str:
    """A key as a JSON pointer writes it."""
    return name[:MAX_POINTER].replace("~", "~0").replace("/", "~1")


GrammarKind = Literal["json_object", "json_schema", "regex", "lark", "choice", "composed"]

MAX_SOURCE_BYTES = 64 * 1024
MAX_REGEX_LENGTH = 2_048  # characters; patterns inside schemas too
MAX_CHOICES = 1_000


class GrammarError(ValueError):
    """The grammar is refused: wrong, too large, or not supported. The message is a sentence for the client."""


class GrammarBusyError(MillmError):
    """Too many grammars are being compiled."""

    status = 503
    code = "server_is_overloaded"
    retry_after_s = 1.0


@dataclass(frozen=True, slots=True)
class Grammar:
    """``source`` by ``kind``: a JSON schema as JSON, nothing for ``json_object``, a regular expression that the whole
    output matches, a grammar in Lark's or in GBNF's notation, a JSON list of strings to choose from, or, for
    ``composed``, JSON with a grammar in Lark's notation of our own that names others as ``@part``.
    """

    kind: GrammarKind
    source: str = ""

    @classmethod
    def of_schema(cls, schema: Any) -> Grammar:
        return cls("json_schema", json.dumps(schema, ensure_ascii=False))

    @classmethod
    def of_choices(cls, choices: list[str]) -> Grammar:
        return cls("choice", json.dumps(choices, ensure_ascii=False))

    @classmethod
    def composed(cls, lark: str, parts: Mapping[str, Grammar]) -> Grammar:
        named = {name: [part.kind, part.source] for name, part in parts.items()}
        return cls("composed", json.dumps({"lark": lark, "parts": named}, ensure_ascii=False))

    @property
    def lark(self) -> str:
        """That of a composed grammar."""
        lark: str = json.loads(self.source)["lark"]
        return lark

    @property
    def parts(self) -> dict[str, Grammar]:
        """Those of a composed grammar, by name."""
        named = json.loads(self.source)["parts"]
        return {name: Grammar(kind, source) for name, (kind, source) in named.items()}

    def check(self) -> None:
        """The limits that need no compiler; GrammarError."""
        size = len(self.source.encode("utf-8", "surrogatepass"))
        if size > MAX_SOURCE_BYTES:
            raise GrammarError(f"It has {size} bytes, {MAX_SOURCE_BYTES} are allowed.")
        match self.kind:
            case "json_schema":
                _check_schema(self.source)
            case "regex" if len(self.source) > MAX_REGEX_LENGTH:
                raise GrammarError(f"It has {len(self.source)} characters, {MAX_REGEX_LENGTH} are allowed.")
            case "choice" if len(json.loads(self.source)) > MAX_CHOICES:
                raise GrammarError(f"There are {len(json.loads(self.source))} choices, {MAX_CHOICES} are allowed.")
            case "composed":
                for part in self.parts.values():
                    part.check()
            case _:
                pass


def _check_schema(source: str) -> None:
    try:
        check_schema(json.loads(source), max_pattern_length=MAX_REGEX_LENGTH)
    except (json.JSONDecodeError, RecursionError):
        raise GrammarError("It is not valid JSON, or nested too deeply.") from None
    except SchemaRuleError as error:
        raise GrammarError(str(error)) from None
