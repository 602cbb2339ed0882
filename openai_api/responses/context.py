"""What a request continues, and what it adds: all items that the model is to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from openai_api.call import Call
from openai_api.database import in_database
from openai_api.responses.items import items_of
from openai_api.responses.refusals import (
    chain_too_long,
    conversation_not_found,
    item_not_found,
    not_ended,
    previous_not_found,
)
from openai_api.responses.schemas.bodies import Item
from openai_api.responses.schemas.items import AnyItem, ReferenceItem
from openai_api.responses.schemas.request import InputSchema, PromptSchema
from openai_api.responses.store import (
    MAX_CHAIN,
    ChainTooLongError,
    NotEndedError,
    NotFoundError,
    conversation_items,
    history_of,
    referred_items,
)


@dataclass(frozen=True, slots=True)
class Context:
    """``history`` is what came before, ``input`` the request's own items."""

    history: Sequence[Item]
    input: Sequence[Item]

    @property
    def items(self) -> list[Item]:
        return [*self.history, *self.input]


async def read_context(call: Call, wanted: InputSchema) -> Context:
    """Touches the database only for what is stored there; raises ApiError 400 and 404."""
    return Context(await _history(owner_of(call), wanted), await own_items(call, wanted.input))


async def own_items(call: Call, given: str | Iterable[AnyItem] | None, *, param: str = "input") -> list[Item]:
    """The items that a request brings, with those that it refers to in their places."""
    items = items_of(given)
    references = [item.id for item in items if isinstance(item, ReferenceItem)]
    if not references:
        return [item for item in items if not isinstance(item, ReferenceItem)]
    owner_id = owner_of(call)
    found = await in_database(lambda: referred_items(references, owner_id))
    for place, item in enumerate(items):
        if isinstance(item, ReferenceItem) and item.id not in found:
            raise item_not_found(item.id, param=f"{param}[{place}].id")
    return [found[item.id] if isinstance(item, ReferenceItem) else item for item in items]


def owner_of(call: Call) -> int | None:
    """Whose objects the request makes and sees; None without a key, which only this machine's requests come without."""
    return call.key.owner_id if call.key is not None else None


async def _history(owner_id: int | None, wanted: InputSchema) -> list[Item]:
    conversation = wanted.conversation if isinstance(wanted, PromptSchema) else None
    previous = wanted.previous_response_id
    if conversation is not None:
        try:
            return await in_database(lambda: conversation_items(conversation, owner_id))
        except NotFoundError:
            raise conversation_not_found(conversation, param="conversation") from None
    if previous is None:
        return []
    try:
        return await in_database(lambda: history_of(previous, owner_id))
    except NotFoundError as error:
        raise previous_not_found(str(error), previous) from None
    except NotEndedError:
        raise not_ended(previous) from None
    except ChainTooLongError:
        raise chain_too_long(MAX_CHAIN) from None
