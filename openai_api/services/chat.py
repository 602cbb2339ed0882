"""Chat completions: from the request to the response."""

from __future__ import annotations

import dataclasses

from django.http.response import HttpResponseBase

from openai_api.call import Call
from openai_api.endpoint import json_response
from openai_api.schemas.chat import ChatRequest
from openai_api.services.chat_chunks import ChatChunks, ChatFold
from openai_api.services.generation import Generation, Plan
from openai_api.services.grammar import constrained
from openai_api.services.reply import collect, stream
from openai_api.services.sampling import completion_budget, sampling_params
from openai_api.services.target import Target, resolve_target
from openai_api.services.transcript import prompt_ids


async def create_chat_completion(call: Call) -> HttpResponseBase:
    wanted = call.read(ChatRequest)
    target = await resolve_target(call, wanted)
    generation = Generation(call, target, await plan_chat(wanted, target))
    chunks = ChatChunks(
        generation,
        num_choices=wanted.n or 1,
        has_logprobs=bool(wanted.logprobs),
        include_usage=wanted.include_usage or not wanted.stream,
    )
    if wanted.stream:
        return await stream(generation, chunks)
    fold = ChatFold(has_logprobs=bool(wanted.logprobs))
    await collect(generation, chunks, fold.add)
    return json_response(fold.body())


async def plan_chat(wanted: ChatRequest, target: Target) -> Plan:
    ids = await prompt_ids(target.model.text, wanted)
    budget = completion_budget(wanted.token_limit, len(ids), target.model, param=wanted.limit_param)
    params = dataclasses.replace(sampling_params(wanted, target.model, budget), logprobs=wanted.num_logprobs)
    return Plan([ids], await constrained(wanted, target.model, [params]), wanted.n or 1)
