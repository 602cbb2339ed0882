"""A logged request again: with its own version and seed, or with another profile. The log gets no row of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inference.background import run_in_background
from inference.client import Event, FailedEvent, FinishedEvent, GenerationRequest, TokensEvent
from inference.registry import ReadyModel
from openai_api.backend import get_backend
from openai_api.errors import ApiError
from openai_api.models import RequestLog
from openai_api.request_log.metadata import TOKENS
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.completions import CompletionRequest
from openai_api.services.chat import plan_chat
from openai_api.services.completions import encode_prompts, params_for
from openai_api.services.generation import Plan
from openai_api.services.grammar import constrained
from openai_api.services.raw_parts import raw_parts
from openai_api.services.replays import AS_LOGGED, CHAT, NO_PROFILE, ReplayError, check_replayable
from openai_api.services.target import Target, ready_model
from steering.errors import SteeringError
from steering.profiles.inline_edits import INLINE
from steering.profiles.resolver import ResolvedProfile, SteeringSelection, check_scopes

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

AT_ONCE = 8
_NOT_OF_THE_CLIENT = ("draft", "dropped", "ignored", TOKENS)


@dataclass(frozen=True, slots=True)
class Replay:
    """What a row says of its request. ``seeded``: it named a seed, so that the same must come out."""

    row: RequestLog
    body: dict[str, Any]
    wish: SteeringSelection

    @property
    def seeded(self) -> bool:
        return self.body.get("seed") is not None or self.body.get("temperature") == 0


def read_row(row: RequestLog, profile: str = AS_LOGGED) -> Replay:
    """ReplayError where the log does not hold enough of the request."""
    check_replayable(row)
    body = {name: value for name, value in row.parameters.items() if name not in _NOT_OF_THE_CLIENT}
    inline, intensity = body.pop("steering", None), body.pop("steering_intensity", 1.0)
    wish = SteeringSelection(_reference(row, profile), intensity, inline if _is_inline(row, profile) else None)
    body |= {"model": row.model, "messages" if row.endpoint == CHAT else "prompt": _prompt(row)}
    return Replay(row, body, wish)


def run_replay(job: RunningJob) -> dict[str, Any]:
    row = RequestLog.objects.filter(pk=job.params["request"]).first()
    if row is None:
        raise ReplayError(f"The request {job.params['request']} is not in the log any more.")
    replay = read_row(row, job.params["profile"])
    job.progress(0, 1, f"replaying {row.pk}")
    try:
        result = asyncio.run(_run(replay))
    except ApiError as error:
        raise ReplayError(error.message) from error
    except SteeringError as error:
        raise ReplayError(error.message) from error
    return result


async def _run(replay: Replay) -> dict[str, Any]:
    record = get_backend().registry().find(replay.row.model)
    model = await ready_model(record, "generation")
    profile = await get_backend().steer(record.name, replay.wish, special_token_ids=model.text.special_token_ids)
    if profile is not None:
        check_scopes(profile.intervention, model.text.dialect)
    plan = await _plan(replay, Target(model, profile))
    answers = await _answers(plan, model, profile)
    original = _texts(replay.row.completion)
    return {
        "request": replay.row.pk,
        "profile": profile.label if profile else "",
        "policies": list(profile.policies) if profile else [],
        "same_steering": (profile.fingerprint if profile else "") == replay.row.fingerprint,
        "seeded": replay.seeded,
        "same_text": [text for text, _ in answers] == original,
        "texts": [text for text, _ in answers],
        "finish_reasons": [reason for _, reason in answers],
        "original": original,
    }


async def _plan(replay: Replay, target: Target) -> Plan:
    """By the same steps as the request's own."""
    if replay.row.endpoint == CHAT:
        return (await plan_chat(ChatRequest.parse(replay.body), target))[0]
    wanted = CompletionRequest.parse(replay.body)
    prompts = await encode_prompts(target.model, wanted.prompt)
    params = [params_for(wanted, target.model, len(ids)) for ids in prompts]
    params = await constrained(wanted.grammar_wish, target.model, params)
    return Plan(prompts, params, wanted.num_candidates, parts=raw_parts(target, prompts))


async def _answers(plan: Plan, model: ReadyModel, profile: ResolvedProfile | None) -> list[tuple[str, str]]:
    requests = [
        GenerationRequest(
            f"replay/{number}",
            model.record.name,
            tuple(plan.prompts[prompt]),
            plan.params[prompt],
            profile.intervention if profile else None,
            number,
            parts=plan.parts_of(prompt),
        )
        for number, prompt in enumerate(plan.prompt_of_sequence)
    ]
    found: dict[int, tuple[Event, ...]] = {}
    for first in range(0, len(requests), AT_ONCE):
        found |= await run_in_background(get_backend().client(), requests[first : first + AT_ONCE])
    return [_answer(found[request.index]) for request in requests]


def _answer(events: Sequence[Event]) -> tuple[str, str]:
    last = events[-1]
    if isinstance(last, FailedEvent):
        raise ReplayError(last.message)
    assert isinstance(last, FinishedEvent)
    if last.reason == "cancelled":
        raise ReplayError("The engine cancelled the request.")
    return "".join(event.text for event in events if isinstance(event, TokensEvent)), last.reason


def _is_inline(row: RequestLog, profile: str) -> bool:
    return profile == AS_LOGGED and row.profile == INLINE


def _reference(row: RequestLog, profile: str) -> str | None:
    if profile == NO_PROFILE or _is_inline(row, profile):
        return None
    return (row.profile if profile == AS_LOGGED else profile) or None


def _prompt(row: RequestLog) -> Any:
    """Texts are logged as they are, everything else as JSON."""
    try:
        value = json.loads(row.prompt) if row.prompt.startswith("[") else row.prompt
    except ValueError:
        return row.prompt
    return value


def _texts(completion: str) -> list[str]:
    """Several choices are logged as a JSON list."""
    try:
        value = json.loads(completion) if completion.startswith("[") else None
    except ValueError:
        value = None
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else [completion]
