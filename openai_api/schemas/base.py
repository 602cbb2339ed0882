"""What all request schemas share: strictness, and the three ways a field is treated.

A field of the model is honoured, or ignored where it is annotated with ``IGNORED`` (it cannot change the output and is
named in `x-millm-ignored-fields`). ``REFUSED`` names the fields that would change the output and that the server does
not implement, with the values that are harmless. Null means the default everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from core.errors import MillmError, quote
from openai_api.http.errors import MAX_PROBLEMS, unknown_parameter, unsupported_parameter

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

TAG = "~"  # prefix of union branches, which clients should not see

_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unsupported_parameter",
    "unsupported_parameter": "unsupported_parameter",
    "invalid_prompt": "invalid_prompt",
    "invalid_schema": "invalid_schema",
    "invalid_question": "invalid_value",
    "invalid_tool_choice": "invalid_value",
}
# Errors of our own validators whose messages need no value.
_SELF_CONTAINED = {"unsupported_parameter", "missing_content", "invalid_prompt", "invalid_schema"}
_SUBJECT = re.compile(r"^(?:Input|String|List|Dictionary|Value|Data|Decimal|Tuple|Set) should (be|have|match) ")
_REWORDED = (
    (re.compile(r"a valid dictionary(?: or .*)?"), "an object"),
    (re.compile(r"a valid list"), "an array"),
    (re.compile(r"a valid integer.*"), "an integer"),
    (re.compile(r"a valid boolean.*"), "true or false"),
    (re.compile(r"a valid (string|number).*"), r"a \1"),
    (re.compile(r"greater than or equal to"), "at least"),
    (re.compile(r"less than or equal to"), "at most"),
    (re.compile(r"match pattern"), "match the pattern"),
)


def api_error(error: ValidationError) -> MillmError:
    """Return one 400 for all problems; ``param`` and ``code`` are those of the first."""
    problems = error.errors(include_url=False)
    first = problems[0]
    lines = [_sentence(problem) for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"{len(problems) - MAX_PROBLEMS} more problems.")
    return MillmError(" ".join(lines), code=_code(first["type"]), param=param_name(first["loc"]))


def param_name(location: Sequence[str | int]) -> str:
    """Convert ``("messages", 0, "~user", "content")`` to ``messages[0].content``."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part != "[key]" and not part.startswith(TAG):
            name += f".{quote(part)}" if name else quote(part)
    return name


def _sentence(problem: ErrorDetails) -> str:
    """Return the problem as a sentence: ``temperature`` must be at most 2, got 3."""
    kind, context = problem["type"], problem.get("ctx", {})
    name = f"`{param_name(problem['loc'])}`"
    if kind == "missing":
        return f"{name} is required."
    if kind == "extra_forbidden":
        return f"{name} is not supported."
    if kind == "string_too_short" and context["min_length"] == 1:
        return f"{name} must not be empty."
    if kind == "string_too_long":
        return f"{name} must have at most {context['max_length']} characters, got {len(problem['input'])}."
    if kind == "union_tag_not_found":
        return f"{name} must have {_in_backticks(context['discriminator'])}."
    if kind == "union_tag_invalid":
        field, supported = _in_backticks(context["discriminator"]), context["expected_tags"].replace("'", "`")
        return f"{name} has the unsupported {field} `{quote(context['tag'])}`. Supported: {supported}."
    if kind in {"too_short", "too_long"}:
        return f"{name} {_length_rule(kind, context)}."
    if kind in _SELF_CONTAINED:
        return f"{name} {problem['msg'].rstrip('.')}."
    return f"{name} {_rule(problem['msg'])}, got {_quoted_input(problem['input'])}."


def _rule(message: str) -> str:
    """Reword a message of pydantic as a predicate: "Input should be a valid string" becomes "must be a string"."""
    rule = _SUBJECT.sub(r"must \1 ", message.rstrip(".")).replace("'", "`")
    for words, better in _REWORDED:
        rule = words.sub(better, rule)
    return rule


def _length_rule(kind: str, context: Mapping[str, Any]) -> str:
    if kind == "too_long":
        most, actual = context["max_length"], context["actual_length"]
        return f"must have at most {most} items" if actual is None else f"must have at most {most} items, got {actual}"
    if context["min_length"] == 1:
        return "must not be empty"
    return f"must have at least {context['min_length']} items, got {context['actual_length']}"


def _in_backticks(name: str) -> str:
    return f"`{name.strip(chr(39))}`"


