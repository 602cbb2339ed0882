"""The table of honoured, ignored and refused parameters in docs/openai-compatibility.md.

It is generated from the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from openai_api.openapi.document import document
from openai_api.openapi.operation import REF, Schema

PATH = settings.BASE_DIR / "docs" / "openai-compatibility.md"
BEGIN = "<!-- Written by `manage.py compatibility_doc`: change the schemas, not this table. -->\n"
END = "<!-- The end of the table. -->\n"
METHODS = ("get", "post", "delete")


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A parameter of one endpoint. Nested fields are listed only where they are treated unlike their parent."""

    endpoint: str
    honoured: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        return {*self.honoured, *self.ignored, *self.refused}

    def line(self) -> str:
        cells = (f"`{self.endpoint}`", *(_cell(names) for names in (self.honoured, self.ignored, self.refused)))
        return f"| {' | '.join(cells)} |"


def parameter_rows() -> Iterator[ParameterRow]:
    """Return the rows of all endpoints with parameters, in the document's order."""
    whole = document()
    for path, operations in whole["paths"].items():
        for method in METHODS:
            row = _row(f"{method.upper()} {path}", operations.get(method, {}), whole["components"]["schemas"])
            if row.names:
                yield row


def parameter_table() -> str:
    lines = ["| endpoint | honoured | ignored | refused |", "|---|---|---|---|"]
    return "\n".join([*lines, *(row.line() for row in parameter_rows())]) + "\n"


def page_with_table(page: str) -> str:
    """Return the page with the current table. Raises ValueError if the page has no markers for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{PATH.name} does not contain the markers of the table: `{BEGIN.strip()}` and `{END.strip()}`."
        )
    return f"{before}{begin}\n{parameter_table()}\n{end}{after}"


def _row(endpoint: str, operation: Schema, schemas: Schema) -> ParameterRow:
    query = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    honoured, ignored, refused = list(query), list[str](), list[str]()
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = _resolved(content["schema"], schemas)
        refused += schema.get("x-millm-refused", [])
        for name, value in schema.get("properties", {}).items():
            (ignored if _is_ignored(value) else honoured).append(name)
            ignored += [f"{name}.{part}" for part in _ignored_parts(value, schemas)]
    unique = (tuple(dict.fromkeys(names)) for names in (honoured, ignored, refused))  # of JSON and forms
    return ParameterRow(endpoint, *unique)


def _ignored_parts(value: Schema, schemas: Schema) -> Iterator[str]:
    for option in (value, *value.get("anyOf", ())):
        for name, part in _resolved(option, schemas).get("properties", {}).items():
            if _is_ignored(part):
                yield name


def _is_ignored(value: Schema) -> bool:
    return value.get("x-millm") == "ignored"


def _resolved(schema: Schema, schemas: Schema) -> Any:
    name = schema.get("$ref", "").removeprefix(REF.format(model=""))
    return schemas[name] if name else schema


def _cell(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
