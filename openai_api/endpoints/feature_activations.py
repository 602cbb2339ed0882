"""POST /v1/features/activations: an SAE's activations on texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from django.http.response import HttpResponseBase

from inference.client import Event, SamplingParams, TokensEvent
from openai_api.backend import get_backend
from openai_api.endpoints.completions import encode_prompts
from openai_api.generation.activations import ActivationLog, plan_captures
from openai_api.generation.answer import raw_segment_rules
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


async def read_activations(call: Call) -> HttpResponseBase:
    request = call.read(FeatureActivationsRequest)
    target = await resolve_target(call, request)
    plan = await plan_texts(request, target)
    reading = await plan_captures(target, plan, request, param="")
    generation = await Generation.start(call, target, reading.plan)
    found = Found(ActivationLog(target.model.text, reading.plan))
    await collect(generation, found, found.add)
    labels = await get_backend().features().labels(reading.sae.pk, found.features)
    body: FeatureActivationsBody = {
        "object": "list",
        "model": target.model.record.name,
        "sae": reading.sae.name,
        "layer": reading.sae.site.layer,
        "site": reading.sae.site.kind,
        "stage": request.stage or "post",
        "data": [found.body(index, labels, has_text=bool(request.max_tokens)) for index in range(len(plan.prompts))],
        "usage": usage_body(generation.stats.usage),
    }
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

    def __init__(self, log: ActivationLog) -> None:
        self._log = log
        self._tokens: dict[int, list[TokenActivationsBody]] = defaultdict(list)
        self._texts: dict[int, list[str]] = defaultdict(list)

    def start(self) -> Iterator[TokenActivationsBody]:
        return iter(())

    def on_event(self, event: Event) -> Iterator[TokenActivationsBody]:
        if isinstance(event, TokensEvent):
            self._texts[event.index].append(event.text)
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
            "tokens": [_labelled(token, labels) for token in self._tokens[index]],
            "completion": "".join(self._texts[index]) if has_text else None,
        }


def _labelled(token: TokenActivationsBody, labels: dict[int, str]) -> TokenFeaturesBody:
    return {
        "place": token["place"],
        "phase": token["phase"],
        "id": token["id"],
        "token": token["token"],
        "features": [{**feature, "label": labels.get(feature["index"])} for feature in token["features"]],
    }
