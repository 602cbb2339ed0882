"""POST /v1/chat/completions: from the request to the response."""

from __future__ import annotations

import dataclasses

from django.http.response import HttpResponseBase

from inference.text.dialects.dialect import answer_segment_rules
from inference.text.model_text import thinking_state
from openai_api.generation.activations import ActivationLog, plan_captures
from openai_api.generation.answer import AnswerPlan, check_tools
from openai_api.generation.chat_chunks import ChatChunks, ChatFold
from openai_api.generation.prompt import is_effort_without_effect, prompt_ids, thinking_budget
from openai_api.generation.reply import respond
from openai_api.generation.run import Generation, Plan
from openai_api.generation.sampling import completion_budget, constrained, sampling_params
from openai_api.generation.target import Target, resolve_target
from openai_api.http.call import Call
from openai_api.schemas.chat import ChatRequest
from openai_api.stored_chats.store import RecordedChunks, store_completion


async def create_chat_completion(call: Call) -> HttpResponseBase:
    request = call.read(ChatRequest)
    target = await resolve_target(call, request)
    if is_effort_without_effect(target.model.text, request):
        call.note_ignored("reasoning_effort")
    plan, answers = await plan_chat(request, target)
    reading = None
    if request.return_activations is not None:
        plan = (await plan_captures(target, plan, request.return_activations, param="return_activations")).plan
        reading = ActivationLog(target.model.text, plan)
    generation = await Generation.start(call, target, plan)
    chunks = ChatChunks(
        generation,
        answers,
        num_choices=request.n or 1,
        has_logprobs=bool(request.logprobs),
        include_usage=request.include_usage or not request.stream,
    )
    fold = ChatFold(chunks.usage, has_logprobs=bool(request.logprobs))

    async def keep() -> None:
        await store_completion(call, request, fold.body())

    if request.stream and request.store:
        return await respond(generation, RecordedChunks(chunks, fold), None, reading, keep)
    response = await respond(generation, chunks, None if request.stream else fold, reading)
    if request.store:
        await keep()
    return response


async def plan_chat(request: ChatRequest, target: Target, *, clamps: bool = False) -> tuple[Plan, AnswerPlan]:
    """Build the engine plan and the rules for parsing the answer. Raises MillmError 400 or 503.

    ``clamps``: reduce a token limit that exceeds the remaining context to the remaining context.
    """
    text = target.model.text
    check_tools(request.tool_use, text.dialect)
    ids = await prompt_ids(text, request)
    thinking = thinking_state(text, ids, continues=bool(request.continue_final_message))
    answers = AnswerPlan(text.dialect, thinking, request.tool_use)
    budget = completion_budget(request.token_limit, len(ids), target.model, param=request.limit_param, clamps=clamps)
    params = dataclasses.replace(
        sampling_params(request, target.model, budget, stop=target.model.text.stop_strings),
        logprobs=request.num_logprobs,
        shown_token_ids=answers.shown_token_ids(text),
        thinking=thinking_budget(text, request, thinking),
    )
    grammar = answers.grammar_spec(text, request.grammar_spec)
    rules = answer_segment_rules(text.dialect, thinking, "offered" if request.tool_use else "none")
    params_by_prompt = await constrained(grammar, target.model, [params])
    return Plan(
        [ids], params_by_prompt, request.n or 1, segment_rules=[rules], cache_salt=request.cache_salt or ""
    ), answers
