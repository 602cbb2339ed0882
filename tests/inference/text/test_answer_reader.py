"""Answers told apart into reasoning, calls and content, however their text is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.dialects.answer_reader import AnswerReader, new_call_id
from inference.text.dialects.events import ToolCallArguments, ToolCallEnd, ToolCallStart
from inference.text.dialects.thinking import KNOWN_MARKS, ThinkingMarks, is_left_open, marks_in
from inference.text.dialects.tool_formats import HERMES
from tests.inference.text.answers import cuts, read_answer

THINK = ThinkingMarks("<think>", "</think>")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}"}]}}\n</tool_call>'
ANSWERS = (
    "",
    "Just text, with < and <tool and </tool_call>.",
    CALL,
    f"Let me see.\n{CALL}\n{CALL}\n\nDone.",
    f"<think>\nHm, {CALL}?\n</think>\n\nYes.\n{CALL}",
    "<think>never closed <tool_call>",
    "<think></think>Hello",
    "  <think>a</think>",
    "  no <think>thought</think>",
    '<tool_call>{"name": "f", "arguments": {"a": "unended}\n</tool_call> more',
    '<tool_call>{"nam": 1}</tool_call>',
    "<tool_call>no JSON</tool_call> more",
    '<tool_call>{"arguments": {"x": 1}, "id": 7, "name": "late"}</tool_call>',
    '<tool_call>{"name": "f"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1}} {"name": "g", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1}',
    '<tool_call>{"name": "é\\u00fc", "arguments": {"s": "\\"}<\\\\"}}<tool_call>{"name": "g", "arguments": 5}',
)


@pytest.mark.parametrize("text", ANSWERS)
@given(data=st.data())
def test_cuts_make_no_difference(text: str, data: st.DataObject):
    whole = read_answer([text], thinking=THINK, tools=HERMES)
    pieces = data.draw(cuts(text))
    assert read_answer(pieces, thinking=THINK, tools=HERMES) == whole
    assert read_answer(list(text), thinking=THINK, tools=HERMES) == whole


@given(st.text())
def test_text_passes_unchanged_where_nothing_is_looked_for(text: str):
    assert read_answer([text]).content == text


@given(st.text(alphabet='<tol_cal>/{}": ,nme\n\\', max_size=60), st.data())
def test_no_text_breaks_the_reader(text: str, data: st.DataObject):
    text = "<tool_call>" + text
    whole = read_answer([text], thinking=THINK, tools=HERMES)
    assert read_answer(data.draw(cuts(text)), thinking=THINK, tools=HERMES) == whole


@given(
    st.dictionaries(
        st.text(), st.recursive(st.none() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=5)
    ),
    st.data(),
)
def test_arguments_arrive_as_they_were_written(arguments: dict[str, object], data: st.DataObject):
    written = json.dumps(arguments, ensure_ascii=data.draw(st.booleans()))
    text = f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
    assert read_answer(data.draw(cuts(text)), tools=HERMES).named == [("f", written)]


def test_calls_between_content():
    answer = read_answer([f"Let me see.\n{CALL}\n{CALL}\n\nDone. \n"], tools=HERMES)
    assert answer.content == "Let me see.Done. \n"
    assert answer.named == [("add", '{"a": 1, "b": [2, {"c": "}"}]}')] * 2
    assert [call.id for call in answer.calls] == ["call_0", "call_1"]


def test_arguments_come_while_they_are_written():
    reader = AnswerReader(tools=HERMES)
    assert reader.feed('<tool_call>\n{"name": "ad') == []
    (start,) = reader.feed('d", ')
    assert isinstance(start, ToolCallStart)
    assert (start.index, start.name) == (0, "add")
    assert reader.feed('"arguments": {"a"') == [ToolCallArguments(0, '{"a"')]
    assert reader.feed(": 1") == [ToolCallArguments(0, ": 1")]
    assert reader.feed("}") == [ToolCallArguments(0, "}")]
    assert reader.feed("}\n</tool_call>") == [ToolCallEnd(0)]
    assert reader.finish() == []


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('<tool_call>{"arguments": {"x": 1}, "id": 7, "name": "late"}</tool_call>', [("late", '{"x": 1}')], ""),
        ('<tool_call>{"name": "f"}</tool_call>', [("f", "{}")], ""),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", "{}")], ""),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", '{"a": 1}')], ""),
        ('<tool_call>{"name": "f", "arguments": {}}{"name": "g", "arguments": {}}', [("f", "{}"), ("g", "{}")], ""),
        ('<tool_call>{"name": "f", "arguments": {"a": 1', [("f", '{"a": 1')], ""),
        ('<tool_call>{"name": "f", "arguments": {"a": "x}\n</tool_call> so', [("f", '{"a": "x}')], "so"),
        ('<tool_call>{"name": "f", "arguments": {"a": [1}}</tool_call>', [("f", '{"a": [1}}')], ""),
        ("<tool_call>no JSON</tool_call> more", [], "<tool_call>no JSON</tool_call> more"),
        ('<tool_call>{"name": 5}</tool_call>', [], '<tool_call>{"name": 5}</tool_call>'),
        ('<tool_call>{"name": "f" oops}</tool_call>', [("f", "oops}")], ""),
        ("<tool_call>", [], "<tool_call>"),
    ],
)
def test_calls_that_are_written_badly_keep_their_text(text: str, calls: list[tuple[str, str]], content: str):
    answer = read_answer([text], tools=HERMES)
    assert answer.named == calls
    assert answer.content == content


def test_reasoning_has_no_blanks_around_it():
    answer = read_answer(["<think>\nOne.\n\nTwo.\n", "</think>\n\n  Hi. "], thinking=THINK)
    assert (answer.reasoning, answer.content) == ("One.\n\nTwo.", "Hi. ")


def test_prompt_may_have_begun_the_reasoning():
    answer = read_answer(["Hm. </think>Yes"], thinking=THINK, is_thinking=True)
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes")
    repeated = read_answer(["<think>Hm.</think>Yes"], thinking=THINK, is_thinking=True)
    assert (repeated.reasoning, repeated.content) == ("Hm.", "Yes")


def test_reasoning_without_an_end_is_no_content():
    reader = AnswerReader(thinking=THINK)
    reader.feed("<think>so")
    reader.finish()
    assert reader.is_reasoning


def test_end_of_the_reasoning_is_told_in_characters():
    reader = AnswerReader(thinking=THINK)
    reader.feed("<think>so</thi")
    assert (reader.is_reasoning, reader.reasoning_end) == (True, 0)
    reader.feed("nk> then")
    assert (reader.is_reasoning, reader.reasoning_end) == (False, len("<think>so</think>"))


def test_marks_later_in_the_text_are_content():
    answer = read_answer(["I say <think>this</think>"], thinking=THINK)
    assert (answer.reasoning, answer.content) == ("", "I say <think>this</think>")


@pytest.mark.parametrize("marks", KNOWN_MARKS)
def test_known_marks_are_recognised_in_templates(marks: ThinkingMarks):
    assert marks_in(f"{{{{ content.split('{marks.sign or marks.end}')[-1] }}}}") == marks
    assert is_left_open(marks, f"assistant\n{marks.start}\n")
    assert not is_left_open(marks, f"assistant\n{marks.start}\n\n{marks.end}\n\n")
    answer = read_answer(list(f"{marks.start}why{marks.end}because"), thinking=marks)
    assert (answer.reasoning, answer.content) == ("why", "because")


def test_templates_without_marks_do_not_reason():
    assert marks_in("{{ messages[0].content }}") is None


def test_only_so_many_calls_are_passed_on():
    answer = read_answer([f"{CALL}{CALL}"], tools=HERMES, max_calls=1)
    assert len(answer.calls) == 1


def test_ids_are_random():
    assert new_call_id() != new_call_id()
    assert new_call_id().startswith("call_")
