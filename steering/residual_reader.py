"""Residuals of prompts at sites of a model, read in the engine beside the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from inference.captures import Read
from inference.client import EngineClient, get_client
from inference.interventions import Site
from inference.prompt_readings import read_prompts
from inference.registry.ready_model import ReadyModel
from inference.registry.registry import get_registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PromptResiduals:
    """``sites`` has ``[tokens, d]`` for each site; special tokens are left out, and a first token that is none.

    The latter is an attention sink, whose residual is of another scale and says nothing.
    """

    sites: tuple[NDArray[np.float32], ...]


Ready = Callable[[str], Awaitable[ReadyModel]]


class ResidualReader(Protocol):
    def read(self, model: str, prompts: Sequence[str], sites: Sequence[Site], *, chat: bool) -> list[PromptResiduals]:
        """For each prompt, in their order. With ``chat`` a prompt is what a user says; raw text otherwise."""


class EngineResidualReader:
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
