"""Grammars of whole answers: what they let through is what the readers read, and nothing else passes."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from inference.text.dialects.answer_grammar import CallSpec, Literals, OfferedTool, answer_grammar, closed
from inference.text.dialects.thinking import KNOWN_MARKS
from inference.text.dialects.tool_formats import GLM_45, HARMONY, HERMES, LLAMA_JSON, QWEN_CODER, TOOL_FORMATS
from inference.text.grammar import Grammar, GrammarError
from inference.text.grammar_compiler import GrammarCompiler
from tests.builders import build_tokenizer
from tests.inference.text.answers import read_answer

THINK = KNOWN_MARKS[0]
PLAIN = Literals({})
ADD = OfferedTool(
    "add",
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}, "c": {"type": "boolean"}},
        "required": ["a", "b"],
    },
)
NOW = OfferedTool("now", {"type": "object", "properties": {}, "additionalProperties": False})
BODY = Grammar.of_schema({"type": "object", "properties": {"x": {"enum": [1]}}, "additionalProperties": False})
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>'
NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GrammarCompiler(tokenizer, len(tokenizer), {tokenizer.eos_token_id})


def passes(compiler, tokenizer, grammar: Grammar, text: str) -> bool:
    """Whether the whole text is an output of the grammar."""
    matcher = compiler.template(grammar).deep_copy()
    ids = tokenizer.encode(text, add_special_tokens=False)
    return all(matcher.consume_token(token) for token in ids) and matcher.is_accepting()


def draw(compiler, tokenizer, grammar: Grammar, seed: int) -> str:
    """A text that the grammar allows, token by token at random; masks and steps as the engine makes them."""
    rng = random.Random(seed)  # noqa: S311 - a repeatable draw
    matcher = compiler.template(grammar).deep_copy()
    ids: list[int] = []
    for _ in range(400):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        if tokenizer.eos_token_id in allowed:
            break
        ids.append(int(rng.choice(allowed)))
        assert matcher.consume_token(ids[-1])
        if matcher.is_stopped():
            break
    return tokenizer.decode(ids)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_demanded_calls_are_read_as_calls(compiler, tokenizer, name: str):
    """Random outputs of the grammar: each is one call of a tool on offer, as the tool's schema has it."""
    spec = CallSpec(TOOL_FORMATS[name].shape, (ADD, NOW), must_call=True, max_calls=1)
    grammar = answer_grammar(literals=PLAIN, calls=spec)
    names = set()
    for seed in range(12):
        text = draw(compiler, tokenizer, grammar, seed)
        answer = read_answer([text], tools=TOOL_FORMATS[name], tool_names=frozenset({"add", "now"}))
        assert answer.content == "", text
        ((called, arguments),) = answer.named
        names.add(called)
        if spec.shape.arguments != "gemma" and called == "add":
            values = json.loads(arguments)
            assert values["b"] in {"x", "y"}
            assert values["a"] <= 99
    assert names == {"add", "now"}


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (CALL, True),
        (f"{CALL}\n{NOW_CALL}", True),
        ("Hello", False),
        (f"Well. {CALL}", False),
        (CALL.replace('"x"', '"z"'), False),
        (CALL.replace('"b": "x"', '"b": "x", "d": 1'), False),
        (CALL.replace("add", "sub"), False),
        (CALL.removesuffix("</tool_call>"), False),
    ],
)
def test_demanded_calls(compiler, tokenizer, text: str, is_right: bool):
    grammar = answer_grammar(literals=PLAIN, calls=CallSpec(HERMES.shape, (ADD, NOW), must_call=True))
    assert passes(compiler, tokenizer, grammar, text) is is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("Hello", True),
        ("", True),
        (f"Well.\n{CALL}", True),
        (NOW_CALL, True),
        (f"{NOW_CALL}\n{NOW_CALL}", False),
        (CALL.replace("add", "sub"), False),
    ],
)
def test_allowed_calls(compiler, tokenizer, text: str, is_right: bool):
    spec = CallSpec(HERMES.shape, (ADD, NOW), must_call=False, max_calls=1)
    assert passes(compiler, tokenizer, answer_grammar(literals=PLAIN, calls=spec), text) is is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [("Hello", True), ('{"name": "now", "parameters": {}}', True), ('{"name": "sub", "parameters": {}}', False)],
)
def test_without_marks_the_first_character_tells(compiler, tokenizer, text: str, is_right: bool):
    spec = CallSpec(LLAMA_JSON.shape, (NOW,), must_call=False)
    assert passes(compiler, tokenizer, answer_grammar(literals=PLAIN, calls=spec), text) is is_right


