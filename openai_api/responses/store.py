"""Responses and conversations in the database. Synchronous; see `in_database`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from core.text import clean_json
from jobs.webhooks.models import EventType
from jobs.webhooks.outbox import Event as WebhookEvent
from jobs.webhooks.outbox import queue_events
from openai_api.responses.errors import (
    ResponseNotFoundError,
    chain_too_long,
    conversation_not_found,
    not_ended,
    previous_not_found,
)
from openai_api.responses.models import Conversation, StoredEvents, StoredItem, StoredResponse
from openai_api.responses.schemas.bodies import Event, Item, ResponseBody

ANSWERED = frozenset({"completed", "incomplete"})
MAX_CHAIN = 1_000  # maximum length of a chain of responses

_CHAIN = """
    WITH RECURSIVE chain (id, previous_response_id, status, place) AS (
        SELECT id, previous_response_id, status, 1 FROM responses_storedresponse
        WHERE id = %(id)s AND owner_id IS NOT DISTINCT FROM %(owner)s
        UNION ALL
        SELECT earlier.id, earlier.previous_response_id, earlier.status, chain.place + 1
        FROM responses_storedresponse AS earlier JOIN chain ON earlier.id = chain.previous_response_id
        WHERE earlier.owner_id IS NOT DISTINCT FROM %(owner)s AND chain.place < %(most)s
    )
    SELECT id, previous_response_id, status FROM chain ORDER BY place
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """A response to be saved, with the items of its request."""

    body: ResponseBody
    input: Sequence[Item]
    owner_id: int | None


def is_storable(object_id: str) -> bool:
    """Return whether an id can be looked up at all."""
    return "\0" not in object_id and len(object_id) <= 64


def find_response(response_id: str, owner_id: int | None) -> StoredResponse:
    """Return a stored response. Raises ResponseNotFoundError."""
    row = StoredResponse.objects.filter(pk=response_id, owner_id=owner_id).first() if is_storable(response_id) else None
    if row is None:
        raise ResponseNotFoundError(response_id)
    return row


def find_conversation(conversation_id: str, owner_id: int | None, *, param: str = "conversation_id") -> Conversation:
    """Return a conversation. Raises MillmError 404 that names ``param``."""
    rows = Conversation.objects.filter(pk=conversation_id, owner_id=owner_id)
    row = rows.first() if is_storable(conversation_id) else None
    if row is None:
        raise conversation_not_found(conversation_id, param=param)
    return row


def response_body(row: StoredResponse) -> ResponseBody:
    """Return the object as clients see it, with its output."""
    output = [item.body for item in row.items.filter(is_output=True)]
    body: ResponseBody = {**row.body, "status": row.status, "output": output}  # type: ignore[typeddict-item]
    return body


def read_response(response_id: str, owner_id: int | None) -> tuple[StoredResponse, ResponseBody]:
    row = find_response(response_id, owner_id)
    return row, response_body(row)


def is_open(response_id: str) -> bool:
    return StoredResponse.objects.filter(pk=response_id, status__in=StoredResponse.OPEN).exists()


def input_of(response_id: str, owner_id: int | None) -> list[Item]:
    """Return all input of a response: what it continues, then its own input. Raises MillmError 400 and 404."""
    row = find_response(response_id, owner_id)
    own = [item.body for item in row.items.filter(is_output=False)]
    previous = row.previous_response_id
    return [*(history_of(previous, owner_id, requested_id=response_id) if previous else ()), *own]


def history_of(response_id: str, owner_id: int | None, *, requested_id: str | None = None) -> list[Item]:
    """Return the items of a response and of all it continues, oldest first, and mark them as used.

    Raises MillmError 400 and 404. ``requested_id`` is the id that the client sent, by default ``response_id``.
    """
    chain = _chain(response_id, owner_id, response_id if requested_id is None else requested_id)
    StoredResponse.objects.filter(pk__in=chain).update(used_at=timezone.now())
    place = {pk: number for number, pk in enumerate(reversed(chain))}
    items = StoredItem.objects.filter(response_id__in=chain)
    return [item.body for item in sorted(items, key=lambda item: (place[item.response_id or ""], item.pk))]


def _chain(response_id: str, owner_id: int | None, requested_id: str) -> list[str]:
    """Return the ids of the response and its predecessors, newest first."""
    if not is_storable(response_id):
        raise previous_not_found(response_id, requested_id)
    with connection.cursor() as cursor:
        cursor.execute(_CHAIN, {"id": response_id, "owner": owner_id, "most": MAX_CHAIN})
        rows: list[tuple[str, str, str]] = cursor.fetchall()
    if not rows:
        raise previous_not_found(response_id, requested_id)
    if rows[0][2] in StoredResponse.OPEN:
        raise not_ended(response_id)
    missing = rows[-1][1]
    if missing:
        raise chain_too_long(MAX_CHAIN) if len(rows) >= MAX_CHAIN else previous_not_found(missing, requested_id)
    return [row[0] for row in rows]


def conversation_items(
    conversation_id: str, owner_id: int | None, item_id: str | None = None, *, param: str = "conversation_id"
) -> list[Item]:
    """Return all items, oldest first, or the one with that id. Raises MillmError 404 that names ``param``."""
    items = find_conversation(conversation_id, owner_id, param=param).items.all()
    if item_id is not None:
        items = items.filter(item_id=item_id) if is_storable(item_id) else items.none()
    return [item.body for item in items]


def delete_item(*, conversation: Conversation, item_id: str) -> int:
    """Delete an item and return how many were deleted: one or none."""
    count, _ = conversation.items.filter(item_id=item_id).delete() if is_storable(item_id) else (0, {})
    return count


