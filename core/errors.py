"""The base class of all errors that clients and users may see.

A package subclasses :class:`MillmError` and sets ``status``, ``code`` and so on as class attributes, or in the
constructor. APIs, pages and commands only render errors; they do not translate them.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_QUOTED = 200  # characters of a client's input that a message quotes
NEVER_RETRY = frozenset({409, 504, 507})  # statuses of requests that would fail again


class MillmError(Exception):
    """An error with the HTTP status, code and field that clients see.

    ``message`` is a sentence that quotes the value and says what to do. ``param`` is the field of the request.
    ``retry_after_s`` becomes Retry-After. ``can_retry=False`` tells SDKs that a retry would fail as well.
    ``names_files``: the message may contain paths of the server, which clients of /v1 do not see.
    """

    status: int = 400
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    names_files: bool = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        can_retry: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create the error; arguments that are None keep the values of the class."""
        super().__init__(message)
        self.message = message
        self.status = self.status if status is None else status
        self.code = self.code if code is None else code
        self.param = self.param if param is None else param
        self.retry_after_s = self.retry_after_s if retry_after_s is None else retry_after_s
        self.can_retry = self.status not in NEVER_RETRY if can_retry is None else can_retry
        self.headers = dict(headers or {})

    @property
    def lines(self) -> list[str]:
        """Return the message as lines for a terminal."""
        return [self.message]

    def with_param(self, param: str | None, *, message: str | None = None) -> MillmError:
        """Return the error for another field, for requests that are derived from another request."""
        error = MillmError(
            self.message if message is None else message,
            status=self.status,
            code=self.code,
            param=param,
            retry_after_s=self.retry_after_s,
            can_retry=self.can_retry,
            headers=self.headers,
        )
        error.names_files = self.names_files
        return error


def quote(value: object) -> str:
    """Return ``value`` for a message: at most 200 characters."""
    text = value[: MAX_QUOTED + 1] if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…"
