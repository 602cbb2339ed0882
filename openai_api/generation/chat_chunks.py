"""Chunks of chat completions, in the order that clients depend on, and their fold into one body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from inference.client import Event, FinishedEvent, PromptLogprobsEvent, TokensEvent
from inference.text.dialects.events import AnswerEvent, ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from openai_api.generation.answer import AnswerPlan
from openai_api.generation.chunk_maker import ChunkMaker
from openai_api.generation.run import Generation
from openai_api.generation.stats import usage_body
from openai_api.generation.token_text import ReasoningTokens, chat_logprobs, prompt_logprobs
from openai_api.schemas.bodies import (
    ChatChoiceBody,
    ChatChunkBody,
    ChatCompletionBody,
    ChatFinish,
    ChatLogprobsBody,
    ChunkChoiceBody,
    DeltaBody,
    FunctionDeltaBody,
    MessageBody,
    PromptLogprobsBody,
    TokenLogprobBody,
    ToolCallBody,
    ToolCallDeltaBody,
    UsageBody,
)


def deltas_of(events: Iterable[AnswerEvent]) -> list[DeltaBody]:
    """Return the deltas of a segment. The end of a call needs none: the next call or the finish reason implies it."""
    return [delta for event in events for delta in _deltas_of(event)]


def _deltas_of(event: AnswerEvent) -> Iterator[DeltaBody]:
    match event:
        case ContentDelta(text):
            yield {"content": text}
        case ReasoningDelta(text):
            yield {"reasoning_content": text, "reasoning": text}
        case ToolCallStart(index, call_id, name):
            function: FunctionDeltaBody = {"name": name, "arguments": ""}
            yield {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case ToolCallArguments(index, text):
            yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            pass


class ChatChunks(ChunkMaker[ChatChunkBody]):
    object_name = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def __init__(
        self,
        generation: Generation,
        answers: AnswerPlan,
        *,
        num_choices: int,
        has_logprobs: bool,
        include_usage: bool,
    ) -> None:
        super().__init__(generation, include_usage=include_usage)
        self._answers = answers
        self._readers = [answers.reader() for _ in range(num_choices)]
        self._reasoning = [ReasoningTokens(self._text) for _ in range(num_choices)]
        self._num_choices = num_choices
        self._has_logprobs = has_logprobs

    def start(self) -> Iterator[ChatChunkBody]:
        for index in range(self._num_choices):
            yield self._chunk([_choice(index, {"role": "assistant", "content": ""})])

    def on_event(self, event: Event) -> Iterator[ChatChunkBody]:
        if isinstance(event, TokensEvent):
            yield from self._tokens(event)
        if isinstance(event, PromptLogprobsEvent) and event.index == 0:  # all choices have the same prompt
            yield self._prompt_chunk(event)
        if isinstance(event, FinishedEvent):
            yield from self._finish(event)

    def usage(self) -> UsageBody:
        """Return the usage so far."""
        num_reasoning = sum(tokens.count for tokens in self._reasoning)
        return usage_body(self._generation.stats.usage, reasoning_tokens=num_reasoning)

    def _tokens(self, event: TokensEvent) -> Iterator[ChatChunkBody]:
        """Return log-probabilities with the first delta that their tokens complete, or in a chunk of their own."""
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
        yield self._finished(self._chunk([_choice(event.index, {}, None, reason)]))

    def _logprobs(self, event: TokensEvent) -> ChatLogprobsBody | None:
        if not (self._has_logprobs and event.logprobs):
            return None
        return chat_logprobs(self._text, event.logprobs)

    def _prompt_chunk(self, event: PromptLogprobsEvent) -> ChatChunkBody:
        chunk = self._chunk([])
        chunk["prompt_logprobs"] = prompt_logprobs(self._text, event.logprobs)
        return chunk


def _choice(
    index: int,
    delta: DeltaBody,
    logprobs: ChatLogprobsBody | None = None,
    finish_reason: ChatFinish | None = None,
) -> ChunkChoiceBody:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


_NO_LOGPROBS: ChatLogprobsBody = {"content": None, "refusal": None}


@dataclass(slots=True)
class _Choice:
    """State of one choice."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCallBody] = field(default_factory=list)
    tokens: list[TokenLogprobBody] = field(default_factory=list)
    finish_reason: ChatFinish = "stop"

    def add(self, choice: ChunkChoiceBody) -> None:
        delta: DeltaBody = choice["delta"]
        self.content.append(delta.get("content", ""))
        self.reasoning.append(delta.get("reasoning_content", ""))
        for call in delta.get("tool_calls", ()):
            self._add_call(call)
        self.tokens.extend((choice["logprobs"] or _NO_LOGPROBS)["content"] or ())
        self.finish_reason = choice["finish_reason"] or self.finish_reason

    def message(self) -> MessageBody:
        content, reasoning = "".join(self.content), "".join(self.reasoning)
        body: MessageBody = {"role": "assistant", "content": content or (None if self.calls else ""), "refusal": None}
        if self.calls:
            body["tool_calls"] = self.calls
        if reasoning:
            body["reasoning_content"] = body["reasoning"] = reasoning
        return body

    def _add_call(self, call: ToolCallDeltaBody) -> None:
        function = call["function"]
        if "id" in call:
            self.calls.append(
                {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": ""}}
            )
        self.calls[call["index"]]["function"]["arguments"] += function.get("arguments", "")


class ChatFold:
    """Fold all chunks of a stream, which need not include ``usage``, into one body."""

    def __init__(self, usage: Callable[[], UsageBody], *, has_logprobs: bool) -> None:
        self._usage = usage
        self._has_logprobs = has_logprobs
        self._choices: dict[int, _Choice] = {}
        self._prompt_logprobs: PromptLogprobsBody | None = None
        self._last: ChatChunkBody | None = None

    def add(self, chunk: ChatChunkBody) -> None:
        self._last = chunk
        self._prompt_logprobs = chunk.get("prompt_logprobs", self._prompt_logprobs)
        for choice in chunk["choices"]:
            self._choices.setdefault(choice["index"], _Choice()).add(choice)

    def body(self) -> ChatCompletionBody:
        last = self._last
        assert last is not None
        body: ChatCompletionBody = {
            "id": last["id"],
            "object": "chat.completion",
            "created": last["created"],
            "model": last["model"],
            "choices": [self._choice(index) for index in sorted(self._choices)],
            "usage": self._usage(),
            "system_fingerprint": last["system_fingerprint"],
        }
        if self._prompt_logprobs is not None:
            body["prompt_logprobs"] = self._prompt_logprobs
        if "millm" in last:
            body["millm"] = last["millm"]
        return body

    def _choice(self, index: int) -> ChatChoiceBody:
        choice = self._choices[index]
        return {
            "index": index,
            "message": choice.message(),
            "logprobs": {"content": choice.tokens, "refusal": None} if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
        }
