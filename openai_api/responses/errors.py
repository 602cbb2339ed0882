"""Errors of stored responses and conversations."""

from __future__ import annotations

from core.errors import MillmError, quote
from openai_api.http.errors import invalid


class ResponseNotFoundError(MillmError):
    """The response is unknown, deleted or another user's: clients cannot tell which."""

    status = 404
    code = "response_not_found"
    param = "response_id"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"The response `{quote(response_id)}` does not exist.")


def conversation_not_found(conversation_id: str, *, param: str = "conversation_id") -> MillmError:
    return _not_found(f"The conversation `{quote(conversation_id)}` does not exist.", "conversation_not_found", param)


def item_not_found(item_id: str, *, param: str = "item_id") -> MillmError:
    return _not_found(f"The item `{quote(item_id)}` does not exist.", "item_not_found", param)


def previous_not_found(missing: str, asked: str) -> MillmError:
    message = f"The response `{quote(missing)}` does not exist."
    if missing != asked:
        message = f"The response `{quote(asked)}` continues `{quote(missing)}`, which no longer exists."
    return _not_found(f"{message} Send its items as `input`.", "previous_response_not_found", "previous_response_id")


def not_ended(response_id: str) -> MillmError:
    message = f"The response `{quote(response_id)}` is still being generated. Continue it once it has completed."
    return invalid(message, param="previous_response_id", code="response_not_ended")


def chain_too_long(most: int) -> MillmError:
    message = f"The chain of responses is longer than {most}. Send the needed items as `input`."
    return invalid(message, param="previous_response_id")


def not_background() -> MillmError:
    message = "Only responses created with `background` can be cancelled. Others end when their connection closes."
    return invalid(message, param="response_id")


def _not_found(message: str, code: str, param: str) -> MillmError:
    return MillmError(message, status=404, code=code, param=param)
