"""A model of this process' engine, whose residuals are read beside the traffic and behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import numpy as np

from inference.captures import Read
from inference.client import (
    EngineClient,
    EngineError,
    EventStream,
    FailedEvent,
    GenerationRequest,
    QueueFullError,
    ReadingEvent,
    SamplingParams,
    get_client,
)
from inference.interventions import Site
from inference.models import LanguageModel
from inference.prompt_readings import read_prompts
from inference.registry.ready_model import ReadyModel
from inference.registry.registry import get_registry
from steering.model_shape import read_model_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from inference.text.model_text import ModelText

_MAX_WAIT_S = 5.0


async def submit_when_there_is_room(submit: Callable[[], EventStream]) -> EventStream:
    """Behind those who were there before, again and again; EngineDownError when the engine ends meanwhile."""
    while True:
        try:
            return submit()
        except QueueFullError as error:
            await asyncio.sleep(min(error.retry_after_s, _MAX_WAIT_S))


_PRIORITY = -100  # under MILLM_SCHEDULER_POLICY=priority whoever waits for an answer goes first
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


class EngineResidualReader:
    """Synchronous, for a thread without an event loop. One text at a time, so that it takes one place in the batch."""

    def __init__(self, name: str, text: ModelText, num_layers: int, runner: asyncio.Runner) -> None:
        self.text = text
        self.num_layers = num_layers
        self._name = name
        self._runner = runner

    def read(self, token_ids: Sequence[int], sites: Sequence[Site]) -> dict[Site, Tensor]:
        """``[tokens, d]`` float32 for each site. EngineError."""
        import torch

        rows = self._runner.run(self._read(tuple(token_ids), sites))
        return {site: torch.from_numpy(values) for site, values in rows.items()}

    async def _read(self, token_ids: tuple[int, ...], sites: Sequence[Site]) -> dict[Site, NDArray[np.float32]]:
        await get_registry().ready(self._name)  # it may have been unloaded meanwhile
        reads = tuple(Read(site=site, stage="pre", phase="prompt") for site in sites)
        request = GenerationRequest(
            request_id=f"read-{uuid4().hex}",
            model=self._name,
            prompt_token_ids=token_ids,
            sampling=_ONE_TOKEN,
            priority=_PRIORITY,
            reads=reads,
        )
        parts = await _collect(await submit_when_there_is_room(lambda: get_client().submit([request])), len(sites))
        return {site: np.concatenate(values) for site, values in zip(sites, parts, strict=True)}


@contextmanager
def open_engine_reader(model: LanguageModel) -> Iterator[EngineResidualReader]:
    """The model, loaded first if need be. EngineDownError in a process without an engine, and what loading raises."""
    num_layers = read_model_shape(model).num_layers
    with asyncio.Runner() as runner:
        ready = runner.run(get_registry().ready(model.name))
        yield EngineResidualReader(model.name, ready.text, num_layers, runner)


async def _collect(stream: EventStream, num_reads: int) -> list[list[NDArray[np.float32]]]:
    """What each read brought, in the tokens' order."""
    parts: list[list[NDArray[np.float32]]] = [[] for _ in range(num_reads)]
    try:
        async for event in stream:
            if isinstance(event, FailedEvent):
                raise EngineError(event.message)
            if isinstance(event, ReadingEvent):
                for reading in event.readings:
                    parts[reading.number].append(reading.values)
    finally:
        stream.close()
    if not all(parts):
        raise EngineError("The engine ended before the texts were read.")
    return parts


@dataclass(frozen=True, slots=True, eq=False)
class PromptResiduals:
    """``sites`` has ``[tokens, d]`` for each site; special tokens are left out, and a first token that is none.

    The latter is an attention sink, whose residual is of another scale and says nothing.
    """

    sites: tuple[NDArray[np.float32], ...]


Ready = Callable[[str], Awaitable[ReadyModel]]


class PromptReader(Protocol):
    def read(self, model: str, prompts: Sequence[str], sites: Sequence[Site], *, chat: bool) -> list[PromptResiduals]:
        """For each prompt, in their order. With ``chat`` a prompt is what a user says; raw text otherwise."""


class EnginePromptReader:
    """Loads the model if need be. Blocks: for the threads of jobs. ``ready`` and ``client`` are this process' own."""

    def __init__(self, ready: Ready | None = None, client: EngineClient | None = None) -> None:
        self._ready = ready
        self._client = client

    def read(self, model: str, prompts: Sequence[str], sites: Sequence[Site], *, chat: bool) -> list[PromptResiduals]:
        return asyncio.run(self._read(model, prompts, sites, chat=chat))

    async def _read(
        self, model: str, prompts: Sequence[str], sites: Sequence[Site], *, chat: bool
    ) -> list[PromptResiduals]:
        ready = await (self._ready or get_registry().ready)(model)
        text = ready.text
        if chat:
            ids = [text.render_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
        else:
            ids = [text.encode(prompt) for prompt in prompts]
        reads = tuple(
            Read(site=site, stage="pre", phase="prompt", skip_token_ids=text.special_token_ids) for site in sites
        )
        found = await read_prompts(self._client or get_client(), model=ready.record.name, prompts=ids, reads=reads)
        starts = [0 if prompt[0] in text.special_token_ids else 1 for prompt in ids]
        return [
            PromptResiduals(tuple(one.values(number)[start:] for number in range(len(sites))))
            for one, start in zip(found, starts, strict=True)
        ]
