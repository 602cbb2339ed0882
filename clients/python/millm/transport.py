"""Requests to the endpoints that OpenAI's client does not know, sent through that client.

Its authentication, timeouts and exceptions apply to them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import openai
from openai._types import RequestOptions

JSON = dict[str, Any]
File = tuple[str, tuple[str, bytes]]  # field, (file name, content)

TOO_LARGE = "reading_too_large"


class Transport:
    """Sends requests to ``/v1`` (paths without a leading slash) and to ``/api``."""

    def __init__(self, client: openai.OpenAI, root: str) -> None:
        self._client = client
        self._once = client.with_options(max_retries=0)  # a repeated upload or job would be a second one
        self._root = root

    def post(self, path: str, body: Mapping[str, Any]) -> JSON:
        """Return the JSON answer of an endpoint of /v1 that changes nothing."""
        return cast("JSON", self._client.post(path, cast_to=object, body=body))

    def post_for_bytes(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Return the content of a binary answer."""
        response = self._client.post(path, cast_to=openai.HttpxBinaryResponseContent, body=body)
        return response.content

    def get(self, path: str, **query: object) -> JSON:
        return cast("JSON", self._client.get(path, cast_to=object, options=_options(query)))

    def api_get(self, path: str, **query: object) -> JSON:
        return self.get(f"{self._root}/api/{path}", **query)

    def api_post(self, path: str, body: Mapping[str, Any] | None = None) -> JSON:
        return cast("JSON", self._once.post(f"{self._root}/api/{path}", cast_to=object, body=body or {}))

    def api_put(self, path: str, body: Mapping[str, Any]) -> JSON:
        return cast("JSON", self._once.put(f"{self._root}/api/{path}", cast_to=object, body=body))

    def api_delete(self, path: str) -> None:
        self._once.delete(f"{self._root}/api/{path}", cast_to=type(None))

    def api_upload(self, path: str, fields: Mapping[str, Any], files: Sequence[File]) -> JSON:
        """Send a multipart form. Fields that are None are left out."""
        body = {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}
        answer = self._once.post(
            f"{self._root}/api/{path}",
            cast_to=object,
            body={name: value for name, value in body.items() if value is not None},
            files=list(files),
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )
        return cast("JSON", answer)


def is_too_large(error: openai.BadRequestError) -> bool:
    """Return whether the request was refused because its answer would be too large."""
    return error.code == TOO_LARGE


def _options(query: Mapping[str, object]) -> RequestOptions:
    return {"params": {name: value for name, value in query.items() if value is not None}}
