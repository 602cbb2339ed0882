"""Capture residuals in the engine for background jobs, beside the requests.

:class:`EngineResidualReader` runs one text at a time, for measurements of SAEs. :class:`EnginePromptReader` runs
several prompts at once, for extractions of vectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from inference.captures import CaptureSpec
from inference.client import EngineClient, GenerationRequest, PromptLogprobsEvent, SamplingParams, get_client
from inference.interventions import FeatureColumns, FeatureDecoder, FeatureRule, Intervention, ReaderEdit, Site
from inference.models import LanguageModel
from inference.prompt_captures import PromptCapture, capture_prompts
from inference.registry.model_card import ModelCard
from inference.registry.registry import get_registry
from inference.registry.splice import Reconstruction, Splice
from inference.runs import JOB_PRIORITY, Run
from inference.steering_refs import SAERef
from steering.model_shape import read_model_shape
from steering.spec.edit import SINK_FACTOR

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from inference.text.model_text import ModelText


class EngineResidualReader:
    """A blocking :class:`steering.measuring.measurement.ResidualReader` that uses the engine, for threads without an
    event loop.

    It runs one text at a time, to occupy only one place in the batch.
    """

    def __init__(self, name: str, text: ModelText, num_layers: int, runner: asyncio.Runner) -> None:
        self.text = text
        self.num_layers = num_layers
        self._name = name
        self._runner = runner

    def read(self, token_ids: Sequence[int], sites: Sequence[Site]) -> dict[Site, Tensor]:
        """Return ``[tokens, d]`` float32 for each site. Raise EngineError."""
        import torch

        rows = self._runner.run(self._read(tuple(token_ids), sites))
        return {site: torch.from_numpy(values) for site, values in rows.items()}

    async def _read(self, token_ids: tuple[int, ...], sites: Sequence[Site]) -> dict[Site, NDArray[np.float32]]:
        (found,) = await self._capture([token_ids], sites)
        return {site: found.values(number) for number, site in enumerate(sites)}

    async def _capture(self, prompts: Sequence[Sequence[int]], sites: Sequence[Site]) -> list[PromptCapture]:
        await get_registry().ready(self._name)  # the model may have been unloaded since
        captures = tuple(CaptureSpec(site=site, stage="pre", phase="prompt") for site in sites)
        return await capture_prompts(
            get_client(), model=self._name, prompts=prompts, captures=captures, priority=JOB_PRIORITY
        )

    def read_many(self, prompts: Sequence[Sequence[int]], site: Site) -> list[Tensor]:
        """Return ``[tokens, d]`` float32 for each prompt. A few prompts run at once. Raise EngineError."""
        import torch

        found = self._runner.run(self._capture(prompts, (site,)))
        return [torch.from_numpy(one.values(0)) for one in found]

    def losses(self, token_ids: Sequence[int], is_ordinary: Sequence[bool], splice: Splice | None) -> Tensor:
        """Return the cross-entropy in nats ``[tokens - 1]`` of each token but the first. Raise EngineError."""
        import torch

        return torch.tensor(self._runner.run(self._losses(tuple(token_ids), splice)))

    async def _losses(self, token_ids: tuple[int, ...], splice: Splice | None) -> list[float]:
        await get_registry().ready(self._name)
        request = GenerationRequest(
            "loss",
            self._name,
            token_ids,
            SamplingParams(max_tokens=0, prompt_logprobs=0),
            priority=JOB_PRIORITY,
            intervention=None if splice is None else _intervention(splice, self.text.special_token_ids),
        )
        (events,) = await Run(get_client(), [request], waits=True).collect()
        found = [one for event in events if isinstance(event, PromptLogprobsEvent) for one in event.logprobs]
        return [-one.logprob for one in found[1:] if one is not None]


class _Replacement:
    """A splice in the form of an SAE: value ``i`` of the change of the residual is the activation of feature ``i``.

    Satisfies :class:`inference.interventions.FeatureReader`.
    """

    def __init__(self, key: str, width: int, replace: Callable[[Tensor], Tensor]) -> None:
        self.key = key
        self.d_in = self.d_sae = width
        self._replace = replace

    def columns(self, features: Tensor) -> FeatureColumns:
        import torch

        return FeatureColumns(write=torch.eye(self.d_in)[features.cpu()])

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        return (self._replace(h) - h)[:, features]


class _UnloadedReplacement(_Replacement):
    """The replacement by an SAE's reconstruction. Satisfies :class:`inference.steering_refs.UnloadedReader`."""

    def __init__(self, key: str, width: int, sae: SAERef) -> None:
        super().__init__(key, width, _not_loaded)
        self.sae = sae

    def loaded(self, sae: FeatureDecoder) -> _Replacement:
        return _Replacement(self.key, self.d_in, Reconstruction(sae, self.sae))


