"""Each family's calls, whole and in pieces, right and wrong; and which template teaches which."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.dialects.answer_reader import AnswerReader, new_short_id
from inference.text.dialects.dialect import dialect_of
from inference.text.dialects.tool_formats import TOOL_FORMATS, format_in
from tests.inference.text.answers import Answer, cuts, read_answer

pytestmark = pytest.mark.slow

ADD = ("add", {"a": 1, "b": [2.5, "x"]})
SAY = ("say", {"text": "it's “ü”", "loud": True})
DS = {"cs": "<｜tool▁calls▁begin｜>", "ce": "<｜tool▁calls▁end｜>"}
DS |= {"b": "<｜tool▁call▁begin｜>", "e": "<｜tool▁call▁end｜>", "s": "<｜tool▁sep｜>"}

CH, MSG, END, ASSISTANT, JSON = "<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant", "<|constrain|>json"
FORMS = {"say": {"text": "text", "loud": "scalar"}, "add": {"a": "scalar", "b": "structure"}}

# format, text, content, calls
GOOD = [
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2.5, "x"]}}\n</tool_call>', "", [ADD]),
    ("llama3_json", '{"name": "add", "parameters": {"a": 1, "b": [2.5, "x"]}}', "", [ADD]),
    ("llama3_json", '<|python_tag|>{"type": "function", "name": "say", "parameters": {}}', "", [("say", {})]),
    (
        "llama3_json",
        '{"name": "add", "parameters": {"a": 1, "b": [2.5, "x"]}}; {"name": "say", "parameters": {}}',
        "",
        [ADD, ("say", {})],
    ),
    ("llama3_json", '{"title": "A story", "name": "add"}', '{"title": "A story", "name": "add"}', []),
    ("llama3_json", '{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', []),
    ("llama3_json", " Hello {you}", " Hello {you}", []),
    ("pythonic", "[add(a=1, b=[2.5, 'x']), say(text=\"it's “ü”\", loud=True)]", "", [ADD, SAY]),
    ("pythonic", "<|python_start|>[say()]<|python_end|>", "", [("say", {})]),
    ("pythonic", "[1, 2] is a list", "[1, 2] is a list", []),
    ("pythonic", "add(1)", "add(1)", []),
    ("mistral", 'Hm.[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": [2.5, "x"]}}]', "Hm.", [ADD]),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "say", "arguments": {}}, {"arguments": {}, "name": "say", "id": "123456789"}]',
        "",
        [("say", {}), ("say", {})],
    ),
    ("mistral_args", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": [2.5, "x"]}[TOOL_CALLS]say{}', "", [ADD, ("say", {})]),
    ("mistral_args", "[TOOL_CALLS]say[CALL_ID]abcdefghi[ARGS]{}", "", [("say", {})]),
    (
        "deepseek_v3",
        'Ok.\n{cs}{b}function{s}add\n```json\n{{"a": 1, "b": [2.5, "x"]}}\n```{e}\n'
        "{b}function{s}say\n```json\n{{}}\n```{e}{ce}".format(**DS),
        "Ok.",
        [ADD, ("say", {})],
    ),
    (
        "deepseek_v31",
        '{cs}{b}add{s}{{"a": 1, "b": [2.5, "x"]}}{e}{b}say{s}{{}}{e}{ce}'.format(**DS),
        "",
        [ADD, ("say", {})],
    ),
    ("gemma_tool_code", "Sure.\n```tool_code\nadd(a=1, b=[2.5, 'x'])\n```", "Sure.", [ADD]),
    ("gemma_tool_code", "```tool_code\n[print(say()), add(a=1, b=[2.5, 'x'])]\n```", "", [("say", {}), ADD]),
    ("gemma_tool_code", "```tool_code\nimport os\n```", "```tool_code\nimport os\n```", []),
    (
        "function_gemma",
        "<start_function_call>call:add{a:1,b:[2.5,<escape>x<escape>]}<end_function_call>",
        "",
        [ADD],
    ),
    ("gemma4", '<|tool_call>call:say{text:<|"|>it\'s “ü”<|"|>,loud:true}<tool_call|>', "", [SAY]),
    (
        "gemma4",
        '<|tool_call>call:say{a:{b:[],c:<|"|>{}"\\\n<|"|>},d:null}<tool_call|>',
        "",
        [("say", {"a": {"b": [], "c": '{}"\\\n'}, "d": None})],
    ),
]
GOOD += [
    (
        "qwen3_coder",
        "Hm.\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n"
        '[2.5, "x"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=say>\n</function>\n</tool_call>',
        "Hm.",
        [ADD, ("say", {})],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=say>\n<parameter=text>\nit's “ü”\n</parameter>\n<parameter=loud>\nTrue\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        [SAY],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=say><parameter=text>\n\n5\n  </x>\n\n\n</parameter></function></tool_call>",
        "",
        [("say", {"text": "\n5\n  </x>\n\n"})],
    ),
    (
        "glm45",
        "Hm.\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
        '<arg_value>[2.5, "x"]</arg_value>\n</tool_call>\n<tool_call>say\n</tool_call>',
        "Hm.",
        [ADD, ("say", {})],
    ),
    (
        "glm47",
        "<tool_call>say<arg_key>text</arg_key><arg_value>it's “ü”</arg_value><arg_key>loud</arg_key>"
        "<arg_value>true</arg_value></tool_call><tool_call>say</tool_call>",
        "",
        [SAY, ("say", {})],
    ),
    (
        "glm45",
        "<tool_call>say\n<arg_key>text</arg_key>\n<arg_value>null</arg_value>\n<arg_key>c</arg_key>\n<arg_value>Rome"
        "</arg_value>\n<arg_key>d</arg_key>\n<arg_value>NaN</arg_value>\n</tool_call>",
        "",
        [("say", {"text": "null", "c": "Rome", "d": "NaN"})],
    ),
    (
        "harmony",
        f"{CH}commentary{MSG}Let me add.{END}{ASSISTANT}{CH}commentary to=functions.add {JSON}{MSG}"
        '{"a": 1, "b": [2.5, "x"]}<|call|>',
        "Let me add.",
        [ADD],
    ),
    ("harmony", f"{CH}final{MSG}Hello\nsea.<|return|>", "Hello\nsea.", []),
    ("harmony", f" to=functions.say{CH}commentary json{MSG}{{}}", "", [("say", {})]),
    ("harmony", f"to=say{CH}commentary code{MSG}{{}}{END}", "", [("say", {})]),
    ("harmony", "Hello <b>you", "Hello <b>you", []),
]
BAD = [
    ("qwen3_coder", "<tool_call>\nadd\n</tool_call>", [], "<tool_call>\nadd\n</tool_call>"),
    (
        "qwen3_coder",
        "<tool_call><function=add><parameter=a>\n1",
        [("add", '{"a": 1')],
        "",
    ),
    (
        "qwen3_coder",
        "<tool_call><function=say><parameter=text>\nhel",
        [("say", '{"text": "hel"')],
        "",
    ),
    ("qwen3_coder", "<tool_call><function=add>oops</function></tool_call>", [("add", "oops</function>")], ""),
    ("glm45", "<tool_call>\n</tool_call>", [], "<tool_call>\n</tool_call>"),
    ("glm45", "<tool_call>add\n<arg_key>a</arg_key>1</tool_call>", [("add", "1")], ""),
    ("harmony", f"{CH}commentary to=functions.add{MSG}oops<|call|>", [("add", "oops")], ""),
    ("harmony", f"{CH}commentary to=functions.add", [], ""),
    ("llama3_json", '{"name": "add", "parameters": {"a": 1', [("add", '{"a": 1')], ""),
    ("llama3_json", '{"name": "add", "parameters": {"a": [1}}', [("add", '{"a": [1}}')], ""),
    ("pythonic", "[add(a=1, b=[2", [("add", '{"a": 1b=[2')], ""),
    ("pythonic", "[add(1)]", [("add", "{1)]")], ""),
    ("pythonic", "[add(a=oops(1))]", [("add", '{"a": oops(1)}')], ""),
    ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": "x\n', [("add", '{"a": "x')], ""),
    ("mistral", "[TOOL_CALLS] nothing", [], "[TOOL_CALLS] nothing"),
    ("mistral_args", '[TOOL_CALLS]add[ARGS]{"a": 1[TOOL_CALLS]say{}', [("add", '{"a": 1[TOOL_CALLS]say{}')], ""),
    ("mistral_args", "[TOOL_CALLS]add[ARGS]oops[TOOL_CALLS]say{}", [("add", "oops"), ("say", "{}")], ""),
    ("deepseek_v3", "{cs}{b}function{s}add\n```json\n{{]{e}{ce}".format(**DS), [("add", "{]")], ""),
    ("deepseek_v31", "{b}add{e}".format(**DS), [], "{b}add{e}".format(**DS)),
    ("gemma_tool_code", "```tool_code\nadd(a=1\n```", [("add", "{a=1")], ""),
    ("gemma4", "<|tool_call>call:say{text}<tool_call|>", [("say", "{text}")], ""),
    ("gemma4", "<|tool_call>oops<tool_call|>", [], "<|tool_call>oops<tool_call|>"),
    (
        "function_gemma",
        "<start_function_call>call:say{" + "a:{" * 40,
        [("say", '{"a": ' * 32 + '"' + "{a:" * 8 + '{"')],
        "",
    ),
]
NAMES = frozenset({"add", "say"})
TEMPLATES = {
    "hermes": "<tool_call>{{ x }}</tool_call>",
    "llama3_json": "<|start_header_id|>Environment: ipython<|python_tag|>",
    "pythonic": "[func_name1(params_name1=params_value1)]",
    "mistral": "[AVAILABLE_TOOLS][TOOL_CALLS]",
    "mistral_args": "[TOOL_CALLS]{{ name }}[ARGS]",
    "deepseek_v3": "{cs}{b}function{s}x\n```json\n".format(**DS),
    "deepseek_v31": "{cs}{b}x{s}".format(**DS),
    "gemma_tool_code": "```tool_code",
    "function_gemma": "<start_function_call>call:",
    "gemma4": "<|tool_call>call:",
    "qwen3_coder": "<tool_call>\n<function=x>\n<parameter=y>\nz\n</parameter>",
    "glm45": "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n",
    "glm47": "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>",
    "harmony": f"to=functions.x{CH}commentary json{MSG}<|call|>",
}


def read(name: str, pieces: list[str]) -> Answer:
    return read_answer(pieces, tools=TOOL_FORMATS[name], tool_names=NAMES, argument_forms=FORMS)


@pytest.mark.parametrize(("name", "text", "content", "calls"), GOOD)
def test_calls_are_read(name: str, text: str, content: str, calls: list[tuple[str, object]]):
    answer = read(name, [text])
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == calls
    assert answer.content == content


@pytest.mark.parametrize(("name", "text", "calls", "content"), BAD)
def test_what_is_written_wrongly_keeps_its_text(name: str, text: str, calls: list[tuple[str, str]], content: str):
    answer = read(name, [text])
    assert answer.named == calls
    assert answer.content == content


@pytest.mark.parametrize(("name", "text"), [case[:2] for case in GOOD + BAD])
@given(data=st.data())
def test_cuts_make_no_difference(name: str, text: str, data: st.DataObject):
    assert read(name, data.draw(cuts(text))) == read(name, [text]) == read(name, list(text))


@pytest.mark.parametrize("name", TOOL_FORMATS)
@given(data=st.data())
def test_no_text_breaks_a_reader(name: str, data: st.DataObject):
    marks = [*TOOL_FORMATS[name].marks, TOOL_FORMATS[name].shape.first, "add", "(", "call:", "```", "{", '"', "'", "\\"]
    words = [*marks, "}", "]", "[", ")", ",", ":", "=", "\n", "name", "arguments", " ", "1"]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=25)))
    assert read(name, data.draw(cuts(text))) == read(name, [text])


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_long_broken_calls_take_no_time(name: str):
    """Each reader looks at a character a bounded number of times; anything else would not come back."""
    shape = TOOL_FORMATS[name].shape
    pieces = [shape.first + "add" + shape.between, *['{"[(' + "'"] * 30_000]
    assert len(read(name, pieces).calls) <= 1


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_templates_tell_their_format(name: str, template: str):
    assert format_in(template) is TOOL_FORMATS[name]


def test_all_formats_have_a_template_here():
    assert TEMPLATES.keys() == TOOL_FORMATS.keys()


@pytest.mark.parametrize("template", ["{{ messages }}", "<tool_call>\n<function=x>{}</function>"])
def test_what_is_not_known_is_no_format(template: str):
    assert format_in(template) is None


def test_an_administrators_choice_comes_first():
    assert dialect_of("<tool_call>", tool_format="mistral").tools is TOOL_FORMATS["mistral"]


def test_mistrals_ids_are_nine_letters_and_digits():
    assert len(new_short_id()) == 9
    assert new_short_id().isalnum()
    reader = AnswerReader(tools=TOOL_FORMATS["mistral"])
    (start, *_) = reader.feed('[TOOL_CALLS][{"name": "f", "arguments": {}}]')
    assert len(start.id) == 9