@pytest.mark.parametrize(
    ("text", "is_right"), [('{"x": 1}', True), (CALL, True), ("Hello", False), (f'{CALL}{{"x": 1}}', False)]
)
def test_calls_or_a_format(compiler, tokenizer, text: str, is_right: bool):
    spec = CallSpec(HERMES.shape, (ADD,), must_call=False)
    assert passes(compiler, tokenizer, answer_grammar(literals=PLAIN, calls=spec, body=BODY), text) is is_right


@pytest.mark.parametrize(
    ("thinking", "text", "is_right"),
    [
        ("begun", 'So {"x": 2}</think>\n\n{"x": 1}', True),
        ("begun", '{"x": 1}', False),
        ("possible", '{"x": 1}', True),
        ("possible", '<think>\nSo</think>{"x": 1}', True),
        ("possible", '<think>{"x": 1}', False),
        ("none", '<think></think>{"x": 1}', False),
    ],
)
def test_the_grammar_begins_after_the_reasoning(compiler, tokenizer, thinking, text: str, is_right: bool):
    grammar = answer_grammar(literals=PLAIN, marks=THINK, thinking=thinking, body=BODY)
    assert passes(compiler, tokenizer, grammar, text) is is_right


@pytest.mark.parametrize(
    "body",
    [
        Grammar("regex", "a+/"),
        Grammar("lark", 'start: "aa" "/"'),
        Grammar.of_choices(["aa/", "b"]),
        Grammar("lark", 'root ::= "aa/"'),
    ],
)
def test_any_grammar_may_follow_reasoning(compiler, tokenizer, body: Grammar):
    grammar = answer_grammar(literals=PLAIN, marks=THINK, thinking="begun", body=body)
    assert passes(compiler, tokenizer, grammar, "hm</think>aa/")
    assert not passes(compiler, tokenizer, grammar, "hm</think>c")


def test_marks_that_are_special_tokens_are_asked_for_by_id(compiler, tokenizer):
    special = next(i for i in tokenizer.all_special_ids if i != tokenizer.eos_token_id)
    literals = Literals({"<tool_call>": special})
    assert literals.terminal("a<tool_call>b") == f'"a" <[{special}]> "b"'
    for must_call in (True, False):
        spec = CallSpec(HERMES.shape, (NOW,), must_call=must_call, max_calls=1)
        matcher = compiler.template(answer_grammar(literals=literals, calls=spec)).deep_copy()
        rest = tokenizer.encode(NOW_CALL.removeprefix("<tool_call>"), add_special_tokens=False)
        assert all(matcher.consume_token(token) for token in [special, *rest])
        assert matcher.is_accepting()


def test_schemas_are_checked_as_everywhere(compiler):
    tool = OfferedTool("f", {"type": "object", "properties": {"a": {"not": {}}}})
    grammar = answer_grammar(literals=PLAIN, calls=CallSpec(HERMES.shape, (tool,), must_call=True))
    with pytest.raises(GrammarError, match="`not`"):
        compiler.template(grammar)


def test_only_named_arguments_are_allowed_unless_the_schema_says_otherwise():
    assert closed({"properties": {"a": {}}})["additionalProperties"] is False
    assert closed({"properties": {"a": {}}, "additionalProperties": True})["additionalProperties"] is True
    assert closed({"type": "object"}) == {"type": "object"}


SAY = OfferedTool(
    "say",
    {
        "type": "object",
        "properties": {"text": {"type": "string"}, "how": {"enum": ["loud", "“low”"]}, "to": {"$ref": "#/$defs/names"}},
        "required": ["text"],
        "$defs": {"names": {"type": "array", "items": {"enum": ["Mia"]}}},
    },
)
QWEN_SAY = "<tool_call>\n<function=say>\n<parameter=text>\na <b>\n\n</parameter>\n{}</function>\n</tool_call>"
GLM_SAY = "<tool_call>say\n<arg_key>text</arg_key>\n<arg_value>a <b></arg_value>\n{}</tool_call>"


