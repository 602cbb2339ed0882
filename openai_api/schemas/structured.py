"""Structured output: OpenAI's ``response_format`` and other servers' names for the same; a request takes one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from inference.text.grammar import MAX_CHOICES, Grammar
from openai_api.http.errors import invalid
from openai_api.schemas.base import Part, RequestSchema

MAX_CHOICE_LENGTH = 4_096
MAX_GRAMMAR_LENGTH = 2**16

Schema = dict[str, Any] | bool
GrammarText = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_LENGTH)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_LENGTH)]],
    Field(min_length=1, max_length=MAX_CHOICES),
]


def _read_schema(value: Any) -> Any:
    """Parse the schema; vLLM's clients send it as an object or as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise PydanticCustomError("invalid_schema", "must be a JSON schema, as an object or as JSON text") from None


AnySchema = Annotated[
    Schema,
    BeforeValidator(_read_schema),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string"}]}),
]


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar and the name of the request field that specified it."""

    grammar: Grammar
    param: str


class TextFormat(Part):
    type: Literal["text"]


class JsonObjectFormat(Part):
    """Any JSON object. With ``schema`` (as in llama.cpp), an object that matches it."""

    type: Literal["json_object"]
    schema_: AnySchema | None = Field(None, alias="schema")


class JsonSchema(Part):
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = Field(None, max_length=4_096)
    schema_: Schema = Field(alias="schema")
    strict: bool | None = Field(None, description="No effect: the schema is always enforced.")


class JsonSchemaFormat(Part):
    type: Literal["json_schema"]
    json_schema: JsonSchema


def format_kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"~{kind}" if isinstance(kind, str) else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("~text")]
    | Annotated[JsonObjectFormat, Tag("~json_object")]
    | Annotated[JsonSchemaFormat, Tag("~json_schema")],
    Discriminator(
        format_kind,
        custom_error_type="invalid_format",
        custom_error_message="must have a `type`: one of text, json_object, json_schema",
    ),
]


class StructuredOutputs(Part):
    """vLLM's ``structured_outputs``. Exactly one field must be set."""

    json_: AnySchema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    structural_tag: None = None


class GrammarExtensions(RequestSchema):
    """Structured output fields of other servers; a request may use one of them."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: AnySchema | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None
    grammar: Annotated[str, Field(max_length=MAX_GRAMMAR_LENGTH)] | None = None
    json_schema: AnySchema | None = None

    def check_together(self) -> None:
        super().check_together()
        specs = self._grammar_specs()
        if len(specs) > 1:
            named = ", ".join(f"`{spec.param}`" for spec in specs)
            raise invalid(f"Send only one of {named}.", param=specs[1].param)

    @property
    def grammar_spec(self) -> GrammarSpec | None:
        return next(iter(self._grammar_specs()), None)

    def _grammar_specs(self) -> list[GrammarSpec]:
        extensions = {
            "guided_json": _schema(self.guided_json),
            "guided_regex": _text("regex", self.guided_regex),
            "guided_choice": _choices(self.guided_choice),
            "guided_grammar": _text("lark", self.guided_grammar),
            "grammar": _text("lark", self.grammar),
            "json_schema": _schema(self.json_schema),
        }
        found = [GrammarSpec(grammar, name) for name, grammar in extensions.items() if grammar is not None]
        return [*_of_outputs(self.structured_outputs), *found]


class StructuredSchema(GrammarExtensions):
    """All structured output fields, including OpenAI's ``response_format``."""

    response_format: ResponseFormat | None = None

    def _grammar_specs(self) -> list[GrammarSpec]:
        return [*_of_format(self.response_format), *super()._grammar_specs()]


def _of_format(given: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> Iterator[GrammarSpec]:
    if isinstance(given, JsonSchemaFormat):
        yield GrammarSpec(Grammar.of_schema(given.json_schema.schema_), "response_format.json_schema.schema")
    elif isinstance(given, JsonObjectFormat):
        schema = _schema(given.schema_)
        yield GrammarSpec(schema or Grammar("json_object"), "response_format.schema" if schema else "response_format")


def _of_outputs(given: StructuredOutputs | None) -> Iterator[GrammarSpec]:
    if given is None:
        return
    fields = {
        "json": _schema(given.json_),
        "json_object": Grammar("json_object") if given.json_object else None,
        "regex": _text("regex", given.regex),
        "choice": _choices(given.choice),
        "grammar": _text("lark", given.grammar),
    }
    for name, grammar in fields.items():
        if grammar is not None:
            yield GrammarSpec(grammar, f"structured_outputs.{name}")


def _schema(value: Schema | None) -> Grammar | None:
    return None if value is None else Grammar.of_schema(value)


def _text(kind: Literal["regex", "lark"], value: str | None) -> Grammar | None:
    return Grammar(kind, value) if value else None


def _choices(value: list[str] | None) -> Grammar | None:
    return None if value is None else Grammar.of_choices(value)