def _not_loaded(h: Tensor) -> Tensor:
    raise AssertionError("the client loads the SAEs that a request names")


def _intervention(splice: Splice, special_token_ids: frozenset[int]) -> Intervention:
    """Return the splice as an intervention: each rule adds the activation of its feature once more."""
    key, replace = f"splice {uuid4()}", splice.replace
    if isinstance(replace, Reconstruction):
        reader: _Replacement = _UnloadedReplacement(key, splice.width, replace.ref)
    else:
        reader = _Replacement(key, splice.width, replace)
    edit = ReaderEdit(
        site=splice.site,
        reader=reader,
        rules=tuple(FeatureRule(feature, gain=2.0) for feature in range(splice.width)),
        special_tokens=splice.everywhere,
        sink_tokens=splice.everywhere,
        norm_limit=float("inf") if splice.everywhere else splice.norm_limit,
    )
    return Intervention(reader.key, (edit,), special_token_ids)


@contextmanager
def open_engine_reader(model: LanguageModel) -> Iterator[EngineResidualReader]:
    """Yield a reader of the model, loading it if necessary.

    Raise EngineDownError in a process without an engine, and errors of loading.
    """
    num_layers = read_model_shape(model).num_layers
    with asyncio.Runner() as runner:
        ready = runner.run(get_registry().ready(model.name))
        yield EngineResidualReader(model.name, ready.text, num_layers, runner)


@dataclass(frozen=True, slots=True, eq=False)
class PromptResiduals:
    """Residuals ``[tokens, d]`` of one prompt for each site.

    Special tokens are left out, and so is an ordinary first token: as an attention sink, its residual has another
    scale.
    """

    sites: tuple[NDArray[np.float32], ...]


def ordinary_tokens(values: NDArray[np.float32]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which tokens of residuals ``[tokens, d]`` are no attention sinks, and the norms of these tokens."""
    import numpy as np

    norms = np.linalg.norm(values.astype(np.float64), axis=1)
    is_ordinary = norms <= SINK_FACTOR * np.median(norms)
    return is_ordinary, norms[is_ordinary]


Ready = Callable[[str], Awaitable[ModelCard]]


class PromptReader(Protocol):
    def read(self, model: str, prompts: Sequence[str], sites: Sequence[Site], *, chat: bool) -> list[PromptResiduals]:
        """Return the residuals of each prompt. With ``chat``, prompts are user messages, otherwise raw text."""


class EnginePromptReader:
    """A blocking reader of several prompts at once, which loads the model if necessary.

    ``ready`` and ``client`` default to those of this process.
    """

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
        captures = tuple(
            CaptureSpec(site=site, stage="pre", phase="prompt", skip_token_ids=text.special_token_ids) for site in sites
        )
        found = await capture_prompts(
            self._client or get_client(), model=ready.record.name, prompts=ids, captures=captures
        )
        starts = [0 if prompt[0] in text.special_token_ids else 1 for prompt in ids]
        return [
            PromptResiduals(tuple(one.values(number)[start:] for number in range(len(sites))))
            for one, start in zip(found, starts, strict=True)
        ]
