"""Errors as clients of /v1 see them: OpenAI's and Anthropic's forms, and a constructor for each kind of error."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest

from core.errors import MillmError, quote

logger = logging.getLogger(__name__)
ErrorType = Literal[
    "invalid_request_error", "permission_error", "rate_limit_error", "insufficient_quota", "server_error"
]

# A file path with at least two parts, quoted or not; URL paths of this server do not count.
QUOTED_PATH = re.compile(r"""(['"`])/(?!v1/|api/|admin/|openai/)[^'"`\n]*?([^'"`/\n]+)/?(['"`])""")
PATH = re.compile(r"(?<![\w/:.@~-])~?/(?!(?:v1|api|admin|openai)/)(?:[\w.@+~%-]+/)+([\w.@+~%-]*)")
MAX_PROBLEMS = 10  # validation problems that one message lists
MAX_RETRY_AFTER_S = 120.0  # the SDKs do not retry after a longer time
# It starts like OpenAI's message, because some clients recognise a wrong key by these words.
WRONG_KEY = "Incorrect API key provided, or none. Send a key of this server as `Authorization: Bearer <key>`."
DATABASE_AWAY = "The database is not available or too slow."


def client_error(error: Exception, request_id: str, *, database_away: str = DATABASE_AWAY) -> MillmError:
    """Return ``error`` as the client sees it. The log has the cause of errors that are not the client's."""
    if isinstance(error, MillmError):
        return error
    if isinstance(error, OperationalError | InterfaceError):
        logger.warning("Request %s failed because the database is not available: %s", request_id, error)
        return unavailable(database_away, code="database_unavailable")
    logger.error("Request %s failed.", request_id, exc_info=error)
    return server_error(request_id)


def openai_error(error: MillmError, *, names_files: bool = False) -> dict[str, Any]:
    """Return OpenAI's error body: always all four keys, ``code`` and ``param`` strings or null."""
    return {
        "error": {
            "message": error.message if names_files else client_message(error),
            "type": error_type(error),
            "param": error.param,
            "code": error.code,
        },
    }


def error_type(error: MillmError) -> ErrorType:
    """Return OpenAI's type of the error."""
    if error.status >= 500:
        return "server_error"
    if error.status == 429:
        return "insufficient_quota" if error.code == "insufficient_quota" else "rate_limit_error"
    return "permission_error" if error.status == 403 else "invalid_request_error"


def client_message(error: MillmError) -> str:
    """Return the message without paths of the server's files."""
    return without_paths(error.message) if error.names_files else error.message


def error_headers(error: MillmError) -> dict[str, str]:
    """Return the headers of the response: Retry-After, and whether the SDKs should retry at all."""
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        wait_s = min(error.retry_after_s, MAX_RETRY_AFTER_S) if error.can_retry else error.retry_after_s
        headers["Retry-After"] = str(max(1, math.ceil(wait_s)))
    if not error.can_retry:
        headers["x-should-retry"] = "false"
    return headers


@contextmanager
def renaming(rename: Callable[[str], str]) -> Iterator[None]:
    """Rename message and param of errors, for requests that are derived from another request."""
    try:
        yield
    except MillmError as error:
        param = rename(error.param) if error.param else error.param
        raise error.with_param(param, message=rename(error.message)) from None


def invalid(message: str, *, param: str | None = None, code: str | None = "invalid_value") -> MillmError:
    return MillmError(message, code=code, param=param)


def invalid_json(message: str, *, code: str = "invalid_json") -> MillmError:
    return MillmError(message, code=code)


def unsupported_parameter(name: str, remedy: str = "Remove it.") -> MillmError:
    message = f"`{quote(name)}` is not supported. {remedy}"
    return MillmError(message, code="unsupported_parameter", param=name)


def unknown_parameter(name: str, *, meant: str | None = None) -> MillmError:
    remedy = f"Did you mean `{meant}`?" if meant else "Remove it."
    message = f"Unknown parameter `{quote(name)}`. {remedy}"
    return MillmError(message, code="unknown_parameter", param=quote(name))