@pytest.mark.parametrize(
    ("shape", "text", "is_right"),
    [
        (QWEN_CODER.shape, QWEN_SAY.format(""), True),
        (QWEN_CODER.shape, QWEN_SAY.format("<parameter=how>\nloud\n</parameter>\n"), True),
        (QWEN_CODER.shape, QWEN_SAY.format('<parameter=to>\n["Mia"]\n</parameter>\n'), True),
        (QWEN_CODER.shape, QWEN_SAY.format('<parameter=to>\n["Tom"]\n</parameter>\n'), False),
        (QWEN_CODER.shape, QWEN_SAY.format("<parameter=how>\nsoft\n</parameter>\n"), False),
        (QWEN_CODER.shape, QWEN_SAY.format("<parameter=who>\nx\n</parameter>\n"), False),
        (QWEN_CODER.shape, "<tool_call>\n<function=say>\n</function>\n</tool_call>", False),
        (QWEN_CODER.shape, "<tool_call>\n<function=now>\n</function>\n</tool_call>", True),
        (GLM_45.shape, GLM_SAY.format(""), True),
        (GLM_45.shape, GLM_SAY.format("<arg_key>how</arg_key>\n<arg_value>“low”</arg_value>\n"), True),
        (GLM_45.shape, GLM_SAY.format("<arg_key>to</arg_key>\n<arg_value>Mia</arg_value>\n"), False),
    ],
)
def test_arguments_between_tags_follow_the_schema(compiler, tokenizer, shape, text: str, is_right: bool):
    grammar = answer_grammar(literals=PLAIN, calls=CallSpec(shape, (SAY, NOW), must_call=True))
    assert passes(compiler, tokenizer, grammar, text) is is_right


def test_a_tool_that_names_no_arguments_takes_any_between_tags(compiler, tokenizer):
    spec = CallSpec(QWEN_CODER.shape, (OfferedTool("any", {"type": "object"}),), must_call=True)
    text = "<tool_call>\n<function=any>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
    assert passes(compiler, tokenizer, answer_grammar(literals=PLAIN, calls=spec), text)
    assert read_answer([text], tools=QWEN_CODER).named == [("any", '{"x": 1}')]


HARMONY_CALL = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"


@pytest.mark.parametrize(
    ("must_call", "text", "is_right"),
    [
        (True, HARMONY_CALL, True),
        (True, f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{HARMONY_CALL}", True),
        (True, HARMONY_CALL * 2, False),
        (True, "<|channel|>final<|message|>Hello", False),
        (False, "<|channel|>final<|message|>Hello", True),
        (False, HARMONY_CALL, True),
        (False, HARMONY_CALL.replace("now", "sub"), False),
    ],
)
def test_calls_in_harmony(compiler, tokenizer, must_call: bool, text: str, is_right: bool):
    """A call ends the answer, so there is one."""
    marks = next(one for one in KNOWN_MARKS if "analysis" in one.start)
    spec = CallSpec(HARMONY.shape, (NOW,), must_call=must_call)
    opening = HARMONY.shape.content_opening
    grammar = answer_grammar(literals=PLAIN, marks=marks, thinking="possible", calls=spec, content_opening=opening)
    assert passes(compiler, tokenizer, grammar, text) is is_right


def test_a_format_in_harmony_stands_in_the_final_channel(compiler, tokenizer):
    grammar = answer_grammar(literals=PLAIN, body=BODY, content_opening=HARMONY.shape.content_opening)
    assert passes(compiler, tokenizer, grammar, '<|channel|>final<|message|>{"x": 1}')
    assert not passes(compiler, tokenizer, grammar, '{"x": 1}')


def test_marks_of_several_special_tokens():
    literals = Literals({"<|end|>": 7, "<|start|>": 8})
    assert list(literals.text_before("r", "<|end|><|start|>assistant")) == ['r: TEXT <[7]> <[8]> "assistant"']
