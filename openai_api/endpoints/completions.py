"""POST /v1/completions: from the request to the response."""

from __future__ import annotations

import dataclasses

from django.http.response import HttpResponseBase

from inference.client import SamplingParams
from inference.registry.model_card import ModelCard
from inference.text.model_text import ModelText, PromptTooLongError
from openai_api.generation.activations import ActivationLog, plan_captures
from openai_api.generation.answer import raw_segment_rules
from openai_api.generation.completion_chunks import CompletionChunks, CompletionFold
from openai_api.generation.prompt import off_loop
from openai_api.generation.reply import respond
from openai_api.generation.run import Generation, Plan
from openai_api.generation.sampling import check_token_ids, completion_budget, constrained, sampling_params
from openai_api.generation.target import resolve_target
from openai_api.http.call import Call
from openai_api.http.errors import invalid, unsupported_parameter
from openai_api.schemas.completions import CompletionRequest
from openai_api.schemas.prompts import Prompt


async def create_completion(call: Call) -> HttpResponseBase:
    request = call.read(CompletionRequest)
    target = await resolve_target(call, request)
    prompts = await completion_prompts(target.model, request)
    params = [params_for(request, target.model, len(ids)) for ids in prompts]
    params = await constrained(request.grammar_spec, target.model, params)
    rules, reading = raw_segment_rules(target, prompts), None
    plan = Plan(prompts, params, request.num_candidates, segment_rules=rules, cache_salt=request.cache_salt or "")
    if request.return_activations is not None:
        plan = (await plan_captures(target, plan, request.return_activations, param="return_activations")).plan
        reading = ActivationLog(target.model.text, plan)
    generation = await Generation.start(call, target, plan)
    chunks = CompletionChunks(
        generation,
        num_sequences=len(prompts) * request.num_candidates,
        echoes=echoes(target.model.text, request, prompts) if request.echo else None,
        num_top=params[0].logprobs,
        echo_has_logprobs=request.logprobs is not None,
        has_prompt_logprobs=request.prompt_logprobs is not None,
        skip_special_tokens=params[0].skip_special_tokens,
        include_usage=request.include_usage or not request.stream,
    )
    fold = (
        None
        if request.stream
        else CompletionFold(
            per_prompt=request.num_candidates,
            keep=request.num_choices,
            has_logprobs=request.logprobs is not None,
            echoed=[len(ids) for ids in prompts] if request.echo and request.logprobs is not None else None,
        )
    )
    return await respond(generation, chunks, fold, reading)


async def completion_prompts(model: ModelCard, request: CompletionRequest) -> list[list[int]]:
    """Return the token ids of each prompt, with the suffix if there is one. Raises MillmError 400."""
    suffix = request.suffix
    if not suffix:
        return await encode_prompts(model, request.prompt)
    if model.text.fill_tokens is None:
        raise unsupported_parameter(
            "suffix",
            f"The tokenizer of the model `{model.record.name}` has no tokens for a prefix and a suffix "
            "(fill-in-the-middle). Use a model for code that has them, or send `prompt` only.",
        )
    if request.echo:
        raise invalid("`echo` cannot be combined with `suffix`.", param="echo")
    size = sum(len(prompt) for prompt in request.prompt) + len(suffix)
    try:
        encoded = await off_loop(
            lambda: [model.text.encode_fill(str(prompt), suffix) for prompt in request.prompt], size=size
        )
    except PromptTooLongError as error:
        raise error.with_param("prompt") from None
    return encoded


async def encode_prompts(model: ModelCard, prompts: list[Prompt], *, param: str = "prompt") -> list[list[int]]:
    """Return the token ids of each prompt. Raises MillmError 400 `invalid_prompt`."""
    size = sum(len(prompt) for prompt in prompts)
    try:
        encoded = await off_loop(
            lambda: [model.text.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts], size=size
        )
    except PromptTooLongError as error:
        raise error.with_param(param) from None
    for ids in encoded:
        check_token_ids(ids, model.vocab_size, param=param, code="invalid_prompt")
        if not ids:
            message = f"`{param}` must not be empty: this model has no BOS token to start from."
            raise invalid(message, param=param, code="invalid_prompt")
    return encoded


def params_for(
    request: CompletionRequest, model: ModelCard, prompt_tokens: int, *, clamps: bool = False
) -> SamplingParams:
    """Return the sampling parameters. ``best_of`` ranks by logprobs, so the engine always computes them for it.

    ``clamps``: reduce a token limit that exceeds the remaining context to the remaining context.
    """
    budget = completion_budget(request.max_tokens, prompt_tokens, model, param="max_tokens", clamps=clamps)
    needs_ranking = request.num_candidates > request.num_choices
    logprobs = 0 if request.logprobs is None and needs_ranking else request.logprobs
    asked = [num for num in (request.prompt_logprobs, request.logprobs if request.echo else None) if num is not None]
    params = sampling_params(request, model, budget)
    if request.suffix and model.text.fill_tokens is not None:
        stop_ids = dict.fromkeys([*params.stop_token_ids, *sorted(model.text.fill_tokens.stop_ids)])
        params = dataclasses.replace(params, stop_token_ids=tuple(stop_ids))
    return dataclasses.replace(params, logprobs=logprobs, prompt_logprobs=max(asked, default=None))


def echoes(text: ModelText, request: CompletionRequest, prompts: list[list[int]]) -> list[tuple[str, list[int]]]:
    """Return for each sequence its prompt, as the client's text and as token ids."""
    texts = [
        given
        if isinstance(given, str)
        else text.decode(given, skip_special_tokens=request.skip_special_tokens is not False)
        for given in request.prompt
    ]
    pairs = list(zip(texts, prompts, strict=True))
    return [pair for pair in pairs for _ in range(request.num_candidates)]
