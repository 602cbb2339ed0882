"""Stored responses: looked up, listed, deleted, cancelled."""

from __future__ import annotations

from django.http.response import HttpResponseBase

from openai_api.call import Call
from openai_api.database import in_database
from openai_api.endpoint import json_response
from openai_api.errors import invalid
from openai_api.responses.background import NotBackgroundError, cancel_response, delete_response, end_if_lost
from openai_api.responses.context import owner_of
from openai_api.responses.models import StoredResponse
from openai_api.responses.page import list_body, read_flag, read_number, read_page
from openai_api.responses.refusals import previous_not_found, response_not_found
from openai_api.responses.replay import stream_stored
from openai_api.responses.schemas.bodies import ResponseBody, ResponseDeletedBody
from openai_api.responses.store import NotFoundError, input_of, read_response, response_body

MAX_NUMBER = 10**9


async def get_response(call: Call, response_id: str) -> HttpResponseBase:
    """The object; with ``stream=true`` the events of a streamed background response, those that come included.

    ``starting_after`` without ``stream`` has nothing to start after, and no effect.
    """
    owner_id, query = owner_of(call), call.request.GET
    wants_stream = read_flag(query.get("stream", "false"), "stream")
    after = query.get("starting_after")
    number = read_number(after, "starting_after", least=0, most=MAX_NUMBER) if after is not None else None
    try:
        row, body = await in_database(lambda: _read(response_id, owner_id))
    except NotFoundError:
        raise response_not_found(response_id) from None
    if not wants_stream:
        return json_response(body)
    if not row.is_streamed:
        message = "Only responses that were created with “background” and “stream” can be streamed again."
        raise invalid(message, param="stream")
    return stream_stored(call, response_id, -1 if number is None else number)


async def remove_response(call: Call, response_id: str) -> HttpResponseBase:
    """One that is still being generated is cancelled first. What continues it keeps its own items only."""
    owner_id = owner_of(call)
    try:
        await in_database(lambda: delete_response(response_id=response_id, owner_id=owner_id))
    except NotFoundError:
        raise response_not_found(response_id) from None
    body: ResponseDeletedBody = {"id": response_id, "object": "response", "deleted": True}
    return json_response(body)


async def list_input_items(call: Call, response_id: str) -> HttpResponseBase:
    page, owner_id = read_page(call.request.GET), owner_of(call)
    try:
        items = await in_database(lambda: input_of(response_id, owner_id))
    except NotFoundError as error:
        missing = str(error)
        if missing != response_id:
            raise previous_not_found(missing, response_id) from None
        raise response_not_found(response_id) from None
    return json_response(list_body(items, page))


async def stop_response(call: Call, response_id: str) -> HttpResponseBase:
    """Cancels a background response; one that has ended stays as it is, and the answer is the response either way."""
    owner_id = owner_of(call)
    try:
        body = await in_database(lambda: response_body(cancel_response(response_id=response_id, owner_id=owner_id)))
    except NotFoundError:
        raise response_not_found(response_id) from None
    except NotBackgroundError:
        message = (
            "Only responses that were created with “background” can be cancelled; others end with their connection."
        )
        raise invalid(message, param="response_id") from None
    return json_response(body)


def _read(response_id: str, owner_id: int | None) -> tuple[StoredResponse, ResponseBody]:
    row, body = read_response(response_id, owner_id)
    if not row.is_open:
        return row, body
    end_if_lost(response_id)
    return read_response(response_id, owner_id)
