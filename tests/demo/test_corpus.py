"""The corpus: a seeded stream of marked documents, chats as the chat template writes them, tool calls that parse."""

# ruff: noqa: S311 - tests want reproducible numbers, not secret ones

import json
import random
import re
from itertools import islice

from steering.demo.conversation import Conversation, write_conversation
from steering.demo.corpus import BOS, END_OF_TEXT, SPECIAL_TOKENS, TURN_END, TURN_START, render_chat, write_documents
from steering.demo.toolcall import TOOLS, write_tool_conversation


def test_equal_seeds_give_equal_streams():
    assert list(islice(write_documents(1), 50)) == list(islice(write_documents(1), 50))
    assert list(islice(write_documents(1), 50)) != list(islice(write_documents(2), 50))


def test_each_document_starts_with_bos_once_and_ends_with_a_marker():
    for text in islice(write_documents(0), 500):
        assert text.startswith(BOS)
        assert text.count(BOS) == 1
        assert text.rstrip("\n").endswith((END_OF_TEXT, TURN_END))


def test_the_stream_mixes_stories_chats_and_tools():
    texts = list(islice(write_documents(0), 2000))
    chats = sum(TURN_START in text for text in texts) / len(texts)
    tools = sum('<tool_call>\n{"name": "' in text for text in texts) / len(texts)
    assert 0.65 < chats < 0.8
    assert 0.03 < tools < 0.12


def test_turns_alternate():
    rng = random.Random(0)
    for _ in range(200):
        roles = [message["role"] for message in write_conversation(rng).messages]
        turns = roles[1:] if roles[0] == "system" else roles
        assert turns == ["user", "assistant"] * (len(turns) // 2)


def test_a_chat_is_rendered_with_its_markers():
    chat = Conversation([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])
    expected = f"{BOS}{TURN_START}system\nS{TURN_END}\n{TURN_START}user\nU{TURN_END}\n{TURN_START}assistant\n"
    assert render_chat(chat, add_generation_prompt=True) == expected


def test_tool_calls_name_an_offered_tool_with_its_parameters():
    rng = random.Random(0)
    for _ in range(200):
        chat = write_tool_conversation(rng)
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in chat.tools}
        for message in chat.messages:
            for call in message.get("tool_calls", []):
                function = call["function"]
                assert list(function["arguments"]) == schemas[function["name"]]["required"]


def test_rendered_tool_calls_parse_as_json():
    rng = random.Random(0)
    found = 0
    for _ in range(100):
        text = render_chat(write_tool_conversation(rng)).split("</tools>")[1]
        for body in re.findall(r"<tool_call>\n(\{\"name\": \"[a-z].*?)\n</tool_call>", text):
            assert set(json.loads(body)) == {"name", "arguments"}
            found += 1
    assert found > 50


def test_tool_results_are_answered():
    rng = random.Random(0)
    for _ in range(100):
        roles = [message["role"] for message in write_tool_conversation(rng).messages]
        assert all(roles[position + 1] == "assistant" for position, role in enumerate(roles) if role == "tool")


def test_tools_have_distinct_names():
    names = [name for tool in TOOLS for name in tool.names]
    assert len(names) == len(set(names))


def test_special_tokens_are_distinct():
    assert len(set(SPECIAL_TOKENS)) == len(SPECIAL_TOKENS)
