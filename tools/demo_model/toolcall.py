"""Chats with tools: the assistant calls one with the user's values, reads the result, and answers."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tools.demo_model.conversation import SYSTEM_PLAIN, Conversation, Message, exchange, turns, without_mark
from tools.demo_model.echo import read_facts
from tools.demo_model.memory import capital
from tools.demo_model.tool import TOOLS, Schema, Tool, property_tool

OK: tuple[dict[str, str | int], ...] = ({"status": "ok"}, {"ok": True}, {"status": "done"}, {"success": True})


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as offered in one chat: under one of its names, each argument under one of its keys."""

    tool: Tool
    name: str
    keys: tuple[str, ...]
    schema: Schema


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One use of a tool: the question, the arguments, the result, and the answer made of it."""

    asked: str
    arguments: dict[str, Any]
    result: str
    told: str


def offer_tool(tool: Tool, rng: random.Random) -> OfferedTool:
    """Return the tool under random names, with a schema as short or as detailed as clients write them."""
    name = rng.choice(tool.names)
    keys = tuple(slot.keys[0] if rng.random() < 0.6 else rng.choice(slot.keys) for slot in tool.arguments)
    properties: Schema = {key: {"type": slot.kind} for key, slot in zip(keys, tool.arguments, strict=True)}
    if rng.random() < 0.15:
        for key, value in properties.items():
            value["description"] = f"The {key}."
    parameters: Schema = {"type": "object", "properties": properties, "required": list(keys)}
    function: Schema = {"name": name, "description": rng.choice(tool.descriptions), "parameters": parameters}
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
        function["strict"] = True
    return OfferedTool(tool, name, keys, {"type": "function", "function": function})


def use_tool(offered: OfferedTool, rng: random.Random) -> ToolUse:
    """Ask a question that needs the tool, with new random values."""
    tool = offered.tool
    given = [slot.draw(rng) for slot in tool.arguments]
    found = [slot.draw(rng) for slot in tool.result]
    slots = {slot.keys[0]: value for slot, value in zip((*tool.arguments, *tool.result), (*given, *found), strict=True)}
    result = {rng.choice(slot.keys): value for slot, value in zip(tool.result, found, strict=True)} or rng.choice(OK)
    plain = len(found) == 1 and rng.random() < 0.15  # some tools return text and not JSON
    return ToolUse(
        without_mark(rng.choice(tool.asked).format(**slots), rng),
        dict(zip(offered.keys, given, strict=True)),
        str(found[0]) if plain else json.dumps(result),
        capital(rng.choice(tool.told).format(**slots)),
    )


def write_tool_conversation(rng: random.Random) -> Conversation:
    """Return a chat that offers one to three tools; most questions need one of them."""
    count = rng.choices((1, 2, 3), weights=(6, 3, 1))[0]
    picked = [*rng.sample(TOOLS, count), property_tool(rng)]
    offered = [offer_tool(tool, rng) for tool in (picked[:count] if rng.random() < 0.7 else picked[-count:])]
    rng.shuffle(offered)
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PLAIN)})
    for _ in range(rng.choice((1, 1, 2))):
        draw = rng.random()
        if draw < 0.12:
            messages += exchange(rng, None)
        elif draw < 0.15:
            messages += turns(*read_facts(rng))
        else:
            messages += _tool_turns(rng.choice(offered), rng)
    return Conversation(messages, [tool.schema for tool in offered])


def _tool_turns(offered: OfferedTool, rng: random.Random) -> list[Message]:
    use = use_tool(offered, rng)
    call = {"type": "function", "function": {"name": offered.name, "arguments": use.arguments}}
    return [
        {"role": "user", "content": use.asked},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": use.result},
        {"role": "assistant", "content": use.told},
    ]
