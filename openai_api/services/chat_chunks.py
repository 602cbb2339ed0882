"""Chat completions' chunks, in the order that clients depend on, and their fold into one body."""

from __future__ import annotations

import time
from collections.abc import Iterator

from inference.client import Event, FinishedEvent, PromptLogprobsEvent, TokensEvent
from openai_api.request_id import new_id
from openai_api.schemas.bodies import (
    ChatChoiceBody,
    ChatChunkBody,
    ChatCompletionBody,
    ChatFinish,
    ChatLogprobsBody,
    ChunkChoiceBody,
    DeltaBody,
    PromptLogprobsBody,
    TokenLogprobBody,
)
from openai_api.services.generation import Generation
from openai_api.services.tally import usage_body
from openai_api.services.token_text import chat_logprobs, prompt_logprobs

SYSTEM_FINGERPRINT = "fp_millm_2"  # changes when the same seed may give other tokens
_NO_LOGPROBS: ChatLogprobsBody = {"content": None, "refusal": None}


class ChatChunks:
    def __init__(self, generation: Generation, *, num_choices: int, has_logprobs: bool, include_usage: bool) -> None:
        self._generation = generation
        self._num_choices = num_choices
        self._has_logprobs = has_logprobs
        self._include_usage = include_usage
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())

    def opening(self) -> Iterator[ChatChunkBody]:
        for index in range(self._num_choices):
            yield self._chunk([_choice(index, {"role": "assistant", "content": ""})])

    def of(self, event: Event) -> Iterator[ChatChunkBody]:
        if isinstance(event, TokensEvent) and (event.text or (self._has_logprobs and event.logprobs)):
            yield self._chunk([_choice(event.index, {"content": event.text}, self._logprobs(event))])
        if isinstance(event, PromptLogprobsEvent) and event.index == 0:  # all choices have the same prompt
            yield self._prompt_chunk(event)
        if isinstance(event, FinishedEvent):
            yield self._finish(event)

    def closing(self) -> Iterator[ChatChunkBody]:
        if self._include_usage:
            chunk = self._chunk([])
            chunk["usage"] = usage_body(self._generation.tally.usage)
            yield self._with_proof(chunk)

    def _finish(self, event: FinishedEvent) -> ChatChunkBody:
        reason: ChatFinish = "length" if event.reason == "length" else "stop"
        chunk = self._chunk([_choice(event.index, {}, None, reason)])
        is_last = self._generation.tally.is_complete and not self._include_usage
        return self._with_proof(chunk) if is_last else chunk

    def _logprobs(self, event: TokensEvent) -> ChatLogprobsBody | None:
        return chat_logprobs(self._generation.target.model.text, event.logprobs) if self._has_logprobs else None

    def _prompt_chunk(self, event: PromptLogprobsEvent) -> ChatChunkBody:
        chunk = self._chunk([])
        chunk["prompt_logprobs"] = prompt_logprobs(self._generation.target.model.text, event.logprobs)
        return chunk

    def _with_proof(self, chunk: ChatChunkBody) -> ChatChunkBody:
        millm = self._generation.millm
        if millm is not None:
            chunk["millm"] = millm
        return chunk

    def _chunk(self, choices: list[ChunkChoiceBody]) -> ChatChunkBody:
        chunk: ChatChunkBody = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._generation.target.model.record.name,
            "choices": choices,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        if self._include_usage:
            chunk["usage"] = None
        return chunk


def _choice(
    index: int,
    delta: DeltaBody,
    logprobs: ChatLogprobsBody | None = None,
    finish_reason: ChatFinish | None = None,
) -> ChunkChoiceBody:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


class ChatFold:
    """Folds the chunks of a whole stream, the usage chunk included, into one completion."""

    def __init__(self, *, has_logprobs: bool) -> None:
        self._has_logprobs = has_logprobs
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, list[TokenLogprobBody]] = {}
        self._reasons: dict[int, ChatFinish] = {}
        self._prompt_logprobs: PromptLogprobsBody | None = None
        self._last: ChatChunkBody | None = None

    def add(self, chunk: ChatChunkBody) -> None:
        self._last = chunk
        self._prompt_logprobs = chunk.get("prompt_logprobs", self._prompt_logprobs)
        for choice in chunk["choices"]:
            index = choice["index"]
            self._texts.setdefault(index, []).append(choice["delta"].get("content", ""))
            self._tokens.setdefault(index, []).extend((choice["logprobs"] or _NO_LOGPROBS)["content"] or ())
            if choice["finish_reason"] is not None:
                self._reasons[index] = choice["finish_reason"]

    def body(self) -> ChatCompletionBody:
        last = self._last
        usage = last.get("usage") if last else None
        assert last is not None
        assert usage is not None, "the fold needs the usage chunk"
        body: ChatCompletionBody = {
            "id": last["id"],
            "object": "chat.completion",
            "created": last["created"],
            "model": last["model"],
            "choices": [self._choice(index) for index in sorted(self._texts)],
            "usage": usage,
            "system_fingerprint": last["system_fingerprint"],
        }
        if self._prompt_logprobs is not None:
            body["prompt_logprobs"] = self._prompt_logprobs
        if "millm" in last:
            body["millm"] = last["millm"]
        return body

    def _choice(self, index: int) -> ChatChoiceBody:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(self._texts[index]), "refusal": None},
            "logprobs": {"content": self._tokens[index], "refusal": None} if self._has_logprobs else None,
            "finish_reason": self._reasons[index],
        }
