"""From a request to the engine's input: its context, the equivalent chat, model and profile, and the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.conf import settings

from core.errors import MillmError
from openai_api.database import in_database
from openai_api.endpoints.chat import plan_chat
from openai_api.generation.answer import AnswerPlan
from openai_api.generation.prompt import prompt_ids
from openai_api.generation.run import Plan
from openai_api.generation.target import Target, resolve_target
from openai_api.http.call import Call
from openai_api.responses.chat_form import ChatBody, chat_body, parse_chat, renaming
from openai_api.responses.errors import item_not_found
from openai_api.responses.items import items_of
from openai_api.responses.mcp import RemoteTools
from openai_api.responses.schemas.bodies import Item
from openai_api.responses.schemas.items import AnyItem, ReferenceItem
from openai_api.responses.schemas.request import InputSchema, PromptSchema
from openai_api.responses.store import conversation_items, history_of, referred_items
from openai_api.schemas.chat import ChatRequest


@dataclass(frozen=True, slots=True)
class Context:
    """``history`` is the preceding items, ``input`` the request's own."""

    history: Sequence[Item]
    input: Sequence[Item]

    @property
    def items(self) -> list[Item]:
        return [*self.history, *self.input]


async def read_context(call: Call, request: InputSchema) -> Context:
    """Load what the request continues, if anything is stored. Raises MillmError 400 and 404."""
    return Context(await _history(call.owner_id, request), await own_items(call, request.input))


async def own_items(call: Call, given: str | Iterable[AnyItem] | None, *, param: str = "input") -> list[Item]:
    """Return the request's items, with references resolved."""
    items = items_of(given)
    references = [item.id for item in items if isinstance(item, ReferenceItem)]
    if not references:
        return [item for item in items if not isinstance(item, ReferenceItem)]
    owner_id = call.owner_id
    found = await in_database(lambda: referred_items(references, owner_id))
    for place, item in enumerate(items):
        if isinstance(item, ReferenceItem) and item.id not in found:
            raise item_not_found(item.id, param=f"{param}[{place}].id")
    return [found[item.id] if isinstance(item, ReferenceItem) else item for item in items]


async def _history(owner_id: int | None, request: InputSchema) -> list[Item]:
    conversation = request.conversation if isinstance(request, PromptSchema) else None
    previous = request.previous_response_id
    if conversation is not None:
        return await in_database(lambda: conversation_items(conversation, owner_id, param="conversation"))
    if previous is None:
        return []
    return await in_database(lambda: history_of(previous, owner_id))


TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class PlannedChat:
    """``chat``, the ``body`` it was parsed from, and the ``items`` that this was made of."""

    items: Sequence[Item]
    body: ChatBody
    chat: ChatRequest
    target: Target
    plan: Plan
    answers: AnswerPlan


async def plan_response(
    call: Call, request: PromptSchema, context: Context, remote: RemoteTools | None = None
) -> PlannedChat:
    """Plan the response, with the MCP tools ``remote``. Raises MillmError in terms of the request's fields."""
    items = [*context.items, *(remote.new_items if remote is not None else ())]
    body = chat_body(request, items, remote)
    chat = parse_chat(request, body)
    with renaming(request):
        target = await resolve_target(call, chat)
        try:
            return PlannedChat(items, body, chat, target, *await plan_chat(chat, target))
        except MillmError as error:
            if request.truncation != "auto" or error.code != TOO_LONG:
                raise
        return await _truncated(request, items, target, remote)


async def _truncated(
    request: PromptSchema, items: Sequence[Item], target: Target, remote: RemoteTools | None
) -> PlannedChat:
    """Drop as few of the oldest items as necessary, by bisection.

    The last turn, from the user's message on, always stays; if it is too long the request is refused.
    """
    least, most = 1, _last_turn(items)
    found = await _try(request, _whole(items[most:]), target, remote)
    while least < most:
        middle = (least + most) // 2
        try:
            found, most = await _try(request, _whole(items[middle:]), target, remote), middle
        except MillmError as error:
            if error.code != TOO_LONG:
                raise
            least = middle + 1
    return found


async def _try(request: PromptSchema, items: Sequence[Item], target: Target, remote: RemoteTools | None) -> PlannedChat:
    body = chat_body(request, items, remote)
    chat = parse_chat(request, body)
    await _check_room(chat, target)
    return PlannedChat(items, body, chat, target, *await plan_chat(chat, target))


async def _check_room(chat: ChatRequest, target: Target) -> None:
    """Leave space for an answer of unknown length, which otherwise would end at the first token."""
    if chat.token_limit is not None:
        return
    room = min(settings.MILLM_MAX_TOKENS_DEFAULT, target.model.max_model_len // 4)
    used = len(await prompt_ids(target.model.text, chat))
    if used + room > target.model.max_model_len:
        raise MillmError("The items do not fit into the model's context.", code=TOO_LONG, param="input")


def _last_turn(items: Sequence[Item]) -> int:
    places = [place for place, item in enumerate(items) if item.get("role") == "user"]
    return places[-1] if places else 0


def _whole(items: Sequence[Item]) -> list[Item]:
    """Drop tool outputs whose calls were dropped."""
    calls = {item["call_id"] for item in items if item["type"] == "function_call"}
    return [item for item in items if item["type"] != "function_call_output" or item["call_id"] in calls]
