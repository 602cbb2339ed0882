"""Grammars that constrain an output, and the limits that are checked before compilation.

A :class:`Grammar` is sent to the engine in SamplingParams. JSON schemas are limited in size, may use known keywords
only, and may refer only to themselves. An unknown keyword is an error by name, because ignoring it would produce output
that the client's validator rejects. llguidance interprets the keywords. Errors name the place as a JSON pointer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from core.errors import MillmError

MAX_DEPTH = 32  # of nested subschemas
MAX_ENUM_VALUES = 1_000  # in the whole schema
MAX_NAMED = 10  # keywords in one message
MAX_POINTER = 200  # characters of a place in a message
MAX_INTEGER = 2**53 - 1  # llguidance uses 64-bit floats, which cannot distinguish larger integers

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
_INT64_MAX = 2**63 - 1  # schema generators use it as the maximum of 64-bit integers, and llguidance supports it
KEYWORDS = _ONE | _LISTS | _MAPS | _VALUES


class SchemaRuleError(ValueError):
    """The schema violates a rule. The message says where and why."""


def check_schema(schema: Any, *, max_pattern_length: int) -> None:
    """Raise SchemaRuleError if a schema violates a rule. Iterative, so that depth cannot exhaust the stack."""
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
        raise SchemaRuleError(f"Its enums have {num_values} values; the limit is {MAX_ENUM_VALUES}.")


def _at(pointer: str) -> str:
    """Return the place for a message; empty for the whole schema."""
    if pointer == "#":
        return ""
    return f" at `{pointer if len(pointer) <= MAX_POINTER else pointer[:MAX_POINTER] + '...'}`"


def _check_keywords(part: dict[str, Any], pointer: str) -> None:
    unknown = [name for name in part if name not in KEYWORDS | _ANNOTATIONS and not _is_private(name)]
    if unknown:
        named = ", ".join(f"`{name[:50]}`" for name in unknown[:MAX_NAMED])
        raise SchemaRuleError(f"These keywords are not supported in a schema: {named}{_at(pointer)}. Leave them out.")


def _is_private(name: str) -> bool:
    """Return whether a keyword is an ignored extension. That of llguidance would change how it reads the schema."""
    return name.startswith("x-") and name != "x-guidance"


def _check_reference(reference: Any, pointer: str) -> None:
    if reference is not None and not (isinstance(reference, str) and reference.startswith("#")):
        raise SchemaRuleError(
            f"The reference `{str(reference)[:200]}`{_at(pointer)} does not begin with `#`. Only references within "
            "the schema are supported."
        )


def _check_patterns(part: dict[str, Any], max_length: int, pointer: str) -> None:
    named = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(named if isinstance(named, dict) else ())):
        if isinstance(pattern, str) and len(pattern) > max_length:
            raise SchemaRuleError(f"A pattern{_at(pointer)} has {len(pattern)} characters; the limit is {max_length}.")


def _check_integers(part: dict[str, Any], pointer: str) -> None:
    """Check integers outside subschemas, also in annotations, which llguidance reads too."""
    stack = [(name, value) for name, value in part.items() if name not in _ONE | _LISTS | _MAPS]
    while stack:
        place, value = stack.pop()
        if isinstance(value, dict):
            stack.extend((f"{place}/{_escaped(name)}", inner) for name, inner in value.items())
        elif isinstance(value, list):
            stack.extend((f"{place}/{number}", inner) for number, inner in enumerate(value))
        elif isinstance(value, int) and abs(value) > MAX_INTEGER and (place, value) != ("maximum", _INT64_MAX):
            raise SchemaRuleError(
                f"The integer{_at(f'{pointer}/{place}')} must be between {-MAX_INTEGER} and {MAX_INTEGER}."
            )


def _subschemas(part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the subschemas with their places."""
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
    """Return a key escaped for a JSON pointer."""
    return name[:MAX_POINTER].replace("~", "~0").replace("/", "~1")


GrammarKind = Literal["json_object", "json_schema", "regex", "lark", "choice", "composed"]

MAX_SOURCE_BYTES = 64 * 1024
MAX_REGEX_LENGTH = 2_048  # characters; also of patterns in schemas
MAX_CHOICES = 1_000


class GrammarError(MillmError, ValueError):
    """The grammar is invalid, too large or not supported. The message is a sentence that does not name the field."""

    code = "invalid_grammar"

    def at(self, param: str, *, is_schema: bool) -> MillmError:
        """Return the error for the field of the request that has the grammar, or the JSON schema."""
        noun = "schema" if is_schema else "grammar"
        return MillmError(
            f"The {noun} in `{param}` cannot be used. {self.message}", code=f"invalid_{noun}", param=param
        )


class GrammarBusyError(MillmError):
    """Too many grammars are being compiled."""

    status = 503
    code = "server_is_overloaded"
    retry_after_s = 1.0


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as text. ``source`` depends on ``kind``: a JSON schema, empty for ``json_object``, a regular expression
    for the whole output, a grammar in Lark or GBNF syntax, a JSON list of choices, or, for ``composed``, JSON with a
    Lark grammar that refers to others as ``@part``.
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
        """Return the Lark grammar of a composed grammar."""
        lark: str = json.loads(self.source)["lark"]
        return lark

    @property
    def parts(self) -> dict[str, Grammar]:
        """Return the parts of a composed grammar, by name."""
        named = json.loads(self.source)["parts"]
        return {name: Grammar(kind, source) for name, (kind, source) in named.items()}

    def check(self) -> None:
        """Raise GrammarError if the grammar exceeds a limit that needs no compiler."""
        size = len(self.source.encode("utf-8", "surrogatepass"))
        if size > MAX_SOURCE_BYTES:
            raise GrammarError(f"It has {size} bytes; the limit is {MAX_SOURCE_BYTES}.")
        match self.kind:
            case "json_schema":
                _check_schema(self.source)
            case "regex" if len(self.source) > MAX_REGEX_LENGTH:
                raise GrammarError(f"It has {len(self.source)} characters; the limit is {MAX_REGEX_LENGTH}.")
            case "choice" if len(json.loads(self.source)) > MAX_CHOICES:
                raise GrammarError(f"There are {len(json.loads(self.source))} choices; the limit is {MAX_CHOICES}.")
            case "composed":
                for part in self.parts.values():
                    part.check()
            case _:
                pass


def _check_schema(source: str) -> None:
    try:
        check_schema(json.loads(source), max_pattern_length=MAX_REGEX_LENGTH)
    except (json.JSONDecodeError, RecursionError):
        raise GrammarError("It is not valid JSON, or it is nested too deeply.") from None
    except SchemaRuleError as error:
        raise GrammarError(str(error)) from None
