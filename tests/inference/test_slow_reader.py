"""Through the real engine, turn by turn: one who does not read costs the others not a single step."""

from __future__ import annotations

import asyncio

from inference.client import FinishedEvent, GenerationRequest, LocalEngineClient, SamplingParams, TokensEvent
from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model


async def submit(client, num_tokens, count=1):
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    return await client.submit(
        [GenerationRequest("r", "tiny", (5, 6, 7), params, index=index) for index in range(count)]
    )


async def gaps(loaded, *, num_stuck):
    """Turns of the engine between two events of a reader, beside streams that nobody reads; and what it read."""
    client = LocalEngineClient(lambda publish: EngineLoop(EngineConfig(), publish))
    loop = client.engine
    loop.accept_requests()
    attached = loop.attach(loaded)
    loop.turn()
    attached.result(0)
    stuck = [await submit(client, 200) for _ in range(num_stuck)]
    stream = await submit(client, 60)
    reader = asyncio.create_task(anext(stream))
    turns, token_ids, between = 0, [], []
    while True:
        loop.turn()
        loop.check_integrity()
        turns += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the delivery, then the reader
        while reader.done():
            event = reader.result()
            if isinstance(event, FinishedEvent):
                for unread in stuck:
                    unread.close()
                loop.turn()
                assert loop.stats().running == 0
                return between, token_ids
            assert isinstance(event, TokensEvent)
            between.append(turns)
            token_ids.extend(event.token_ids)
            turns = 0
            reader = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)


async def test_neighbours_of_readers_that_do_not_read_get_a_token_at_every_step(model_dir):
    loaded = load_model(ModelSpec("tiny", model_dir, dtype="float32", device="cpu"))
    alone, tokens_alone = await gaps(loaded, num_stuck=0)
    beside, tokens_beside = await gaps(loaded, num_stuck=8)

    assert beside == alone == [1] * 60
    assert tokens_beside == tokens_alone
