"""POST /v1/features/activations: an SAE's activations on texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from django.http.response import HttpResponseBase

from inference.client import CaptureEvent, Event, SamplingParams, TokensEvent
from openai_api.backend import get_backend
from openai_api.endpoints.completions import encode_prompts
from openai_api.generation.activations import ActivationLog, plan_captures
from openai_api.generation.answer import raw_segment_rules
from openai_api.generation.directions import DirectionLog, read_directions, with_directions
from openai_api.generation.prompt import prompt_ids
from openai_api.generation.reply import collect
from openai_api.generation.run import Generation, Plan
from openai_api.generation.sampling import completion_budget
from openai_api.generation.stats import usage_body
from openai_api.generation.target import Target, resolve_target
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.schemas.bodies import TokenActivationsBody
from openai_api.schemas.features import (
    CapturedTextsRequest,
    FeatureActivationsBody,
    FeatureActivationsRequest,
    InputActivationsBody,
    TokenFeaturesBody,
)
from steering.sae_registry.loaded_sae import LoadedSAE


async def read_activations(call: Call) -> HttpResponseBase:
    request = call.read(FeatureActivationsRequest)
    target = await resolve_target(call, request)
    plan = await plan_texts(request, target)
    directions = await read_directions(call, target, request.directions or ())
    sae: LoadedSAE | None = None
    if not directions or request.model_fields_set & {"sae", "features", "top_k"}:
        reading = await plan_captures(target, plan, request, param="")
        plan, sae = reading.plan, reading.sae
    log: DirectionLog | None = None
    if directions:
        plan, log = with_directions(plan, directions, request, target.model.text.special_token_ids)
    generation = await Generation.start(call, target, plan)
    found = Found(ActivationLog(target.model.text, plan), log)
    await collect(generation, found, found.add)
    labels = {} if sae is None else await get_backend().features().labels(sae.pk, found.features)
    body: FeatureActivationsBody = {
        "object": "list",
        "model": target.model.record.name,
        "sae": None if sae is None else sae.name,
        "layer": None if sae is None else sae.site.layer,
        "site": None if sae is None else sae.site.kind,
        "stage": request.stage or "post",
        "data": [found.body(index, labels, has_text=bool(request.max_tokens)) for index in range(len(plan.prompts))],
        "usage": usage_body(generation.stats.usage),
    }
    if directions:
        body["directions"] = [{"name": one.name, "layer": one.site.layer, "site": one.site.kind} for one in directions]
    if generation.millm is not None:
        body["millm"] = generation.millm
    return json_response(body)


async def plan_texts(request: CapturedTextsRequest, target: Target) -> Plan:
    """Plan each text once, with a greedy continuation if one was requested."""
    prompts: Sequence[Sequence[int]]
    if request.input is not None:
        prompts = await encode_prompts(target.model, request.input, param="input")
    else:
        prompts = [await prompt_ids(target.model.text, request.chat())]
    param = "input" if request.input is not None else "messages"
    budgets = [completion_budget(request.max_tokens or 0, len(ids), target.model, param=param) for ids in prompts]
    params = [SamplingParams(max_tokens=budget, temperature=0.0) for budget in budgets]
    return Plan(prompts, params, 1, segment_rules=raw_segment_rules(target, prompts))


class Found:
    """The events' content, by text. Its chunks are what was read at one token."""

    def __init__(self, log: ActivationLog, directions: DirectionLog | None = None) -> None:
        self._log = log
        self._directions = directions
        self._tokens: dict[int, list[TokenActivationsBody]] = defaultdict(list)
        self._texts: dict[int, list[str]] = defaultdict(list)

    def start(self) -> Iterator[TokenActivationsBody]:
        return iter(())

    def on_event(self, event: Event) -> Iterator[TokenActivationsBody]:
        if isinstance(event, TokensEvent):
            self._texts[event.index].append(event.text)
        if self._directions is not None and isinstance(event, CaptureEvent):
            self._directions.note(event)
        return iter(self._log.take(event))

    def finish(self) -> Iterator[TokenActivationsBody]:
        return iter(())

    def add(self, token: TokenActivationsBody) -> None:
        self._tokens[token["index"]].append(token)

    @property
    def features(self) -> set[int]:
        found = (token for tokens in self._tokens.values() for token in tokens)
        return {feature["index"] for token in found for feature in token["features"]}

    def body(self, index: int, labels: dict[int, str], *, has_text: bool) -> InputActivationsBody:
        return {
            "index": index,
            "tokens": [self._told(token, labels) for token in self._tokens[index]],
            "completion": "".join(self._texts[index]) if has_text else None,
        }

    def _told(self, token: TokenActivationsBody, labels: dict[int, str]) -> TokenFeaturesBody:
        body = _labelled(token, labels)
        if self._directions is not None:
            body["directions"] = self._directions.at(token["index"], token["place"])
        return body


def _labelled(token: TokenActivationsBody, labels: dict[int, str]) -> TokenFeaturesBody:
    return {
        "place": token["place"],
        "phase": token["phase"],
        "id": token["id"],
        "token": token["token"],
        "features": [{**feature, "label": labels.get(feature["index"])} for feature in token["features"]],
    }
