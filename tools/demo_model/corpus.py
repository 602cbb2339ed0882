"""The training corpus: an endless, seeded stream of documents written by the grammar."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tools.demo_model.conversation import Conversation, write_conversation
from tools.demo_model.echo import write_drill
from tools.demo_model.memory import write_memory_conversation, write_reading_conversation
from tools.demo_model.story import StoryPlan, write_diary, write_story
from tools.demo_model.toolcall import write_tool_conversation

BOS, END_OF_TEXT, TURN_START, TURN_END = "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, BOS, TURN_START, TURN_END)
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


def write_documents(seed: int) -> Iterator[str]:
    """Yield documents without end: most are chats, two in five of which are about copying; some are plain stories.

    Each begins with the BOS marker. Equal seeds give equal streams.
    """
    rng = random.Random(seed)  # noqa: S311 - a corpus wants reproducible numbers, not secret ones
    while True:
        yield write_document(rng)


def write_drills(seed: int) -> Iterator[str]:
    """Yield the first documents: nearly all drills, so that the model learns to copy before it learns what to copy."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    while True:
        yield _plain(write_drill(rng)) if rng.random() < 0.85 else write_document(rng)


def write_document(rng: random.Random) -> str:
    """Return one document with its markers."""
    draw = rng.random()
    if draw < 0.38:
        return render_chat(write_conversation(rng))
    if draw < 0.52:
        return render_chat(write_tool_conversation(rng))
    if draw < 0.71:
        return render_chat(write_reading_conversation(rng))
    if draw < 0.81:
        return render_chat(write_memory_conversation(rng))
    return _plain(write_plain(rng))


def write_plain(rng: random.Random) -> str:
    """Return a document without turns: a story, a diary, or repeated words."""
    draw = rng.random()
    if draw < 0.45:
        return write_drill(rng)
    return write_diary(StoryPlan(), rng) if draw < 0.55 else write_story(StoryPlan(), rng)


def _plain(text: str) -> str:
    return f"{BOS}{text}{END_OF_TEXT}"


def render_chat(conversation: Conversation, *, add_generation_prompt: bool = False) -> str:
    """Return the conversation as the chat template renders it."""
    return _template().render(
        messages=conversation.messages,
        tools=conversation.tools or None,
        bos_token=BOS,
        add_generation_prompt=add_generation_prompt,
    )


@cache
def _template() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(CHAT_TEMPLATE)
