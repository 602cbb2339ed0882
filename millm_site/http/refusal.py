"""Responses that the server itself sends, below Django."""

from __future__ import annotations

import http
import json
from dataclasses import dataclass

from core.errors import MillmError
from core.ids import new_id
from openai_api.http.errors import error_headers, insufficient_storage, openai_error, request_too_large, unavailable

DRAIN_RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A complete response, after which the connection is closed."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def as_bytes(self) -> bytes:
        """Return the response as the bytes of an HTTP/1.1 message."""
        lines = [f"HTTP/1.1 {self.status} {http.HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def refusal(error: MillmError) -> Refusal:
    """Return the response with the API's error body, whatever the path: browsers do not cause these errors."""
    body = json.dumps(openai_error(error)).encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "x-request-id": new_id("req_"),
        **error_headers(error),
        "Connection": "close",
    }
    return Refusal(error.status, tuple(headers.items()), body)


def too_large(limit: int) -> Refusal:
    return refusal(request_too_large(limit))


def disk_full() -> Refusal:
    return refusal(insufficient_storage())


def header_too_large(limit: int) -> Refusal:
    message = f"The request header must be at most {limit} bytes. Send fewer or shorter header lines."
    return refusal(MillmError(message, status=431, code="header_too_large"))


def malformed() -> Refusal:
    return refusal(MillmError("The request is not valid HTTP/1.1.", code="invalid_http"))


def invalid_host(problem: str) -> Refusal:
    return refusal(MillmError(problem, code="invalid_host"))


def too_slow(seconds: float) -> Refusal:
    message = f"The request was not complete within {seconds:g} s. Send it again without pauses."
    return refusal(MillmError(message, status=408, code="request_timeout"))


def no_answer(seconds: float) -> Refusal:
    message = f"The server did not respond within {seconds:g} s. Try again later."
    return refusal(unavailable(message, code="server_is_overloaded", retry_after_s=DRAIN_RETRY_S))


def too_many_connections() -> Refusal:
    message = "Too many connections are open, from this address or in total. Close some, or try again in a few seconds."
    return refusal(unavailable(message, code="server_is_overloaded", retry_after_s=DRAIN_RETRY_S))


def draining() -> Refusal:
    message = "The server is stopping and accepts no new requests. Try again in a few seconds."
    return refusal(unavailable(message, code="server_is_stopping", retry_after_s=DRAIN_RETRY_S))
