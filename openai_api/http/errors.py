"""Errors of the /v1 API: one exception, its two body formats, and a constructor for each kind of error."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from django.http import HttpRequest

ErrorType = Literal[
    "invalid_request_error", "permission_error", "rate_limit_error", "insufficient_quota", "server_error"
]

# A file path with at least two parts, quoted or not; URL paths of this server do not count.
QUOTED_PATH = re.compile(r"""(['"`“])/(?!v1/|api/|admin/)[^'"`”\n]*?([^'"`”/\n]+)/?(['"`”])""")
PATH = re.compile(r"(?<![\w/:.@~-])~?/(?!(?:v1|api|admin)/)(?:[\w.@+~%-]+/)+([\w.@+~%-]*)")
MAX_QUOTED = 200  # characters of a client's input that an error quotes
MAX_PROBLEMS = 10  # validation problems that one message lists
MAX_RETRY_AFTER_S = 120.0  # the SDKs do not retry after a longer time
# Starts like OpenAI's message: some clients recognise a wrong key by these words.
WRONG_KEY = "Incorrect API key provided, or none. Send a key of this server as “Authorization: Bearer <key>”."


class ApiError(Exception):
    """An error as the client sees it; ``message`` is a sentence with the value and the remedy.

    ``retry_after_s`` becomes Retry-After. ``can_retry`` False tells the SDKs that a retry would fail as well.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: ErrorType = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        can_retry: bool = True,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.can_retry = can_retry
        self.headers = headers or {}

    def body(self) -> dict[str, dict[str, Any]]:
        """Return OpenAI's error body: always all four keys, ``code`` and ``param`` strings or null."""
        return {
            "error": {"message": self.message, "type": self.error_type, "param": self.param, "code": self.code},
        }

    def all_headers(self) -> dict[str, str]:
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            wait_s = min(self.retry_after_s, MAX_RETRY_AFTER_S) if self.can_retry else self.retry_after_s
            headers["Retry-After"] = str(max(1, math.ceil(wait_s)))
        if not self.can_retry:
            headers["x-should-retry"] = "false"
        return headers


@contextmanager
def renaming(rename: Callable[[str], str]) -> Iterator[None]:
    """Rename message and param of errors, for requests that are derived from another request."""
    try:
        yield
    except ApiError as error:
        error.message = rename(error.message)
        error.param = rename(error.param) if error.param else error.param
        raise


def quote(value: object) -> str:
    """Return ``value`` as an error may quote it: at most 200 characters."""
    text = value[: MAX_QUOTED + 1] if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…"


def invalid(message: str, *, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    return ApiError(400, message, code=code, param=param)


def invalid_json(message: str, *, code: str = "invalid_json") -> ApiError:
    return ApiError(400, message, code=code)


def unsupported_parameter(name: str, remedy: str = "Leave it out.") -> ApiError:
    message = f"The parameter “{quote(name)}” is not supported by this server. {remedy}"
    return ApiError(400, message, code="unsupported_parameter", param=name)


def unknown_parameter(name: str, *, meant: str | None = None) -> ApiError:
    remedy = f"Did you mean `{meant}`?" if meant else "Leave it out."
    message = f"There is no parameter `{quote(name)}`. {remedy}"
    return ApiError(400, message, code="unknown_parameter", param=quote(name))


def context_length_exceeded(*, limit: int, prompt: int, completion: int, param: str) -> ApiError:
    message = (
        f"This model's maximum context length is {limit} tokens, but the request needs {prompt + completion} "
        f"({prompt} in the prompt, {completion} for the completion). Shorten one of them."
    )
    return ApiError(400, message, code="context_length_exceeded", param=param)


def wrong_key() -> ApiError:
    """Return the same error for every reason, so that it reveals nothing about existing keys."""
    return ApiError(401, WRONG_KEY, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def forbidden(message: str, *, code: str, param: str | None = None) -> ApiError:
    return ApiError(403, message, error_type="permission_error", code=code, param=param)


def model_not_found(name: str) -> ApiError:
    message = f"The model “{quote(name)}” does not exist. GET /v1/models lists the models of this server."
    return ApiError(404, message, code="model_not_found", param="model")


def unknown_url(method: str, path: str) -> ApiError:
    return ApiError(404, f"Unknown URL ({quote(method)} {quote(path)}). The endpoints are listed under /docs.")


def method_not_allowed(method: str, allowed: list[str]) -> ApiError:
    message = f"{quote(method)} is not allowed here; use {' or '.join(allowed)}."
    return ApiError(405, message, code="method_not_allowed", headers={"Allow": ", ".join(allowed)})


def conflict(message: str, *, code: str, param: str | None = None) -> ApiError:
    return ApiError(409, message, code=code, param=param, can_retry=False)


def request_too_large(limit: int) -> ApiError:
    message = (
        f"The request body is larger than {limit} bytes. Send less, or raise MILLM_MAX_BODY_BYTES, for files "
        "MILLM_MAX_FILE_BYTES."
    )
    return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})


def unsupported_media_type(message: str, *, code: str = "unsupported_media_type") -> ApiError:
    return ApiError(415, message, code=code)


def insufficient_storage() -> ApiError:
    message = "The server's disk has no room for this. Delete files, or ask the operator for more."
    return ApiError(507, message, error_type="server_error", code="insufficient_storage", can_retry=False)


def rate_limited(message: str, *, retry_after_s: float) -> ApiError:
    return ApiError(
        429, message, error_type="rate_limit_error", code="rate_limit_exceeded", retry_after_s=retry_after_s
    )


def insufficient_quota(message: str, *, retry_after_s: float | None) -> ApiError:
    """Return 429 with the time at which the quota resets; None if no retry can ever succeed."""
    return ApiError(
        429,
        message,
        error_type="insufficient_quota",
        code="insufficient_quota",
        retry_after_s=retry_after_s,
        can_retry=False,
    )


def server_error(request_id: str) -> ApiError:
    message = f"The server failed on this request. Its log has the cause under {request_id}."
    return ApiError(500, message, error_type="server_error")


def without_paths(message: str) -> str:
    """Shorten each file path in a message to its last part, so that clients do not see the server's folders."""
    return PATH.sub(r"…/\1", QUOTED_PATH.sub(r"\1…/\2\3", message))


def unavailable(message: str, *, code: str, retry_after_s: float = 5.0) -> ApiError:
    return ApiError(503, without_paths(message), error_type="server_error", code=code, retry_after_s=retry_after_s)


def timed_out(seconds: float, setting: str = "MILLM_REQUEST_TIMEOUT") -> ApiError:
    message = f"The request did not finish within {seconds:g} s ({setting}). Ask for fewer tokens."
    return ApiError(504, message, error_type="server_error", code="request_timeout", can_retry=False)


VERSION_HEADER = "anthropic-version"  # sent by every client of Anthropic's API
MESSAGES = "/v1/messages"

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def speaks_anthropic(request: HttpRequest) -> bool:
    """Return whether the client uses Anthropic's API, on any path."""
    path = request.path.rstrip("/")
    return VERSION_HEADER in request.headers or path == MESSAGES or path.startswith(f"{MESSAGES}/")


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Return the error in Anthropic's form. ``param`` and ``code`` are extensions, which its clients ignore."""
    kind = TYPES.get(error.status, "invalid_request_error")
    detail = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    return {"type": "error", "error": detail}
