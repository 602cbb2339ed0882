"""Run a logged request again, with its own version and seed or with another profile. Replays are not logged."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User

from core.errors import MillmError
from inference.client import Event, FinishedEvent, GenerationRequest, TokensEvent
from inference.registry.model_card import ModelCard
from inference.runs import JOB_PRIORITY, Run, SequenceFailedError
from jobs.models import Job
from jobs.services import enqueue_job
from openai_api.apps import REPLAY
from openai_api.backend import get_backend
from openai_api.endpoints.chat import plan_chat
from openai_api.endpoints.completions import completion_prompts, params_for
from openai_api.generation.answer import raw_segment_rules
from openai_api.generation.run import Plan
from openai_api.generation.sampling import constrained
from openai_api.generation.target import Target, ready_model
from openai_api.http.errors import client_message
from openai_api.models import RequestLog
from openai_api.request_log.entry import TOKENS
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.completions import CompletionRequest
from openai_api.schemas.generation import HASH
from steering.profiles.inline_edits import INLINE
from steering.profiles.resolver import ResolvedProfile, SteeringSelection, check_scopes
from steering.profiles.snapshot import DRAFT

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

AS_LOGGED = ""
NO_PROFILE = "none"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class ReplayError(MillmError):
    """The request cannot be replayed; the message is a sentence for users."""


def start_replay(*, row: RequestLog, profile: str = AS_LOGGED, owner: User | None = None) -> Job:
    """Enqueue a replay. Raises ReplayError if the log lacks data of the request. ``profile`` may name another one."""
    check_replayable(row)
    if profile == AS_LOGGED and row.profile.endswith(DRAFT):
        raise ReplayError(f"{row.profile} was a preview of a draft. Choose a profile for the replay.")
    title = f"Replay {row.pk}" + (f" with {profile}" if profile else "")
    return enqueue_job(kind=REPLAY, params={"request": row.pk, "profile": profile}, owner=owner, title=title)


def check_replayable(row: RequestLog) -> None:
    """Raise ReplayError if the request cannot be replayed."""
    if row.endpoint not in (CHAT, COMPLETIONS):
        raise ReplayError(f"Requests to {row.endpoint} cannot be replayed, only those to {CHAT} and {COMPLETIONS}.")
    if not row.prompt or row.prompt.startswith("sha256:") or "dropped" in row.parameters:
        raise ReplayError("The request's text was not stored (see MILLM_LOG_CONTENT), so it cannot be replayed.")


AT_ONCE = 8
_NOT_OF_THE_CLIENT = ("draft", "dropped", "ignored", TOKENS)


@dataclass(frozen=True, slots=True)
class Replay:
    """A request as its row describes it. ``seeded``: it had a seed, so the output must be the same."""

    row: RequestLog
    body: dict[str, Any]
    selection: SteeringSelection

    @property
    def seeded(self) -> bool:
        return self.body.get("seed") is not None or self.body.get("temperature") == 0


def read_row(row: RequestLog, profile: str = AS_LOGGED, *, viewer: int | None = None) -> Replay:
    """Return the request of a row. Raises ReplayError where the log lacks data.

    ``viewer``: the user whose vector sets inline edits may name.
    """
    check_replayable(row)
    body = {name: value for name, value in row.parameters.items() if name not in _NOT_OF_THE_CLIENT}
    inline, intensity = body.pop("steering", None), body.pop("steering_intensity", 1.0)
    inline = inline if _is_inline(row, profile) else None
    if inline is not None and _lacks_vectors(inline):
        raise ReplayError("The request's vectors were too large for the log, so it cannot be replayed.")
    selection = SteeringSelection(_reference(row, profile), intensity, inline, viewer=viewer)
    body |= {"model": row.model, "messages" if row.endpoint == CHAT else "prompt": _prompt(row)}
    return Replay(row, body, selection)


MAX_COMMAND = 64 * 1024  # characters of a prompt; a shell limits the length of an argument


def curl_command(row: RequestLog, *, origin: str) -> str:
    """Return a shell command, in ASCII, that sends the request again. Raises ReplayError where the log lacks data."""
    if len(row.prompt) > MAX_COMMAND or row.profile.endswith(DRAFT):
        raise ReplayError("The prompt is too long for a command, or the request was the preview of a draft.")
    body = read_row(row).body
    body |= {name: row.parameters[name] for name in ("steering", "steering_intensity") if name in row.parameters}
    if row.profile not in ("", INLINE):
        body["profile"] = row.profile
    if row.stream:
        body["stream"] = True
    options = "-N " if row.stream else ""
    key = ' \\\n  -H "Authorization: Bearer $MILLM_API_KEY"' if row.key_prefix else ""
    return (
        f"curl {options}{shlex.quote(origin + row.endpoint)} \\\n  -H 'Content-Type: application/json'{key} \\\n"
        f"  -d {shlex.quote(json.dumps(body))}\n"
    )


def _lacks_vectors(inline: Any) -> bool:
    vectors = inline.get("vectors", ()) if isinstance(inline, dict) else ()
    return any(isinstance(one, dict) and str(one.get("values", "")).startswith(HASH) for one in vectors)


def run_replay(job: RunningJob) -> dict[str, Any]:
    row = RequestLog.objects.filter(pk=job.params["request"]).first()
    if row is None:
        raise ReplayError(f"The request {job.params['request']} is no longer in the log.")
    replay = read_row(row, job.params["profile"], viewer=job.owner_id)
    job.progress(0, 1, f"replaying {row.pk}")
    try:
        result = asyncio.run(_run(replay))
    except MillmError as error:
        raise ReplayError(client_message(error)) from error
    return result


async def _run(replay: Replay) -> dict[str, Any]:
    record = get_backend().registry().find(replay.row.model)
    model = await ready_model(record, "generation")
    profile = await get_backend().steer(record.name, replay.selection, special_token_ids=model.text.special_token_ids)
    if profile is not None:
        check_scopes(profile.steering, model.text.dialect)
    plan = await plan_replay(replay, Target(model, profile))
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


async def plan_replay(replay: Replay, target: Target) -> Plan:
    """Plan by the same steps as the original request."""
    if replay.row.endpoint == CHAT:
        return (await plan_chat(ChatRequest.parse(replay.body), target))[0]
    request = CompletionRequest.parse(replay.body)
    prompts = await completion_prompts(target.model, request)
    params = [params_for(request, target.model, len(ids)) for ids in prompts]
    params = await constrained(request.grammar_spec, target.model, params)
    return Plan(prompts, params, request.num_candidates, segment_rules=raw_segment_rules(target, prompts))


async def _answers(plan: Plan, model: ModelCard, profile: ResolvedProfile | None) -> list[tuple[str, str]]:
    requests = [
        GenerationRequest(
            f"replay/{number}",
            model.record.name,
            tuple(plan.prompts[prompt]),
            plan.params[prompt],
            profile.steering if profile else None,
            number,
            JOB_PRIORITY,
            segment_rules=plan.segment_rules_of(prompt),
        )
        for number, prompt in enumerate(plan.prompt_of_sequence)
    ]
    run = Run(get_backend().client(), requests, group_size=AT_ONCE, waits=True)
    try:
        return [_answer(events) for events in await run.collect()]
    except SequenceFailedError as error:
        raise ReplayError(str(error)) from error


def _answer(events: Sequence[Event]) -> tuple[str, str]:
    last = events[-1]
    assert isinstance(last, FinishedEvent)
    return "".join(event.text for event in events if isinstance(event, TokensEvent)), last.reason


def _is_inline(row: RequestLog, profile: str) -> bool:
    return profile == AS_LOGGED and row.profile == INLINE


def _reference(row: RequestLog, profile: str) -> str | None:
    if profile == NO_PROFILE or _is_inline(row, profile):
        return None
    return (row.profile if profile == AS_LOGGED else profile) or None


def _prompt(row: RequestLog) -> Any:
    """Return the logged prompt. Texts are logged as they are, everything else as JSON."""
    try:
        value = json.loads(row.prompt) if row.prompt.startswith("[") else row.prompt
    except ValueError:
        return row.prompt
    return value


def _texts(completion: str) -> list[str]:
    """Return the logged texts. Several choices are logged as a JSON list."""
    try:
        value = json.loads(completion) if completion.startswith("[") else None
    except ValueError:
        value = None
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else [completion]
