"""A response while it is generated: its events, and the row that it leaves."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence

from django.db import InterfaceError, OperationalError

from openai_api.database import in_database
from openai_api.errors import ApiError
from openai_api.responses.event_writer import EventWriter
from openai_api.responses.rounds import Rounds
from openai_api.responses.schemas.bodies import Event, Item
from openai_api.responses.store import Turn, keep_turn

logger = logging.getLogger(__name__)


class ResponseRun:
    """A response whose client waits for it. The caller closes the generation."""

    def __init__(self, generation: Rounds, writer: EventWriter, own_input: Sequence[Item]) -> None:
        self.generation = generation
        self.writer = writer
        self._input = own_input

    async def events(self, patience_s: float) -> AsyncGenerator[Event | None, None]:
        """All events, and None after each ``patience_s`` without one; the last one comes when the response is kept."""
        for first in self.writer.opening():
            yield first
        async for event in generated(self.generation, self.writer, patience_s):
            yield event
        await self._keep()
        yield self.writer.ended()

    async def failed(self, error: ApiError) -> Event:
        """The last event of one that failed on the way."""
        self.writer.fail(error, self.generation)
        await self._keep()
        return self.writer.ended()

    async def _keep(self) -> None:
        """Without the database the response is sent all the same, and says that it is not stored."""
        call, body = self.generation.call, self.writer.body
        if not body["store"] and body["conversation"] is None:
            return
        turn = Turn(body, self._input, call.key.owner_id if call.key else None)
        try:
            await in_database(lambda: keep_turn(turn=turn))
        except (OperationalError, InterfaceError, ApiError) as error:
            logger.warning("Response %s could not be stored: %s", body["id"], error)
            body["store"] = False


async def generated(rounds: Rounds, writer: EventWriter, patience_s: float) -> AsyncGenerator[Event | None, None]:
    """The events of the output, and None after each ``patience_s`` without one. Searches are made on the way."""
    while True:
        while not rounds.is_round_complete:
            event = await rounds.next_event(patience_s)
            if event is None:
                yield None
            else:
                for written in writer.of(event, rounds):
                    yield written
        if not writer.pending:
            rounds.is_complete = True
            return
        found = list[Item]()
        num_known = len(writer.searching.sources)
        for search in writer.pending:
            results = await rounds.find(search.queries)
            writer.searching.sources.extend(results)
            found.append(search.item("completed", results))
            for written in writer.found(search, results):
                yield written
        if writer.waits_for_client:
            rounds.is_complete = True
            for written in writer.complete(rounds):
                yield written
            return
        writer.read(await rounds.go_on(found, num_known), rounds.target.model.text)
