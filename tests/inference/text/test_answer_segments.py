"""A dialect's rules for the engine find the parts that its reader of answers finds."""

from __future__ import annotations

import re

import pytest

from inference.engine.output.segments import SequenceSegments
from inference.text.dialects.answer_grammar import ThinkingState
from inference.text.dialects.dialect import CallMode, Dialect, answer_segment_rules
from inference.text.dialects.thinking import KNOWN_MARKS, ThinkingMarks
from inference.text.dialects.tool_formats import TOOL_FORMATS
from tests.inference.text.answers import read_answer
from tests.inference.text.test_answer_reader import ANSWERS
from tests.inference.text.test_tool_formats import GOOD, NAMES

THINK = KNOWN_MARKS[0]


def marks_of(dialect: Dialect) -> list[str]:
    span = dialect.tools.span if dialect.tools else None
    marks = [*span.starts, *span.ends, *span.openers] if span else []
    return [*marks, *((dialect.thinking.start, dialect.thinking.end) if dialect.thinking else ())]


def parts(
    dialect: Dialect,
    text: str,
    thinking: ThinkingState = "possible",
    calls: CallMode = "offered",
    *,
    whole: bool = True,
) -> dict[str, str]:
    """The text of each part, by tokens that are marks or single characters."""
    marks = sorted((mark for mark in marks_of(dialect) if len(mark) > 1), key=len, reverse=True)
    pattern = "|".join([*map(re.escape, marks if whole else []), "(?s:.)"])
    tokens = re.findall(pattern, text)
    found = SequenceSegments(answer_segment_rules(dialect, thinking, calls), lambda token: tokens[token].encode())
    texts = {"thinking": "", "answer": "", "call": ""}
    for token, (part, _) in zip(tokens, found.places(range(len(tokens)), 0), strict=True):
        texts[part] += token
    return texts


def without_blanks(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(("name", "text", "content", "calls"), GOOD)
def test_calls_stand_where_the_reader_finds_them(name: str, text: str, content: str, calls: list[object]):
    found = parts(Dialect(tools=TOOL_FORMATS[name]), text, "none")
    assert found["thinking"] == ""
    if calls:
        assert content.strip() in found["answer"]
        if name != "harmony":  # whose headers are of no part for the reader
            assert found["answer"].strip() == content.strip()
        assert found["call"].strip()
    elif not text.strip().startswith(("{", "[", "```")):  # what begins like a call is taken for one before it is read
        assert found == {"thinking": "", "answer": text, "call": ""}


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_every_notation_is_written_inside_its_span(name: str):
    """What the grammar of demanded calls writes is of the calls, from its first token to the end."""
    shape = TOOL_FORMATS[name].shape
    text = shape.first + "add" + shape.between + shape.after + shape.closing
    found = parts(Dialect(tools=TOOL_FORMATS[name]), text, "none")
    assert (found["answer"].strip(), found["call"].strip()) == ("", text.strip())


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("thinking", ["none", "possible", "begun"])
def test_thoughts_and_content_are_the_reader_s(text: str, thinking: ThinkingState):
    dialect = Dialect(THINK, TOOL_FORMATS["hermes"])
    answer = read_answer(
        [text],
        thinking=None if thinking == "none" else THINK,
        is_thinking=thinking == "begun",
        tools=dialect.tools,
        tool_names=NAMES,
    )
    found = parts(dialect, text, thinking)
    thoughts = found["thinking"].strip().removeprefix(THINK.start).removesuffix(THINK.end)
    assert without_blanks(thoughts) == without_blanks(answer.reasoning)
    if answer.calls or not found["call"]:  # what only looks like the beginning of a call is content for the reader
        assert without_blanks(found["answer"]) == without_blanks(answer.content)
    assert found["call"] or not answer.calls


@pytest.mark.parametrize("marks", KNOWN_MARKS)
def test_of_marks_in_characters_the_last_one_tells(marks: ThinkingMarks):
    found = parts(Dialect(marks), f"{marks.start}abc{marks.end}def", whole=False)
    assert found == {"thinking": f"{marks.start[-1]}abc{marks.end}", "answer": marks.start[:-1] + "def", "call": ""}


def test_no_calls_where_no_tools_are_on_offer():
    text = '<tool_call>{"name": "add"}</tool_call>'
    dialect = Dialect(THINK, TOOL_FORMATS["hermes"])
    assert parts(dialect, text, calls="none")["call"] == ""
    assert parts(dialect, text, calls="marked")["call"] == text
    assert parts(Dialect(THINK), text)["call"] == ""


@pytest.mark.parametrize(("name", "opening"), [("llama3_json", "{"), ("pythonic", "[")])
def test_without_a_mark_a_call_is_told_only_where_one_is_on_offer(name: str, opening: str):
    dialect = Dialect(tools=TOOL_FORMATS[name])
    assert parts(dialect, f"\n{opening}x", calls="offered")["call"] == f"{opening}x"
    assert parts(dialect, f"\n{opening}x", calls="marked")["call"] == ""
    mark = TOOL_FORMATS[name].marks[0]
    assert parts(dialect, mark + "x", calls="marked")["call"] == mark + "x"


def test_a_call_after_thoughts_that_has_no_mark():
    dialect = Dialect(THINK, TOOL_FORMATS["llama3_json"])
    found = parts(dialect, '<think>{"a"</think>\n\n{"name": "x"}')
    assert found["call"] == '{"name": "x"}'


def test_rules_are_made_once():
    dialect = Dialect(THINK, TOOL_FORMATS["hermes"])
    again = Dialect(ThinkingMarks("<think>", "</think>"), TOOL_FORMATS["hermes"])
    assert answer_segment_rules(dialect, "begun", "offered") is answer_segment_rules(again, "begun", "offered")
