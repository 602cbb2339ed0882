"""Building blocks of the OpenAPI document: errors, references, and an operation with JSON request and response."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Schema = dict[str, Any]
REF = "#/components/schemas/{model}"

ERRORS = {
    "400": "The request is not valid; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "403": "The key lacks the right.",
    "404": "There is no such model, profile, SAE, feature, file or other object, or URL, or the profile is archived.",
    "409": "The profile's SAE is missing or does not fit the model; or the object's state does not allow it.",
    "413": "The body is too large.",
    "415": "The body is not JSON (for files: not a form), or compressed.",
    "416": "The file has no such range.",
    "429": "A limit of the key is reached; see Retry-After.",
    "500": "The server failed; the message has the request id.",
    "503": "The model or the server is not ready; see Retry-After.",
    "504": "The request took longer than the server allows.",
    "507": "The server's disk has no room for it.",
}
OF_FILES = {"416", "507"}
GET_ERRORS = ("401", "403", "404", "429", "500", "503")


def profile_header() -> Schema:
    return {
        "name": "x-millm-profile",
        "in": "header",
        "description": "The steering profile, for clients that cannot add fields; empty: none.",
        "schema": {"type": "string"},
    }


def error(status: str) -> Schema:
    return {"description": ERRORS[status], "content": {"application/json": {"schema": ref("ErrorBody")}}}


def ref(name: str) -> Schema:
    return {"$ref": REF.format(model=name)}


COMMON_ERRORS = ("401", "403", "404", "413", "415", "429", "500", "503")


@dataclass(frozen=True, slots=True)
class Operation:
    """``request`` and ``answer`` are names of schemas; without a request the method is GET.

    ``events``: the schema of the streamed answer's events. ``query`` names text parameters of the URL.
    """

    path: str
    name: str
    summary: str
    tag: str
    answer: str
    request: str = ""
    events: str = ""
    query: tuple[str, ...] = ()
    more_errors: tuple[str, ...] = ("400",)
    error: str = "ErrorBody"

    @property
    def method(self) -> Literal["get", "post"]:
        return "post" if self.request else "get"

    def described(self, errors: dict[str, str]) -> dict[str, Any]:
        """Return the operation; ``errors`` maps statuses to descriptions."""
        content = {"application/json": {"schema": ref(self.answer)}}
        if self.events:
            content["text/event-stream"] = {"schema": ref(self.events)}
        found: dict[str, Any] = {"operationId": self.name, "summary": self.summary, "tags": [self.tag]}
        if self.query:
            found["parameters"] = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in self.query]
        if self.request:
            found["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": ref(self.request)}},
            }
        refusal = {"application/json": {"schema": ref(self.error)}}
        found["responses"] = {
            "200": {"description": "The answer.", "content": content},
            **{
                status: {"description": errors[status], "content": refusal}
                for status in sorted({*COMMON_ERRORS, *self.more_errors})
            },
        }
        return found


def paths_of(operations: Iterable[Operation], errors: dict[str, str]) -> dict[str, Any]:
    """Return the paths of operations with one method each."""
    return {each.path: {each.method: each.described(errors)} for each in operations}
