"""POST /ollama/api/chat, generate, embed and embeddings: Ollama's requests, run as those of /v1."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from django.http.response import HttpResponseBase

from inference.registry.model_card import ModelCard
from openai_api.backend import get_backend
from openai_api.endpoints.chat import plan_chat
from openai_api.endpoints.completions import encode_prompts, params_for
from openai_api.endpoints.embeddings import check_dimensions, embed, shorten
from openai_api.endpoints.models import unload
from openai_api.generation.answer import raw_segment_rules
from openai_api.generation.prompt import is_effort_without_effect
from openai_api.generation.run import Generation, Plan
from openai_api.generation.sampling import constrained
from openai_api.generation.target import (
    Target,
    check_model_allowed,
    check_profile_allowed,
    find_model,
    ready_model,
    resolve_target,
    resolve_unsteered,
)
from openai_api.generation.vectors import check_lengths
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import renaming, unsupported_parameter
from openai_api.http.json_body import read_json_object
from openai_api.ollama.conversion import (
    chat_of,
    chat_of_prompt,
    completion_of,
    context_of,
    renamed,
    renamed_prompt,
    renamed_raw,
)
from openai_api.ollama.lines import AnswerLines, Place, Stopwatch, in_message, in_response, now, only_line, respond
from openai_api.ollama.names import own_name
from openai_api.ollama.schemas import (
    OllamaChatRequest,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    SteeredRequest,
)
from openai_api.schemas.base import RequestSchema
from openai_api.schemas.chat import ChatRequest

S = TypeVar("S", bound=RequestSchema)


def read(call: Call, schema: type[S], **defaults: Any) -> S:
    """Return the validated body. Content-Type may be missing or another: Ollama's examples have none.

    A page of another site needs a key (``needs_no_key``), which it cannot send without asking first.
    """
    body = read_json_object(call.request, is_declared=False)
    for name, value in defaults.items():
        if body.get(name) is None:
            body[name] = value
    return call.read_body(body, schema)


async def create_chat(call: Call) -> HttpResponseBase:
    request = read(call, OllamaChatRequest, stream=True)
    if not request.messages:
        return await _load(call, request, in_message)
    watch, name = Stopwatch(), await own_name(request.model)
    with renaming(renamed):
        chat = chat_of(request, name)
        target = await _target(call, chat, request, watch)
        plan, answers = await plan_chat(chat, target, clamps=True)
    generation = await Generation.start(call, target, plan)
    lines = AnswerLines(generation, answers, name=request.model, place=in_message, watch=watch)
    return await respond(generation, lines, in_message, streams=bool(request.stream))


async def create_text(call: Call) -> HttpResponseBase:
    """Answer a prompt as a chat with one message, or continue it if it is raw."""
    request = read(call, OllamaGenerateRequest, stream=True)
    if not request.prompt:
        return await _load(call, request, in_response)
    watch, name = Stopwatch(), await own_name(request.model)
    if request.raw:
        return await _continue(call, request, name, watch)
    with renaming(renamed_prompt):
        chat = chat_of_prompt(request, name)
        if request.context:
            call.prompt = [message.model_dump(include={"role", "content"}) for message in chat.messages]
        target = await _target(call, chat, request, watch)
        plan, answers = await plan_chat(chat, target, clamps=True)
    generation = await Generation.start(call, target, plan)
    lines = AnswerLines(
        generation,
        answers,
        name=request.model,
        place=in_response,
        watch=watch,
        context=lambda answer: context_of(chat, answer),
    )
    return await respond(generation, lines, in_response, streams=bool(request.stream))


async def _continue(call: Call, request: OllamaGenerateRequest, name: str, watch: Stopwatch) -> HttpResponseBase:
    with renaming(renamed_raw):
        completion = completion_of(request, name)
        target = await resolve_target(call, completion)
        watch.note_loaded()
        prompts = await encode_prompts(target.model, completion.prompt)
        params = [params_for(completion, target.model, len(ids), clamps=True) for ids in prompts]
        params = await constrained(completion.grammar_spec, target.model, params)
    plan = Plan(prompts, params, 1, segment_rules=raw_segment_rules(target, prompts))
    generation = await Generation.start(call, target, plan)
    lines = AnswerLines(generation, None, name=request.model, place=in_response, watch=watch)
    return await respond(generation, lines, in_response, streams=bool(request.stream))


async def _target(call: Call, chat: ChatRequest, request: SteeredRequest, watch: Stopwatch) -> Target:
    """Resolve model and steering. Raises MillmError, also for reasoning that the model does not have."""
    target = await resolve_target(call, chat)
    watch.note_loaded()
    text = target.model.text
    if request.think and text.dialect.thinking is None:
        raise unsupported_parameter("think", f"The model `{target.model.record.name}` does not support thinking.")
    if is_effort_without_effect(text, chat):
        call.note_ignored("think")
    return target


async def _load(call: Call, request: SteeredRequest, place: Place) -> HttpResponseBase:
    """Answer a request without a prompt: load the model, or unload it if `keep_alive` is 0."""
    watch = Stopwatch()
    record, profile = find_model(get_backend().registry(), await own_name(request.model))
    call.use_model(record.name)
    check_model_allowed(call.key, record)
    if profile is not None:
        check_profile_allowed(call.key, profile)
        await get_backend().find_profile(record.name, profile)
    if request.unloads:
        await unload(call, record)
    else:
        await ready_model(record, "generation")
    watch.note_loaded()
    reason = "unload" if request.unloads else "load"
    line = {"model": request.model, "created_at": now(), **place({}), "done": True, "done_reason": reason}
    return only_line({**line, **watch.durations()}, streams=bool(request.stream))


async def create_embeddings(call: Call) -> HttpResponseBase:
    request = read(call, OllamaEmbedRequest)
    watch = Stopwatch()
    model = await _embedder(call, request.model)
    watch.note_loaded()
    dimensions = request.dimensions or None
    check_dimensions(dimensions, model)
    texts = await _encoded(model, request.input, param="input", truncates=request.truncate is not False)
    vectors = [
        shorten(np.frombuffer(one, "<f4"), dimensions or model.dimensions) for one in await _embed(call, model, texts)
    ]
    body: OllamaEmbedBody = {
        "model": request.model,
        "embeddings": [vector.tolist() for vector in vectors],
        "total_duration": watch.durations()["total_duration"],
        "load_duration": watch.durations()["load_duration"],
        "prompt_eval_count": sum(map(len, texts)),
    }
    return json_response(body)


async def create_embedding(call: Call) -> HttpResponseBase:
    """Return the vector of one text as the model gives it: the older of Ollama's two endpoints."""
    request = read(call, OllamaEmbeddingsRequest)
    model = await _embedder(call, request.model)
    texts = await _encoded(model, [request.prompt] if request.prompt else [], param="prompt", truncates=True)
    vectors = [np.frombuffer(one, "<f4").tolist() for one in await _embed(call, model, texts)]
    body: OllamaEmbeddingsBody = {"embedding": vectors[0] if vectors else []}
    return json_response(body)


async def _embedder(call: Call, name: str) -> ModelCard:
    return await resolve_unsteered(call, await own_name(name), "embedding")


async def _encoded(model: ModelCard, texts: list[str], *, param: str, truncates: bool) -> list[list[int]]:
    """Return the token ids of the texts, cut to the model's context length if ``truncates``."""
    encoded = await encode_prompts(model, list(texts), param=param) if texts else []
    if truncates:
        return [_cut(ids, model) for ids in encoded]
    check_lengths(encoded, model, param=param)
    return encoded


def _cut(ids: list[int], model: ModelCard) -> list[int]:
    """Return as many ids as the model can read; a special token at the end stays there."""
    limit = model.max_model_len
    if len(ids) <= limit:
        return ids
    return [*ids[: limit - 1], ids[-1]] if ids[-1] in model.text.special_token_ids else ids[:limit]


async def _embed(call: Call, model: ModelCard, texts: list[list[int]]) -> list[bytes]:
    if not texts:
        return []
    await call.reserve_tokens(sum(map(len, texts)))
    return await embed(call, model, texts)
