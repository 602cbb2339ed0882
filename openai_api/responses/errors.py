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
        super().__init__(f"There is no response “{quote(response_id)}”.")


def conversation_not_found(conversation_id: str, *, param: str = "conversation_id") -> MillmError:
    return _not_found(f"There is no conversation “{quote(conversation_id)}”.", "conversation_not_found", param)


def item_not_found(item_id: str, *, param: str = "item_id") -> MillmError:
    return _not_found(f"There is no item “{quote(item_id)}”.", "item_not_found", param)


def previous_not_found(missing: str, asked: str) -> MillmError:
    message = f"There is no response “{quote(missing)}” to continue."
    if missing != asked:
        message = f"The response “{quote(asked)}” continues “{quote(missing)}”, which is not kept any more."
    return _not_found(f"{message} Send its items as “input”.", "previous_response_not_found", "previous_response_id")


def not_ended(response_id: str) -> MillmError:
    message = f"The response “{quote(response_id)}” is still being generated. Continue it when it has ended."
    return invalid(message, param="previous_response_id", code="response_not_ended")


def chain_too_long(most: int) -> MillmError:
    message = f"More than {most} responses follow one another. Send what is needed of them as “input”."
    return invalid(message, param="previous_response_id")


def not_background() -> MillmError:
    message = "Only responses that were created with “background” can be cancelled; others end with their connection."
    return invalid(message, param="response_id")


def _not_found(message: str, code: str, param: str) -> MillmError:
    return MillmError(message, status=404, code=code, param=param)
