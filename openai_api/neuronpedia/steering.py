"""POST /api/steer and /api/steer-chat: the same prompt with and without steering, as two generations of one request.

Each runs as it would as a request of its own to /v1/completions or /v1/chat/completions, so it has the same text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from django.http.response import HttpResponseBase
from django.urls import reverse

from inference.client import Event, FinishedEvent, TokensEvent
from inference.text.dialects.answer_reader import AnswerReader
from inference.text.dialects.events import AnswerEvent, ContentDelta, ReasoningDelta
from inference.text.model_text import ModelText
from openai_api.endpoints.chat import plan_chat
from openai_api.endpoints.completions import encode_prompts, params_for
from openai_api.generation.answer import raw_segment_rules
from openai_api.generation.reply import collect
from openai_api.generation.run import Generation, Plan
from openai_api.generation.stats import total_outcome
from openai_api.generation.target import Target, resolve_target
from openai_api.generation.token_text import token_logprob
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import renaming
from openai_api.http.public_url import public_url
from openai_api.neuronpedia.schemas import (
    ChatMessageBody,
    SteerBody,
    SteerChatBody,
    SteerChatRequest,
    SteeredChatBody,
    SteeredLogprob,
    SteerFeature,
    SteerMessage,
    SteerRequest,
)
from openai_api.neuronpedia.sources import allowed_model, check_same_model, find_sources, renamed
from openai_api.schemas.bodies import TokenLogprobBody
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.completions import CompletionRequest

UNSTEERED: Mapping[str, Any] = {"profile": None}  # no default profile either; policies of the server still apply
NUM_LOGPROBS = 5  # alternatives at each token, as many as Neuronpedia returns


async def steer_completion(call: Call) -> HttpResponseBase:
    request = call.read(SteerRequest)
    sources = await _sources(call, request.modelId, request.features)
    # The edit applies to all tokens: Neuronpedia has no switch for special tokens here.
    steering = {"steering": request.edits(sources, special_tokens=True)}
    with _renaming():
        runs = [await _plan_completion(call, request, each) for each in (UNSTEERED, steering)]
        default, steered = await _run(call, runs)
    body: SteerBody = {
        "STEERED": request.prompt + steered.content,
        "DEFAULT": request.prompt + default.content,
        "steeredLogProbs": steered.logprobs,
        "defaultLogProbs": default.logprobs,
        "id": call.id,
        "shareUrl": _log_url(call),
        "limit": None,
    }
    return json_response(body)


async def steer_chat(call: Call) -> HttpResponseBase:
    request = call.read(SteerChatRequest)
    sources = await _sources(call, request.modelId, request.features)
    steering = {"steering": request.edits(sources, special_tokens=request.steer_special_tokens is not False)}
    with _renaming("defaultChatMessages"):
        runs = [await _plan_chat(call, request, request.defaultChatMessages, UNSTEERED)]
    with _renaming("steeredChatMessages"):
        runs.append(await _plan_chat(call, request, request.steeredChatMessages, steering))
    with _renaming():
        default, steered = await _run(call, runs)
    body: SteerChatBody = {
        "STEERED": _chat_body(request.steeredChatMessages, steered),
        "DEFAULT": _chat_body(request.defaultChatMessages, default),
        "id": call.id,
        "shareUrl": _log_url(call),
        "limit": None,
        "settings": request.model_dump(
            exclude={"modelId", "features", *SteerChatRequest.TEXTS},
            exclude_none=True,
        ),
    }
    return json_response(body)


async def _sources(call: Call, model: str, features: Sequence[SteerFeature]) -> dict[str, str]:
    """Return the names of the features' SAEs, by the sources that were sent. Raises MillmError."""
    allowed_model(call, model)
    check_same_model(features, model)
    names = list(dict.fromkeys(feature.source_id for feature in features))
    found = await find_sources(call, model, names, param="features")
    return {name: sae.name for name, sae in zip(names, found, strict=True)}


