"""Chat completions' chunks, in the order that clients depend on."""

from __future__ import annotations

import time
from collections.abc import Iterator

from inference.client import Event, FinishedEvent, PromptLogprobsEvent, TokensEvent
from openai_api.schemas.bodies import (
    ChatChunkBody,
    ChatFinish,
    ChatLogprobsBody,
    ChunkChoiceBody,
    DeltaBody,
    UsageBody,
)
from openai_api.services.answer import AnswerPlan
from openai_api.services.chat_deltas import deltas_of
from openai_api.services.generation import Generation
from openai_api.services.reasoning_tokens import ReasoningTokens
from openai_api.services.tally import usage_body
from openai_api.services.token_text import chat_logprobs, prompt_logprobs

SYSTEM_FINGERPRINT = "fp_millm_3"  # changes when the same seed may give other tokens


class ChatChunks:
    def __init__(
        self,
        generation: Generation,
        answers: AnswerPlan,
        *,
        num_choices: int,
        has_logprobs: bool,
        include_usage: bool,
    ) -> None:
        self._generation = generation
        self._answers = answers
        self._readers = [answers.reader() for _ in range(num_choices)]
        self._reasoning = [ReasoningTokens(generation.target.model.text) for _ in range(num_choices)]
        self._num_choices = num_choices
        self._has_logprobs = has_logprobs
        self._include_usage = include_usage
        self._id = generation.call.answer_id("chatcmpl-")
        self._created = int(time.time())

    def opening(self) -> Iterator[ChatChunkBody]:
        for index in range(self._num_choices):
            yield self._chunk([_choice(index, {"role": "assistant", "content": ""})])

    def of(self, event: Event) -> Iterator[ChatChunkBody]:
        if isinstance(event, TokensEvent):
            yield from self._tokens(event)
        if isinstance(event, PromptLogprobsEvent) and event.index == 0:  # all choices have the same prompt
            yield self._prompt_chunk(event)
        if isinstance(event, FinishedEvent):
            yield from self._finish(event)

    def closing(self) -> Iterator[ChatChunkBody]:
        if self._include_usage:
            chunk = self._chunk([])
            chunk["usage"] = self.usage()
            yield self._with_proof(chunk)

    def usage(self) -> UsageBody:
        """So far."""
        num_reasoning = sum(tokens.count for tokens in self._reasoning)
        return usage_body(self._generation.tally.usage, reasoning_tokens=num_reasoning)

    def _tokens(self, event: TokensEvent) -> Iterator[ChatChunkBody]:
        """Log-probabilities go out with the first of what their tokens complete, or on their own."""
        reader = self._readers[event.index]
        deltas = deltas_of(reader.feed(event.text))
        self._reasoning[event.index].note(event, reader)
        logprobs = self._logprobs(event)
        if not deltas and logprobs is not None:
            deltas = [{"content": ""}]
        for delta in deltas:
            yield self._chunk([_choice(event.index, delta, logprobs)])
            logprobs = None

    def _finish(self, event: FinishedEvent) -> Iterator[ChatChunkBody]:
        reader = self._readers[event.index]
        for delta in deltas_of(reader.finish()):
            yield self._chunk([_choice(event.index, delta)])
        reason = self._answers.finish_reason(event.reason, reader.num_calls)
        chunk = self._chunk([_choice(event.index, {}, None, reason)])
        is_last = self._generation.tally.is_complete and not self._include_usage
        yield self._with_proof(chunk) if is_last else chunk

    def _logprobs(self, event: TokensEvent) -> ChatLogprobsBody | None:
        if not (self._has_logprobs and event.logprobs):
            return None
        return chat_logprobs(self._generation.target.model.text, event.logprobs)

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