def referred_items(item_ids: Iterable[str], owner_id: int | None) -> dict[str, Item]:
    """Return stored items by id; missing ones are left out."""
    storable_ids = [item_id for item_id in item_ids if is_storable(item_id)]
    rows = StoredItem.objects.filter(item_id__in=storable_ids, owner_id=owner_id).order_by("pk")
    return {row.item_id: row.body for row in rows}


@transaction.atomic
def keep_turn(*, turn: Turn) -> None:
    """Save a finished response if requested, and append its items to its conversation."""
    if turn.body["store"]:
        save_response(turn=turn)
    join_conversation(turn=turn)


@transaction.atomic
def save_response(*, turn: Turn, **fields: Any) -> StoredResponse:
    """Save a new response with its items; ``fields`` are those of a background response."""
    body, reference = turn.body, turn.body["conversation"]
    conversation = Conversation.objects.filter(pk=reference["id"]).first() if reference else None
    row = StoredResponse.objects.create(
        id=body["id"],
        owner_id=turn.owner_id,
        model=body["model"],
        status=body["status"],
        previous_response_id=body["previous_response_id"] or "",
        conversation=conversation,
        body=_without_output(body),
        **fields,
    )
    _add_items(turn.input, row, is_output=False)
    _add_items(body["output"], row, is_output=True)
    return row


@transaction.atomic
def end_response(*, turn: Turn, events: Sequence[Event] = ()) -> bool:
    """Save the end of a background response with its last events; False if it had ended (cancelled)."""
    row = lock_open(turn.body["id"])
    if row is None:
        return False
    row.status = turn.body["status"]
    row.body = _without_output(turn.body)
    row.order = {}
    row.save(update_fields=("status", "body", "order"))
    _add_items(turn.body["output"], row, is_output=True)
    add_events(row=row, events=events)
    join_conversation(turn=turn)
    queue_webhook(row)
    return True


def queue_webhook(row: StoredResponse) -> None:
    """Queue the event of a background response that has ended, in the transaction that ends it."""
    queue_events([WebhookEvent(EventType(f"response.{row.status}"), {"id": row.pk}, row.owner_id)])


def lock_open(response_id: str) -> StoredResponse | None:
    """Lock the row of a response that has not ended, until the transaction ends."""
    rows = StoredResponse.objects.select_for_update(of=("self",))
    return rows.filter(pk=response_id, status__in=StoredResponse.OPEN).first()


@transaction.atomic
def join_conversation(*, turn: Turn) -> None:
    """Append a turn's items to its conversation, if that still exists."""
    reference = turn.body["conversation"]
    if reference is None or turn.body["status"] not in ANSWERED:
        return
    rows = Conversation.objects.select_for_update(of=("self",))
    conversation = rows.filter(pk=reference["id"], owner_id=turn.owner_id).first()
    if conversation is not None:
        append_items(conversation=conversation, items=[*turn.input, *turn.body["output"]])


@transaction.atomic
def append_items(*, conversation: Conversation, items: Sequence[Item]) -> None:
    """Append items to the conversation; items that are already in it stay where they are."""
    rows = [StoredItem(conversation=conversation, **_columns(item, conversation.owner_id)) for item in items]
    StoredItem.objects.bulk_create(rows, ignore_conflicts=True)


@transaction.atomic
def create_conversation(
    *, conversation_id: str, owner_id: int | None, metadata: dict[str, str], items: Sequence[Item]
) -> Conversation:
    conversation = Conversation.objects.create(id=conversation_id, owner_id=owner_id, metadata=clean_json(metadata))
    append_items(conversation=conversation, items=items)
    return conversation


@transaction.atomic
def add_events(*, row: StoredResponse, events: Sequence[Event]) -> None:
    if events:
        first, last = (events[place]["sequence_number"] for place in (0, -1))
        batch = StoredEvents(response=row, first=first, last=last, events=[clean_json(event) for event in events])
        StoredEvents.objects.bulk_create([batch], ignore_conflicts=True)  # a retry may write them again


def events_after(response_id: str, number: int) -> list[Event]:
    """Return stored events with higher numbers."""
    rows = StoredEvents.objects.filter(response_id=response_id, last__gt=number)
    return [event for row in rows for event in row.events if event["sequence_number"] > number]


def _add_items(items: Iterable[Item], row: StoredResponse, *, is_output: bool) -> None:
    StoredItem.objects.bulk_create(
        [StoredItem(response=row, is_output=is_output, **_columns(item, row.owner_id)) for item in items]
    )


def _columns(item: Item, owner_id: int | None) -> dict[str, Any]:
    return {"item_id": item["id"], "owner_id": owner_id, "body": clean_json(item)}


def _without_output(body: ResponseBody) -> Any:
    return clean_json({key: value for key, value in body.items() if key != "output"})


BATCH = 500


def old_responses() -> QuerySet[StoredResponse]:
    """Return responses older than MILLM_RESPONSE_RETENTION_DAYS, except those in progress."""
    days: int = settings.MILLM_RESPONSE_RETENTION_DAYS
    if not days:
        return StoredResponse.objects.none()
    old = StoredResponse.objects.filter(used_at__lt=timezone.now() - timedelta(days=days))
    return old.exclude(status__in=StoredResponse.OPEN)


def prune_responses() -> int:
    """Delete old responses and return how many."""
    count, old = 0, old_responses()
    while pks := list(old.order_by("used_at").values_list("pk", flat=True)[:BATCH]):
        StoredResponse.objects.filter(pk__in=pks).delete()
        count += len(pks)
    return count
