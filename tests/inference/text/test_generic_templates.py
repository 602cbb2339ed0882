"""Generic chat templates for base models that come without one."""

from __future__ import annotations

import pickle

import pytest

from inference.text.chat_template import ChatTemplate, ChatTemplateError
from inference.text.generic_templates import GENERIC_TEMPLATES, template_source, template_stop
from inference.text.model_text import ModelText
from tests.builders import build_tokenizer

CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi {{ 7 * 7 }}"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]
RENDERED = {
    "chatml": "<s><|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi {{ 7 * 7 }}<|im_end|>\n"
    "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    "plain": "<s>System: Be kind.\n\nUser: Hi {{ 7 * 7 }}\n\nAssistant: Hello.\n\nUser: Bye\n\nAssistant:",
    "alpaca": "<s>Be kind.\n\n### Instruction:\nHi {{ 7 * 7 }}\n\n### Response:\nHello.\n\n### Instruction:\nBye\n\n"
    "### Response:\n",
    "vicuna": "<s>Be kind.\n\nUSER: Hi {{ 7 * 7 }}\nASSISTANT: Hello.\nUSER: Bye\nASSISTANT:",
}


@pytest.mark.parametrize("name", GENERIC_TEMPLATES)
def test_what_a_template_writes(name: str):
    template = ChatTemplate(template_source(name), {"bos_token": "<s>"})
    assert template.render(CHAT, add_generation_prompt=True) == RENDERED[name]
    assert ChatTemplate(template_source(name)).render(CHAT, add_generation_prompt=True) == RENDERED[name][3:]


@pytest.mark.parametrize("name", GENERIC_TEMPLATES)
def test_a_stop_string_ends_an_answer_before_the_next_message(name: str):
    template = ChatTemplate(template_source(name))
    before = template.render(CHAT[:2], add_generation_prompt=True)
    after = template.render(CHAT, add_generation_prompt=False)
    continuation = after.removeprefix(before)
    assert continuation != after
    ends = [continuation.find(stop) for stop in template_stop(name) if stop in continuation]
    assert continuation[: min(ends)].strip() == "Hello."


def test_other_templates_are_used_as_they_are():
    assert template_source("{{ messages[0].content }}") == "{{ messages[0].content }}"
    assert template_stop("{{ messages[0].content }}") == ()


def test_a_model_without_a_template_is_given_one_by_name():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    bare = ModelText(tokenizer, max_model_len=512)
    with pytest.raises(
        ChatTemplateError, match=r"a Jinja template, or a generic one \(chatml, plain, alpaca, vicuna\)"
    ):
        bare.render_chat(CHAT)
    text = ModelText(tokenizer, max_model_len=512, chat_template="plain")
    copy = pickle.loads(pickle.dumps(text))  # noqa: S301 - made above
    assert text.stop_strings == copy.stop_strings == ("\nUser:", "\nSystem:")
    assert copy.render_chat(CHAT) == text.render_chat(CHAT)
    assert "Assistant: Hello." in text.decode(text.render_chat(CHAT))
