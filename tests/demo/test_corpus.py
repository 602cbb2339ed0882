"""The corpus: a seeded stream of marked documents, chats as the chat template writes them, tool calls that parse."""

# ruff: noqa: S311 - tests want reproducible numbers, not secret ones

import json
import random
import re
from itertools import islice

from tools.demo_model.coinage import HELD_OUT
from tools.demo_model.conversation import Conversation, write_conversation
from tools.demo_model.corpus import (
    BOS,
    END_OF_TEXT,
    SPECIAL_TOKENS,
    TURN_END,
    TURN_START,
    render_chat,
    write_documents,
    write_drills,
)
from tools.demo_model.memory import write_memory_conversation, write_reading_conversation
from tools.demo_model.tool import TOOLS, property_tool
from tools.demo_model.toolcall import offer_tool, use_tool, write_tool_conversation


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
    assert 0.75 < chats < 0.86
    assert 0.1 < tools < 0.18


def test_values_held_out_are_never_written():
    """What tests ask the demo to copy must be new to it; not even inside another word."""
    names = re.compile("|".join(HELD_OUT), re.IGNORECASE)
    assert not [found for text in islice(write_documents(3), 8000) if (found := names.search(text))]


def test_training_begins_with_lines_that_come_again():
    texts = list(islice(write_drills(0), 400))
    assert all(text.startswith(BOS) for text in texts)
    plain = [text.removeprefix(BOS).removesuffix(END_OF_TEXT).split("\n") for text in texts if TURN_START not in text]
    again = [lines for lines in plain if len(lines) > 1 and len(set(lines)) == 1]
    assert len(again) > 0.75 * len(texts)
    assert len({lines[0] for lines in again}) == len(again)


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


def test_arguments_stand_in_the_question_and_results_in_the_answer():
    rng = random.Random(0)
    for tool in TOOLS * 20:
        use = use_tool(offer_tool(tool, rng), rng)
        assert all(str(value) in use.asked for value in use.arguments.values()), use
        values = json.loads(use.result).values() if use.result.startswith("{") else [use.result]
        assert not tool.result or all(str(value).lower() in use.told.lower() for value in values), use
        assert not re.search(r"[{}]", use.asked + use.told)


def test_properties_are_looked_up_by_the_name_of_the_tool():
    rng = random.Random(0)
    for _ in range(200):
        use = use_tool(offer_tool(property_tool(rng), rng), rng)
        (value,) = use.arguments.values()
        assert str(value) in use.asked
        assert str(value).lower() in use.told.lower()


def test_chats_that_are_read_or_remembered_answer_with_what_was_said():
    rng = random.Random(0)
    for write in (write_memory_conversation, write_reading_conversation):
        for _ in range(200):
            messages = write(rng).messages
            roles = [message["role"] for message in messages if message["role"] != "system"]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            assert not any(re.search(r"\{\w+\}", message["content"]) for message in messages)


def test_what_was_told_is_asked_for_and_told_again():
    rng = random.Random(0)
    for _ in range(200):
        said = [
            message["content"] for message in write_memory_conversation(rng).messages if message["role"] != "system"
        ]
        told = " ".join(said[:-1])
        assert re.findall(r"[\w ]+", said[-1])[-1].split()[-1] in told


def test_special_tokens_are_distinct():
    assert len(set(SPECIAL_TOKENS)) == len(SPECIAL_TOKENS)
