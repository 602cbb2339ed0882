"""From a request to what the engine gets: the chat that it amounts to, its model and profile, and its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings

from openai_api.call import Call
from openai_api.errors import ApiError
from openai_api.responses.chat_form import ChatBody, chat_body, parse_chat, renaming
from openai_api.responses.context import Context
from openai_api.responses.schemas.bodies import Item
from openai_api.responses.schemas.request import PromptSchema
from openai_api.schemas.chat import ChatRequest
from openai_api.services.answer import AnswerPlan
from openai_api.services.chat import plan_chat
from openai_api.services.generation import Plan
from openai_api.services.target import Target, resolve_target
from openai_api.services.transcript import prompt_ids

TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class PlannedChat:
    """``body`` is what ``chat`` was parsed from, and made of ``items``."""

    items: Sequence[Item]
    body: ChatBody
    chat: ChatRequest
    target: Target
    plan: Plan
    answers: AnswerPlan


async def plan_response(call: Call, wanted: PromptSchema, context: Context) -> PlannedChat:
    """Raises ApiError in the request's own words."""
    body = chat_body(wanted, context.items)
    chat = parse_chat(wanted, body)
    with renaming(wanted):
        target = await resolve_target(call, chat)
        try:
            return PlannedChat(context.items, body, chat, target, *await plan_chat(chat, target))
        except ApiError as error:
            if wanted.truncation != "auto" or error.code != TOO_LONG:
                raise
        return await _truncated(wanted, context, target)


async def _truncated(wanted: PromptSchema, context: Context, target: Target) -> PlannedChat:
    """The chat without its oldest items: as few as possible are left out, by halving the range.

    The last turn, from the user's message on, always stays; if even that is too long the request is refused.
    """
    items = context.items
    least, most = 1, _last_turn(items)
    found = await _try(wanted, _whole(items[most:]), target)
    while least < most:
        middle = (least + most) // 2
        try:
            found, most = await _try(wanted, _whole(items[middle:]), target), middle
        except ApiError as error:
            if error.code != TOO_LONG:
                raise
            least = middle + 1
    return found


async def _try(wanted: PromptSchema, items: Sequence[Item], target: Target) -> PlannedChat:
    body = chat_body(wanted, items)
    chat = parse_chat(wanted, body)
    await _check_room(chat, target)
    return PlannedChat(items, body, chat, target, *await plan_chat(chat, target))


async def _check_room(chat: ChatRequest, target: Target) -> None:
    """An answer of unknown length gets some room too, or else the first token would fill the context."""
    if chat.token_limit is not None:
        return
    room = min(settings.MILLM_MAX_TOKENS_DEFAULT, target.model.max_model_len // 4)
    used = len(await prompt_ids(target.model.text, chat))
    if used + room > target.model.max_model_len:
        raise ApiError(400, "The items do not fit the model's context.", code=TOO_LONG, param="input")


def _last_turn(items: Sequence[Item]) -> int:
    places = [place for place, item in enumerate(items) if item.get("role") == "user"]
    return places[-1] if places else 0


def _whole(items: Sequence[Item]) -> list[Item]:
    """Without what tools gave back to calls that are left out."""
    calls = {item["call_id"] for item in items if item["type"] == "function_call"}
    return [item for item in items if item["type"] != "function_call_output" or item["call_id"] in calls]
