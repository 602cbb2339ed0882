"""What the client does, as steps: requests and pauses as values that a transport carries out.

A function that returns :data:`Steps` is a generator. It yields a step, gets its answer back, and returns its result. So
:class:`~millm.Millm` and :class:`~millm.AsyncMillm` share everything but the waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import openai

JSON = dict[str, Any]
File = tuple[str, tuple[str, bytes]]  # field, (file name, content)
T = TypeVar("T")

TOO_LARGE = "reading_too_large"


@dataclass(frozen=True)
class Request:
    """A request, answered by its JSON, or by an object of the type ``answer``.

    ``path``: in ``/v1``, or in ``/api`` with ``management``. ``stream``: the answer is a stream of such objects.
    ``repeats``: whether it may be sent again after a failure.
    """

    method: Literal["get", "post", "put", "delete"]
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[File] | None = None
    answer: type = object
    management: bool = False
    stream: bool = False
    repeats: bool = True


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Work:
    """A function that computes or reads files for long. The answer is its result."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Together:
    """Steps that do not depend on each other, at most ``at_once`` at the same time. The answer is their results."""

    parts: Sequence[Steps[Any]]
    at_once: int


Step = Request | Pause | Work | Together
Steps = Generator[Step, Any, T]


def post(path: str, body: Mapping[str, Any], answer: type = object, *, stream: bool = False) -> Request:
    """Return a request to an endpoint of /v1 that changes nothing."""
    return Request("post", path, body, answer=answer, stream=stream)


def post_for_bytes(path: str, body: Mapping[str, Any]) -> Steps[bytes]:
    """Return the content of a binary answer."""
    response = yield post(path, body, openai.HttpxBinaryResponseContent)
    content: bytes = response.content
    return content


def get(path: str, **query: object) -> Request:
    return Request("get", path, query=_given(query))


def api_get(path: str, **query: object) -> Request:
    return Request("get", path, query=_given(query), management=True)


def api_post(path: str, body: Mapping[str, Any] | None = None) -> Request:
    return Request("post", path, body or {}, management=True, repeats=False)  # a second job would start


def api_put(path: str, body: Mapping[str, Any]) -> Request:
    return Request("put", path, body, management=True, repeats=False)


def api_delete(path: str) -> Request:
    return Request("delete", path, answer=type(None), management=True, repeats=False)


def api_upload(path: str, fields: Mapping[str, Any], files: Sequence[File]) -> Request:
    """Return a multipart form. Fields that are None are left out."""
    body = {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}
    return Request("post", path, _given(body), files=files, management=True, repeats=False)


def is_too_large(error: openai.BadRequestError) -> bool:
    """Return whether the request was refused because its answer would be too large."""
    return error.code == TOO_LARGE


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
