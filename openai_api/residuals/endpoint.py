"""POST /v1/residuals: run texts through a model and return its residuals."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

import numpy as np
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase

from inference.captures import MAX_VALUES, ActivationCapture, CaptureSpec, num_values
from inference.client import CaptureEvent, Event, TokensEvent
from inference.interventions import SITE_KINDS, Site
from inference.registry.model_card import ModelCard
from openai_api.endpoints.feature_activations import plan_texts
from openai_api.generation.activations import capture_spec
from openai_api.generation.reply import collect
from openai_api.generation.run import Generation, Plan
from openai_api.generation.stats import usage_body
from openai_api.generation.target import Target, resolve_target
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.http.sse import EventSource
from openai_api.residuals.formats import CapturedInput, CapturedResiduals, json_body, npz_blocks, safetensors_blocks
from openai_api.residuals.schemas import ResidualsRequest

MAX_FILE_VALUES = 1 << 25  # 128 MiB
MAX_BASE64_VALUES = 1 << 23
MAX_FLOAT_VALUES = 1 << 20
TOO_LARGE = "reading_too_large"


async def read_residuals(call: Call) -> HttpResponseBase:
    request = call.read(ResidualsRequest)
    target = await resolve_target(call, request)
    check_sites(request, target.model)
    plan = plan_residuals(request, target, await plan_texts(request, target))
    generation = await Generation.start(call, target, plan)
    log = ResidualLog(plan)
    await collect(generation, log, log.add)
    found = CapturedResiduals(
        model=target.model.record.name,
        stage=request.stage or "post",
        pooling=request.pooling or "none",
        sites=tuple(field.place for field in request.sites),
        inputs=log.inputs(target.model, has_text=bool(request.max_tokens)),
        usage=usage_body(generation.stats.usage),
        millm=generation.millm,
    )
    if request.response_format in {None, "json"}:
        is_base64 = request.encoding_format == "base64"
        return await asyncio.to_thread(lambda: json_response(json_body(found, is_base64=is_base64)))
    blocks = safetensors_blocks(found) if request.response_format == "safetensors" else npz_blocks(found)
    return file_response(call, blocks)


def check_sites(request: ResidualsRequest, model: ModelCard) -> None:
    """Raise MillmError 400 for a site that the model does not have."""
    num_layers = 1 + max((site.layer for site in model.sites), default=-1)
    for number, field in enumerate(request.sites):
        if field.place in model.sites:
            continue
        if field.layer >= num_layers:
            message = f"`sites[{number}].layer` must be 0 to {num_layers - 1} for this model, got {field.layer}."
            raise invalid(message, param=f"sites[{number}].layer")
        known = ", ".join(kind for kind in SITE_KINDS if Site(field.layer, kind) in model.sites)
        message = f"`sites[{number}].site`: the model has no `{field.site}` at layer {field.layer}. Available: {known}."
        raise invalid(message, param=f"sites[{number}].site")


def plan_residuals(request: ResidualsRequest, target: Target, plan: Plan) -> Plan:
    """Add the captures to the plan. Raises MillmError 400 if they are too many, or select nothing to pool."""
    special, pooling = target.model.text.special_token_ids, request.pooling or "none"
    specs = tuple(capture_spec(request, field.place, special, pooling=pooling) for field in request.sites)
    check_size(request, target.model, plan, specs)
    if pooling != "none" and not request.max_tokens:
        for number, ids in enumerate(plan.prompts):
            if not selected_places(specs[0], ids, len(ids)):
                param = "messages" if request.input is None else f"input[{number}]"
                message = f"`{param}` has no tokens to pool; see `ranges`, `phase` and `special_tokens`."
                raise invalid(message, param=param)
    return dataclasses.replace(plan, captures=[specs] * len(plan.prompts))


def check_size(request: ResidualsRequest, model: ModelCard, plan: Plan, specs: Sequence[CaptureSpec]) -> None:
    total = 0
    for ids, params in zip(plan.prompts, plan.params, strict=True):
        num_tokens = min(len(ids) + params.max_tokens, model.max_model_len)
        of_input = sum(num_values((spec,), model.sites[spec.site], len(ids), num_tokens) for spec in specs)
        if of_input > MAX_VALUES:
            message = f"One input could have {of_input} values; the limit is {MAX_VALUES}. Read fewer sites or tokens."
            raise invalid(message, param="sites", code=TOO_LARGE)
        total += of_input
    limit = max_values(request)
    if total > limit:
        message = (
            f"The answer could have {total} values; the limit for this format is {limit}. Send fewer inputs, sites or "
            "tokens at once, pool them, or use `response_format` `safetensors`."
        )
        raise invalid(message, param="sites", code=TOO_LARGE)


def max_values(request: ResidualsRequest) -> int:
    if request.response_format not in {None, "json"}:
        return MAX_FILE_VALUES
    return MAX_BASE64_VALUES if request.encoding_format == "base64" else MAX_FLOAT_VALUES


def selected_places(spec: CaptureSpec, ids: Sequence[int], num_prompt: int) -> list[int]:
    places = spec.places(0, len(ids), num_prompt)
    return [place for place in places if ids[place] not in spec.skip_token_ids]


class ResidualLog:
    """Collects the captures of the inputs. As chunks, they are captures with the number of their input."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._captures: dict[int, list[ActivationCapture]] = defaultdict(list)
        self._generated: dict[int, list[int]] = defaultdict(list)
        self._texts: dict[int, list[str]] = defaultdict(list)

    def start(self) -> Iterator[tuple[int, ActivationCapture]]:
        return iter(())

    def on_event(self, event: Event) -> Iterator[tuple[int, ActivationCapture]]:
        if isinstance(event, TokensEvent):
            self._generated[event.index].extend(event.token_ids)
            self._texts[event.index].append(event.text)
        elif isinstance(event, CaptureEvent):
            own = len(self._plan.captures_of(event.index))
            yield from ((event.index, capture) for capture in event.captures if capture.number < own)

    def finish(self) -> Iterator[tuple[int, ActivationCapture]]:
        return iter(())

    def add(self, found: tuple[int, ActivationCapture]) -> None:
        index, capture = found
        self._captures[index].append(capture)

    def inputs(self, model: ModelCard, *, has_text: bool) -> tuple[CapturedInput, ...]:
        """Return what was captured, for each input in order."""
        return tuple(self._input(number, model, has_text=has_text) for number in range(len(self._plan.prompts)))

    def _input(self, number: int, model: ModelCard, *, has_text: bool) -> CapturedInput:
        ids = [*self._plan.prompts[number], *self._generated[number]]
        specs, captures = self._plan.captures_of(number), self._captures.pop(number, [])
        of_spec = [[capture for capture in captures if capture.number == place] for place in range(len(specs))]
        values = [
            _joined([capture.values for capture in found], spec, model.sites[spec.site])
            for spec, found in zip(specs, of_spec, strict=True)
        ]
        positions = self._positions(specs[0], of_spec[0], ids, len(self._plan.prompts[number]))
        text = "".join(self._texts[number]) if has_text else None
        return CapturedInput(tuple(ids), tuple(positions), text, tuple(values))

    @staticmethod
    def _positions(
        spec: CaptureSpec, captures: Iterable[ActivationCapture], ids: Sequence[int], num_prompt: int
    ) -> list[int]:
        """Return the places of the rows, or those that were pooled: the last token of an answer is never read."""
        if spec.pooling == "none":
            return [place for capture in captures for place in capture.places or ()]
        num_pooled = sum(capture.num_tokens for capture in captures)
        pooled = selected_places(spec, ids, num_prompt)[:num_pooled]
        return pooled[-1:] if spec.pooling == "last" else pooled


def _joined(parts: list[np.ndarray], spec: CaptureSpec, width: int) -> np.ndarray:
    """Return ``[tokens, width]``, or ``[width]`` if pooled; ``[0]`` if no token was read."""
    if spec.pooling != "none":
        return parts[0][0] if parts else np.zeros(0, np.float32)
    return np.concatenate(parts) if parts else np.zeros((0, width), np.float32)


def file_response(call: Call, blocks: Iterator[bytes]) -> HttpResponseBase:
    """Send the blocks as the client reads. The call ends with them."""
    is_complete = False

    async def sending() -> AsyncGenerator[bytes, None]:
        nonlocal is_complete
        while (block := await asyncio.to_thread(next, blocks, None)) is not None:
            yield block
        is_complete = True

    def close() -> None:
        if not is_complete:
            call.leave()
        call.close()

    return StreamingHttpResponse(EventSource(sending(), close), content_type="application/octet-stream")
