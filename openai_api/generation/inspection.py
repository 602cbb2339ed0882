"""Inspect an existing answer token by token: what steering changed, and how active a feature was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from django.http.response import HttpResponseBase

from inference.captures import CaptureSpec, FeatureValues
from inference.client import (
    CaptureEvent,
    DivergenceEvent,
    Event,
    GenerationRequest,
    SamplingParams,
    ScoresEvent,
    Scoring,
)
from inference.runs import SequenceFailedError
from inference.steering_refs import SteeringRef
from inference.text.dialects.dialect import answer_segment_rules
from inference.text.model_text import thinking_state
from openai_api.backend import get_backend
from openai_api.generation.activations import find_loaded_sae, read_of
from openai_api.generation.run import collect_events
from openai_api.generation.sampling import check_token_ids
from openai_api.generation.stats import GenerationStats, millm_body
from openai_api.generation.target import Target, resolve_target
from openai_api.generation.token_text import finite
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.schemas.activations import CaptureFields
from openai_api.schemas.bodies import MillmBody
from openai_api.schemas.features import InspectionBody, InspectionRequest
from steering.profiles.resolver import SteeringSelection

_PAIR = "steered and not"
_TOO_MUCH = frozenset({"scoring_too_large", "context_length_exceeded", "reading_too_large"})


@dataclass
class Findings:
    """Results, filled from the engine's events; lists are indexed by the answer's tokens."""

    num_prompt: int
    num_tokens: int
    kl: list[float] | None = None
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)  # by index of the sequence

    def take(self, event: Event) -> None:
        match event:
            case DivergenceEvent():
                self.kl = [finite(value) for value in event.kl]
            case ScoresEvent():
                self.logprobs[event.index] = [finite(value) for value in event.logprobs]
            case CaptureEvent():
                for reading in event.captures:
                    self.values.update(zip(reading.places or (), reading.values[:, 0].tolist(), strict=True))

    def values_of_answer(self) -> list[float | None]:
        return [self.values.get(self.num_prompt + number) for number in range(self.num_tokens)]


async def inspect_answer(call: Call) -> HttpResponseBase:
    """Score the answer with and without steering in one batch, as if it had been generated. Raises MillmError."""
    request = call.read(InspectionRequest)
    target = await resolve_target(call, request)
    for name, ids in (("prompt_ids", request.prompt_ids), ("completion_ids", request.completion_ids)):
        check_token_ids(ids, target.model.vocab_size, param=name)
    captures = await _captures(request, target)
    requests = _requests(call, request, target, await _sides(target), captures)
    findings = Findings(len(request.prompt_ids), len(request.completion_ids))
    stats = GenerationStats([len(request.prompt_ids)], [0] * len(requests))
    await _run(call, target, requests, findings, stats)
    ours = findings.logprobs[0]
    body: InspectionBody = {
        "kl": findings.kl,
        "logprobs": ours,
        "unsteered_logprobs": findings.logprobs.get(1, ours),
        "values": findings.values_of_answer() if captures else None,
        "millm": _millm(target, stats),
    }
    return json_response(body)


async def _captures(request: InspectionRequest, target: Target) -> tuple[CaptureSpec, ...]:
    if request.feature is None:
        return ()
    sae = await find_loaded_sae(target.model, request.sae, param="sae")
    fields = CaptureFields(features=[request.feature], phase="completion", special_tokens=True)
    read = read_of(fields, sae, frozenset(), param="feature")
    assert isinstance(read.probe, FeatureValues)
    return (read,)


async def _sides(target: Target) -> list[SteeringRef | None]:
    """Return what steered and the policies that apply without it; a single side where nothing steered."""
    if target.profile is None:
        return [None]
    model = target.model
    base = await get_backend().steer(
        model.record.name, SteeringSelection(), special_token_ids=model.text.special_token_ids
    )
    return [target.profile.steering, base.steering if base else None]


def _requests(
    call: Call,
    request: InspectionRequest,
    target: Target,
    sides: Sequence[SteeringRef | None],
    captures: tuple[CaptureSpec, ...],
) -> list[GenerationRequest]:
    text = target.model.text
    thinking = thinking_state(text, request.prompt_ids)
    rules = answer_segment_rules(text.dialect, thinking, "none" if request.kind == "chat" else "marked")
    pair = _PAIR if len(sides) > 1 else ""
    return [
        GenerationRequest(
            f"{call.id}/{side}",
            target.model.record.name,
            tuple(request.prompt_ids),
            SamplingParams(max_tokens=0),
            steering,
            side,
            call.priority,
            captures=() if side else captures,
            scoring=Scoring(tuple(request.completion_ids), pair, is_reference=bool(side)),
            segment_rules=rules,
            cache_salt=call.cache_salt(target.model.record),
        )
        for side, steering in enumerate(sides)
    ]


async def _run(
    call: Call, target: Target, requests: Sequence[GenerationRequest], findings: Findings, stats: GenerationStats
) -> None:
    await call.reserve_tokens(sum(len(request.prompt_token_ids) + findings.num_tokens for request in requests))

    def note(event: Event) -> None:
        stats.note(event)
        findings.take(event)

    try:
        await collect_events(call, requests, observe=note)
    except SequenceFailedError as error:
        if error.code not in _TOO_MUCH:
            raise
        raise invalid(error.message, param="completion_ids", code=error.code) from None
    finally:
        call.outcome = stats.outcome()


def _millm(target: Target, stats: GenerationStats) -> MillmBody | None:
    if target.profile is None:
        return None
    return millm_body(target.profile, stats.receipts)