def _quoted_input(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"an array of {len(value)}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"`{quote(value)}`" if isinstance(value, str) else quote(value)


def _code(problem_type: str) -> str:
    if problem_type in _CODES:
        return _CODES[problem_type]
    return "invalid_type" if problem_type.endswith(("_type", "_from_float")) else "invalid_value"


Harmless = tuple[object, ...]
OWN_FIELDS = frozenset({"profile", "return_activations", "steering", "steering_intensity"})
NEAR = 0.8  # of difflib's ratio
MAX_NAME = 64  # characters of an unknown name that are compared


class Ignored:
    """Marks a field that is validated but has no effect."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "x-millm": "ignored"}


IGNORED = Ignored()


class Part(BaseModel):
    """An object inside a request."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _with_integers(cls, body: Any) -> Any:
        """Replace floats like 16.0, which some languages write for integers, where only integers are expected."""
        if type(body) is not dict:
            return body
        shapes = integer_shapes(cls)
        return {name: shapes[name].applied(value) if name in shapes else value for name, value in body.items()}


class RequestSchema(Part):
    """The body of a request."""

    REFUSED: ClassVar[Mapping[str, Harmless]] = {}
    REMEDIES: ClassVar[Mapping[str, str]] = {}
    TEXTS: ClassVar[tuple[str, ...]] = ("messages", "prompt", "input")  # what the request log shows as the prompt

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Raises MillmError 400 with ``param``."""
        cls._refuse_unsupported(body)
        cls._refuse_near_misses(body)
        try:
            parsed = cls.model_validate(body)
        except ValidationError as error:
            raise api_error(error) from None
        parsed.check_together()
        return parsed

    def check_together(self) -> None:
        """Check rules over several fields. Raises MillmError."""

    @classmethod
    def ignored_in(cls, body: Mapping[str, Any]) -> list[str]:
        """Return the names in ``body`` that have no effect, in order."""
        ignored, unknown = cls.ignored_fields(), set(cls.unknown_in(body))
        return [name for name, value in body.items() if name in unknown or (name in ignored and value is not None)]

    @classmethod
    def unknown_in(cls, body: Mapping[str, Any]) -> list[str]:
        """Return the names in ``body`` that are unknown."""
        known = cls.model_fields.keys() | cls.REFUSED.keys()
        return [name for name in body if name not in known]

    @classmethod
    def ignored_fields(cls) -> set[str]:
        return {name for name, field in cls.model_fields.items() if IGNORED in field.metadata}

    @classmethod
    def honoured_fields(cls) -> set[str]:
        return cls.model_fields.keys() - cls.ignored_fields()

    @classmethod
    def _refuse_near_misses(cls, body: Mapping[str, Any]) -> None:
        """Refuse likely typos of steering fields: the answer would silently lack the steering."""
        own = OWN_FIELDS & (cls.model_fields.keys() | cls.REFUSED.keys())
        for name in cls.unknown_in(body):
            meant = get_close_matches(name[:MAX_NAME], own, n=1, cutoff=NEAR)
            if meant:
                raise unknown_parameter(name, meant=meant[0])

    def parameters(self) -> dict[str, Any]:
        """Return what the client set besides texts, for the request log."""
        excluded = self.ignored_fields() | {*self.TEXTS, "model", "profile", "stream", "user", "cache_salt"}
        return self.model_dump(by_alias=True, exclude_unset=True, exclude_none=True, exclude=excluded)

    @classmethod
    def _refuse_unsupported(cls, body: Mapping[str, Any]) -> None:
        for name in body.keys() & cls.REFUSED.keys():
            value = body[name]
            if value is not None and not any(_same(value, harmless) for harmless in cls.REFUSED[name]):
                raise unsupported_parameter(name, cls.REMEDIES.get(name, "Remove it."))


@dataclass(frozen=True, slots=True)
class IntegerShape:
    """Where a value holds integers and no other numbers: itself, the items of a list, the values of an object."""

    is_integer: bool = False
    items: IntegerShape | None = None
    values: IntegerShape | None = None

    def applied(self, value: Any) -> Any:
        """Return the value with integers in place of floats that have no fraction."""
        if type(value) is float:
            return int(value) if self.is_integer and value.is_integer() else value
        if type(value) is list and self.items is not None:
            return [self.items.applied(item) for item in value]
        if type(value) is dict and self.values is not None:
            return {name: self.values.applied(item) for name, item in value.items()}
        return value


@cache
def integer_shapes(schema: type[BaseModel]) -> Mapping[str, IntegerShape]:
    """Return the fields that take integers, by the names that clients use."""
    shapes = {field.alias or name: _integer_shape([field.annotation]) for name, field in schema.model_fields.items()}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _integer_shape(annotations: Sequence[Any]) -> IntegerShape | None:
    """Return the shape of a value of one of these types; None where nothing in it can be an integer."""
    kinds = [kind for annotation in annotations for kind in _kinds(annotation)]
    items = [get_args(kind)[0] for kind in kinds if get_origin(kind) in {list, tuple, set, frozenset, Sequence}]
    values = [get_args(kind)[1] for kind in kinds if get_origin(kind) in {dict, Mapping}]
    shape = IntegerShape(int in kinds and float not in kinds, _inner(items), _inner(values))
    return shape if shape != IntegerShape() else None


def _inner(annotations: Sequence[Any]) -> IntegerShape | None:
    return _integer_shape(annotations) if annotations else None


def _kinds(annotation: Any) -> list[Any]:
    """Return the types of a field, for a union those of its branches."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in {Union, UnionType}:
        return [kind for branch in get_args(annotation) for kind in _kinds(branch)]
    return [annotation]


def _same(value: object, harmless: object) -> bool:
    return type(value) is type(harmless) and value == harmless


NO_NUL = r"^[^\x00]*$"  # characters that Postgres cannot store

MetadataKey = Annotated[str, Field(min_length=1, max_length=64, pattern=NO_NUL)]
MetadataValue = Annotated[str, Field(max_length=512, pattern=NO_NUL)]
Metadata = Annotated[
    dict[MetadataKey, MetadataValue],
    Field(max_length=16, description="At most 16 pairs. Keys have at most 64 characters, values at most 512."),
]


Q = TypeVar("Q", bound="ListQuery")


class ListQuery(BaseModel):
    """A query string, whose values are texts. ``after`` and ``before`` are ids of objects in the list."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    DEFAULT_LIMIT: ClassVar[int] = 20

    limit: int | None = Field(None, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = Field(None, max_length=64, pattern=r"^[^\x00]*$")
    before: str | None = Field(None, max_length=64, pattern=r"^[^\x00]*$")

    @classmethod
    def parse(cls, query: Mapping[str, Any]) -> Self:
        """Raises MillmError 400 with ``param``."""
        try:
            return cls.model_validate({name: value for name, value in query.items() if value != ""})
        except ValidationError as error:
            raise api_error(error) from None

    @property
    def size(self) -> int:
        return self.limit or self.DEFAULT_LIMIT
