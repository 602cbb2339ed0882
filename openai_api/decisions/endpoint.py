"""POST /v1/decisions: questions answered by the probabilities of labels, without generating text."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace

from django.http.response import HttpResponseBase

from inference.client import ScoresEvent
from openai_api.backend import get_backend
from openai_api.decisions.prompts import LabelPlan, label_ids, question_prompt
from openai_api.decisions.schemas import (
    AnswerBody,
    AnyQuestion,
    ChoiceQuestion,
    DecisionBody,
    DecisionRequest,
    PredicateQuestion,
)
from openai_api.generation.run import Generation
from openai_api.generation.target import Target, resolve_target
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import timed_out
from openai_api.responses.response_body import usage_body


def shares(logprobs: Sequence[float]) -> list[float]:
    """Return the softmax: how likely each label is, given that it is one of them."""
    highest = max(logprobs)
    weights = [math.exp(value - highest) for value in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def answer_body(question: AnyQuestion, probabilities: Sequence[float]) -> AnswerBody:
    """Build the answer. ``probabilities`` follow the question's labels; of equal ones the first is chosen."""
    if isinstance(question, PredicateQuestion):
        return {"type": "predicate", "name": question.name, "probability": probabilities[0]}
    best = probabilities.index(max(probabilities))
    if isinstance(question, ChoiceQuestion):
        return {
            "type": "choice",
            "name": question.name,
            "choice": question.choices[best].value,
            "confidence": probabilities[best],
            "probabilities": [
                {"value": option.value, "probability": share}
                for option, share in zip(question.choices, probabilities, strict=True)
            ],
        }
    return {
        "type": "score",
        "name": question.name,
        "score": math.fsum(place * share for place, share in enumerate(probabilities)),
        "confidence": probabilities[best],
        "probabilities": [
            {"label": level.label, "value": place, "probability": share}
            for place, (level, share) in enumerate(zip(question.levels, probabilities, strict=True))
        ],
    }


async def create_decision(call: Call) -> HttpResponseBase:
    request = call.read(DecisionRequest)
    target = await resolve_target(call, request)
    generation = await Generation.start(call, target, await plan_decision(call, request, target))
    try:
        logprobs = await label_logprobs(generation)
    finally:
        generation.close()
    body: DecisionBody = {
        "model": target.model.record.name,
        "answers": [
            answer_body(question, shares(values)) for question, values in zip(request.questions, logprobs, strict=True)
        ],
        "usage": usage_body(generation.stats.usage, reasoning_tokens=0),
    }
    if generation.millm is not None:
        body["millm"] = generation.millm
    call.outcome = replace(call.outcome, completion=json.dumps(body["answers"], ensure_ascii=False))
    return json_response(body)


async def plan_decision(call: Call, request: DecisionRequest, target: Target) -> LabelPlan:
    """Tokenize the questions and their labels. Raises MillmError 400, and 504 past the request's deadline."""
    prompts, labels = list[list[int]](), list[list[list[int]]]()
    try:
        async with asyncio.timeout_at(call.deadline):
            for place, question in enumerate(request.questions):
                prompts.append(await question_prompt(target, request, question))
                labels.append(label_ids(target, prompts[-1], question, f"questions[{place}]"))
    except TimeoutError:
        raise timed_out(call.timeout_s, call.timeout_setting) from None
    return LabelPlan(prompts, labels)


async def label_logprobs(generation: Generation) -> list[list[float]]:
    """Return for each question the log-probabilities of its labels, summed over each label's tokens."""
    prompts = generation.stats.prompt_of_sequence
    found: list[list[float]] = [[] for _ in range(max(prompts) + 1)]
    scores: dict[int, float] = {}
    while not generation.is_complete:
        event = await generation.next_event(get_backend().ping_s)
        if isinstance(event, ScoresEvent):
            scores[event.index] = sum(event.logprobs)
    for number, prompt in enumerate(prompts):
        found[prompt].append(scores[number])
    return found
