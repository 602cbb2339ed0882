"""Convert an answer to Anthropic's stream events, and fold these into one message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from inference.client import Event, FinishedEvent, TokensEvent
from inference.text.dialects.events import (
    AnswerEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_api.generation.answer import AnswerPlan
from openai_api.generation.run import Generation
from openai_api.generation.token_text import ReasoningTokens
from openai_api.schemas.anthropic import (
    AnthropicMessageBody,
    Block,
    DeltaUsageBody,
    MessageEventBody,
    MessageUsageBody,
    StopReason,
)


class MessageEvents:
    """Content blocks come one after the other: what belongs to another kind of block ends the open one."""

    def __init__(self, generation: Generation, answers: AnswerPlan) -> None:
        self._generation = generation
        self._reader = answers.reader()
        self._reasoning = ReasoningTokens(generation.target.model.text)
        self._id = generation.call.answer_id("msg_")
        self._num_blocks = 0
        self._open: str | None = None  # kind of the open block
        self._end: FinishedEvent | None = None

    def start(self) -> Iterator[MessageEventBody]:
        message: AnthropicMessageBody = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._generation.target.model.record.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "diagnostics": None,
            "usage": whole_usage(self._usage()),
        }
        yield {"type": "message_start", "message": message}

    def on_event(self, event: Event) -> Iterator[MessageEventBody]:
        if isinstance(event, TokensEvent):
            parts = list(self._reader.feed(event.text))
            self._reasoning.note(event, self._reader)
            yield from self._parts(parts)
        elif isinstance(event, FinishedEvent):
            self._end = event
            yield from self._parts(self._reader.finish())

    def finish(self) -> Iterator[MessageEventBody]:
        yield from self._close()
        assert self._end is not None, "the answer has ended"
        last: MessageEventBody = {
            "type": "message_delta",
            "delta": {
                "stop_reason": self._reason(self._end),
                "stop_sequence": self._end.stop or None,
                "stop_details": None,
                "container": None,
            },
            "usage": self._usage(),
        }
        millm = self._generation.millm
        if millm is not None:
            last["millm"] = millm
        yield last
        yield {"type": "message_stop"}

    def _reason(self, end: FinishedEvent) -> StopReason:
        if end.reason == "length":
            return "max_tokens"
        if end.stop:
            return "stop_sequence"
        return "tool_use" if self._reader.num_calls else "end_turn"

    def _parts(self, events: Iterable[AnswerEvent]) -> Iterator[MessageEventBody]:
        for event in events:
            yield from self._part(event)

    def _part(self, event: AnswerEvent) -> Iterator[MessageEventBody]:
        match event:
            case ContentDelta(text):
                yield from self._begin("text", {"type": "text", "text": "", "citations": None})
                yield self._delta({"type": "text_delta", "text": text})
            case ReasoningDelta(text):
                yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolCallStart(index, call_id, name):
                block: Block = {
                    "type": "tool_use",
                    "id": call_id,
                    "name": name,
                    "input": {},
                    "caller": {"type": "direct"},
                }
                yield from self._begin(f"call {index}", block)
            case ToolCallArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolCallEnd():
                yield from self._close()

    def _begin(self, kind: str, block: Block) -> Iterator[MessageEventBody]:
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        yield {"type": "content_block_start", "index": self._num_blocks, "content_block": block}

    def _delta(self, delta: dict[str, str]) -> MessageEventBody:
        return {"type": "content_block_delta", "index": self._num_blocks, "delta": delta}

    def _close(self) -> Iterator[MessageEventBody]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._num_blocks}
            self._num_blocks += 1

    def _usage(self) -> DeltaUsageBody:
        usage = self._generation.stats.usage
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": self._reasoning.count},
            "server_tool_use": None,
        }


def whole_usage(usage: DeltaUsageBody) -> MessageUsageBody:
    """Return the usage of a complete message, including fields that do not change during the stream."""
    return {
        **usage,
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
        "inference_geo": None,
        "service_tier": "standard",
        "speed": "standard",
    }


class MessageFold:
    """Collect all events of a stream into one message."""

    def __init__(self) -> None:
        self._message: AnthropicMessageBody | None = None
        self._texts: list[list[str]] = []

    def add(self, event: MessageEventBody) -> None:
        message = self._message
        if message is None:
            self._message = event["message"]
        elif event["type"] == "content_block_start":
            message["content"].append(event["content_block"])
            self._texts.append([])
        elif event["type"] == "content_block_delta":
            delta: Any = event["delta"]
            self._texts[-1].append(delta[next(name for name in delta if name != "type")])
        elif event["type"] == "message_delta":
            ending: Any = event["delta"]
            message["stop_reason"], message["stop_sequence"] = ending["stop_reason"], ending["stop_sequence"]
            message["usage"] = whole_usage(event["usage"])
            if "millm" in event:
                message["millm"] = event["millm"]

    def body(self) -> AnthropicMessageBody:
        assert self._message is not None, "a stream starts with its message"
        for block, texts in zip(self._message["content"], self._texts, strict=True):
            text = "".join(texts)
            if block["type"] == "text":
                block["text"] = text
            elif block["type"] == "thinking":
                block["thinking"] = text
            else:
                block["input"] = read_input(text)
        return self._message


def read_input(text: str) -> dict[str, Any]:
    """Return a call's arguments. Text that is not a JSON object is kept as it is."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {"raw": text}
    return value if isinstance(value, dict) else {"raw": text}
