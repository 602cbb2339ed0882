"""POST /v1/decisions: questions answered by the probabilities of labels, without generating text."""

from __future__ import annotations

import asyncio
import json

from django.http.response import HttpResponseBase

from inference.client import ScoresEvent
from openai_api.backend import get_backend
from openai_api.call import Call
from openai_api.decisions.answers import answer_body, shares
from openai_api.decisions.bodies import DecisionBody
from openai_api.decisions.label_plan import LabelPlan
from openai_api.decisions.prompts import label_ids, question_prompt
from openai_api.decisions.request import DecisionRequest
from openai_api.endpoint import json_response
from openai_api.errors import timed_out
from openai_api.responses.response_body import usage_body
from openai_api.services.generation import Generation
from openai_api.services.target import Target, resolve_target


async def create_decision(call: Call) -> HttpResponseBase:
    wanted = call.read(DecisionRequest)
    target = await resolve_target(call, wanted)
    generation = Generation(call, target, await plan_decision(call, wanted, target))
    try:
        logprobs = await label_logprobs(generation)
    finally:
        generation.close()
    body: DecisionBody = {
        "model": target.model.record.name,
        "answers": [
            answer_body(question, shares(values)) for question, values in zip(wanted.questions, logprobs, strict=True)
        ],
        "usage": usage_body(generation.tally.usage, reasoning_tokens=0),
    }
    if generation.millm is not None:
        body["millm"] = generation.millm
    call.entry.completion = json.dumps(body["answers"], ensure_ascii=False)
    return json_response(body)


async def plan_decision(call: Call, wanted: DecisionRequest, target: Target) -> LabelPlan:
    """Raises ApiError 400, and 504 where so many long prompts take longer than a request may."""
    prompts, labels = list[list[int]](), list[list[list[int]]]()
    try:
        async with asyncio.timeout_at(call.deadline):
            for place, question in enumerate(wanted.questions):
                prompts.append(await question_prompt(target, wanted, question))
                labels.append(label_ids(target, prompts[-1], question, f"questions[{place}]"))
    except TimeoutError:
        raise timed_out(call.timeout_s, call.timeout_setting) from None
    return LabelPlan(prompts, labels)


async def label_logprobs(generation: Generation) -> list[list[float]]:
    """For each question the log-probabilities of its whole labels: the sums of their tokens'."""
    prompts = generation.tally.prompt_of_sequence
    found: list[list[float]] = [[] for _ in range(max(prompts) + 1)]
    scores: dict[int, float] = {}
    while not generation.is_complete:
        event = await generation.next_event(get_backend().ping_s)
        if isinstance(event, ScoresEvent):
            scores[event.index] = sum(event.logprobs)
    for number, prompt in enumerate(prompts):
        found[prompt].append(scores[number])
    return found