def context_length_exceeded(*, limit: int, prompt: int, completion: int, param: str) -> MillmError:
    message = (
        f"This model's maximum context length is {limit} tokens, but the request needs {prompt + completion} "
        f"({prompt} in the prompt, {completion} for the completion). Shorten one of them."
    )
    return MillmError(message, code="context_length_exceeded", param=param)


def wrong_key() -> MillmError:
    """Return the same error for every reason, so that it reveals nothing about existing keys."""
    return MillmError(WRONG_KEY, status=401, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def forbidden(message: str, *, code: str, param: str | None = None) -> MillmError:
    return MillmError(message, status=403, code=code, param=param)


def unknown_url(method: str, path: str) -> MillmError:
    return MillmError(f"Unknown URL ({quote(method)} {quote(path)}). See /docs for the list of endpoints.", status=404)


def method_not_allowed(method: str, allowed: list[str]) -> MillmError:
    message = f"{quote(method)} is not allowed for this URL. Use {' or '.join(allowed)}."
    return MillmError(message, status=405, code="method_not_allowed", headers={"Allow": ", ".join(allowed)})


def conflict(message: str, *, code: str, param: str | None = None) -> MillmError:
    return MillmError(message, status=409, code=code, param=param)


def request_too_large(limit: int) -> MillmError:
    message = (
        f"The request body is larger than {limit} bytes. Send less, or ask the operator to raise MILLM_MAX_BODY_BYTES "
        "(MILLM_MAX_FILE_BYTES for files)."
    )
    return MillmError(message, status=413, code="request_too_large", headers={"Connection": "close"})


def unsupported_media_type(message: str, *, code: str = "unsupported_media_type") -> MillmError:
    return MillmError(message, status=415, code=code)


def insufficient_storage() -> MillmError:
    message = "The server's disk is full. Delete files, or ask the operator for more space."
    return MillmError(message, status=507, code="insufficient_storage")


def rate_limited(message: str, *, retry_after_s: float) -> MillmError:
    return MillmError(message, status=429, code="rate_limit_exceeded", retry_after_s=retry_after_s)


def insufficient_quota(message: str, *, retry_after_s: float | None) -> MillmError:
    """Return 429 with the time at which the quota resets; None if no retry can ever succeed."""
    return MillmError(
        message,
        status=429,
        code="insufficient_quota",
        retry_after_s=retry_after_s,
        can_retry=False,
    )


def server_error(request_id: str) -> MillmError:
    message = f"The server failed to process this request. See its log for {request_id}."
    return MillmError(message, status=500)


def without_paths(message: str) -> str:
    """Shorten each file path in a message to its last part, so that clients do not see the server's folders."""
    return PATH.sub(r"…/\1", QUOTED_PATH.sub(r"\1…/\2\3", message))


def unavailable(message: str, *, code: str, retry_after_s: float = 5.0) -> MillmError:
    return MillmError(without_paths(message), status=503, code=code, retry_after_s=retry_after_s)


def timed_out(seconds: float, setting: str = "MILLM_REQUEST_TIMEOUT") -> MillmError:
    message = f"The request did not finish within {seconds:g} s ({setting}). Ask for fewer tokens."
    return MillmError(message, status=504, code="request_timeout")


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


def neuronpedia_error(error: MillmError) -> dict[str, Any]:
    """Return the error in Neuronpedia's form. ``param`` and ``code`` are extensions."""
    return {"message": client_message(error), "param": error.param, "code": error.code}


def ollama_error(error: MillmError) -> dict[str, Any]:
    """Return the error in Ollama's form. ``param`` and ``code`` are extensions."""
    return {"error": client_message(error), "param": error.param, "code": error.code}


def anthropic_error(error: MillmError) -> dict[str, Any]:
    """Return the error in Anthropic's form. ``param`` and ``code`` are extensions, which its clients ignore."""
    kind = TYPES.get(error.status, "invalid_request_error")
    detail = {"type": kind, "message": client_message(error), "param": error.param, "code": error.code}
    return {"type": "error", "error": detail}