@dataclass(slots=True)
class _Answer:
    """Collects the answer of one generation. It has no chunks."""

    text: ModelText
    prompt: Sequence[int]
    reader: AnswerReader | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[SteeredLogprob] = field(default_factory=list)
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)

    def start(self) -> Iterator[None]:
        return iter(())

    def on_event(self, event: Event) -> Iterator[None]:
        if isinstance(event, TokensEvent):
            self.ids += event.token_ids
            self.logprobs += [_logprob(token_logprob(self.text, token)) for token in event.logprobs or ()]
            self._note(self.reader.feed(event.text) if self.reader else [ContentDelta(event.text)])
        elif isinstance(event, FinishedEvent) and self.reader is not None:
            self._note(self.reader.finish())
        return iter(())

    def finish(self) -> Iterator[None]:
        return iter(())

    def ignore(self, chunk: None) -> None:
        """Take no chunk: there are none."""

    @property
    def content(self) -> str:
        """The text; reasoning comes first, between tags, as Neuronpedia shows it."""
        reasoning = "".join(self._reasoning)
        return (f"<think>{reasoning}</think>" if reasoning else "") + "".join(self._content)

    @property
    def raw(self) -> str:
        """The prompt and the answer with all special tokens."""
        return self.text.decode([*self.prompt, *self.ids])

    def _note(self, events: Sequence[AnswerEvent]) -> None:
        for event in events:
            if isinstance(event, ContentDelta):
                self._content.append(event.text)
            elif isinstance(event, ReasoningDelta):
                self._reasoning.append(event.text)


@dataclass(frozen=True, slots=True)
class _Run:
    target: Target
    plan: Plan
    answer: _Answer


async def _plan_completion(call: Call, request: SteerRequest, selection: Mapping[str, Any]) -> _Run:
    body = {"model": request.modelId, "prompt": request.prompt, "logprobs": NUM_LOGPROBS, **request.sampling}
    asked = CompletionRequest.parse({**body, **selection})
    target = await resolve_target(call, asked)
    prompts = await encode_prompts(target.model, asked.prompt)
    params = [params_for(asked, target.model, len(ids)) for ids in prompts]
    plan = Plan(prompts, params, 1, segment_rules=raw_segment_rules(target, prompts))
    return _Run(target, plan, _Answer(target.model.text, prompts[0]))


async def _plan_chat(
    call: Call, request: SteerChatRequest, messages: Sequence[SteerMessage], selection: Mapping[str, Any]
) -> _Run:
    chat = [{"role": _role(message), "content": message.content} for message in messages]
    logprobs = {"logprobs": True, "top_logprobs": NUM_LOGPROBS}
    asked = ChatRequest.parse({"model": request.modelId, "messages": chat, **logprobs, **request.sampling, **selection})
    target = await resolve_target(call, asked)
    plan, answers = await plan_chat(asked, target)
    return _Run(target, plan, _Answer(target.model.text, plan.prompts[0], answers.reader()))


def _role(message: SteerMessage) -> str:
    """Return the role in our chats; some models' templates call the assistant `model`."""
    return "assistant" if message.role == "model" else message.role


async def _run(call: Call, runs: Sequence[_Run]) -> list[_Answer]:
    """Run the generations together. They share the call's log row."""
    started: list[Generation] = []
    try:
        for run in runs:
            started.append(await Generation.start(call, run.target, run.plan))
        await asyncio.gather(
            *(collect(one, run.answer, run.answer.ignore) for one, run in zip(started, runs, strict=True))
        )
    finally:
        for generation in started:
            generation.close()
        if started:
            outcomes = [generation.outcome for generation in started]
            receipts = [receipt for generation in started for receipt in generation.stats.receipts]
            texts = json.dumps([one.completion for one in outcomes], ensure_ascii=False)
            call.outcome = total_outcome(outcomes, receipts, completion=texts)
    return [run.answer for run in runs]


def _chat_body(messages: Sequence[SteerMessage], answer: _Answer) -> SteeredChatBody:
    chat: list[ChatMessageBody] = [{"role": message.role, "content": message.content} for message in messages]
    chat.append({"role": "assistant", "content": answer.content})
    return {"raw": answer.raw, "chatTemplate": chat, "chat_template": chat, "logprobs": answer.logprobs}


def _logprob(token: TokenLogprobBody) -> SteeredLogprob:
    return {
        "token": token["token"],
        "logprob": token["logprob"],
        "topLogprobs": [{"token": one["token"], "logprob": one["logprob"]} for one in token["top_logprobs"]],
    }


def _renaming(messages: str = "messages") -> AbstractContextManager[None]:
    return renaming(lambda text: renamed(text.replace("messages", messages) if messages != "messages" else text))


def _log_url(call: Call) -> str:
    return public_url(call.request, reverse("admin:openai_api_requestlog_change", args=[call.id]))
