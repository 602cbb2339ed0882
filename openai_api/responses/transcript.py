"""Items as the messages of a chat, which is what models are trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from openai_api.responses.items import item_text
from openai_api.responses.schemas.bodies import Item
from openai_api.responses.schemas.tools import FILE_SEARCH
from openai_api.responses.search_results import results_text

Message = dict[str, Any]


def messages_of(instructions: str | None, items: Iterable[Item], *, num_results: int = 0) -> list[Message]:
    """Instructions first. An answer's reasoning, text and calls are one message: templates write them as one turn.

    Instructions and the system messages right after them are one message too: many templates take a single one, in
    front. Results of searches are numbered on after ``num_results``.
    """
    transcript = Transcript(num_results)
    if instructions:
        transcript.add({"role": "system", "content": instructions})
    for item in items:
        _add(transcript, item)
    return [
        {**message, "content": ""} if message["content"] is None and "tool_calls" not in message else message
        for message in transcript.messages
    ]


class Transcript:
    def __init__(self, num_results: int = 0) -> None:
        self.messages: list[Message] = []
        self.num_results = num_results

    def add(self, message: Message) -> None:
        self.messages.append(message)

    def instruct(self, text: str) -> None:
        if len(self.messages) == 1 and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += f"\n\n{text}"
        else:
            self.add({"role": "system", "content": text})

    def turn(self) -> Message:
        """The assistant's turn at the end, begun if need be."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.add({"role": "assistant", "content": None})
        return self.messages[-1]


def _add(transcript: Transcript, item: Item) -> None:
    kind, text = item["type"], item_text(item)
    if kind == "function_call":
        function = {"name": item["name"], "arguments": text}
        turn = transcript.turn()
        turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})
    elif kind == "file_search_call":
        function = {"name": FILE_SEARCH, "arguments": json.dumps({"queries": item["queries"]}, ensure_ascii=False)}
        turn = transcript.turn()
        turn.setdefault("tool_calls", []).append({"id": item["id"], "type": "function", "function": function})
        results = item.get("results")
        text = results_text(results, first=transcript.num_results + 1)
        transcript.num_results += len(results or ())
        transcript.add({"role": "tool", "tool_call_id": item["id"], "content": text})
    elif kind == "function_call_output":
        transcript.add({"role": "tool", "tool_call_id": item["call_id"], "content": text})
    elif kind == "compaction":
        transcript.instruct(text)
    elif kind == "reasoning":
        if text:
            transcript.turn()["reasoning_content"] = text
    elif item["role"] == "assistant":
        _say(transcript, text)
    elif item["role"] in {"system", "developer"}:
        transcript.instruct(text)
    else:
        transcript.add({"role": item["role"], "content": text})


def _say(transcript: Transcript, text: str) -> None:
    """Text begins a turn of its own, unless only reasoning came before it."""
    last = transcript.messages[-1] if transcript.messages else {}
    if last.get("role") == "assistant" and last["content"] is None and "tool_calls" not in last:
        last["content"] = text
    else:
        transcript.add({"role": "assistant", "content": text})
