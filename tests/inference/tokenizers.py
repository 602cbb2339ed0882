"""Small tokenizers of the kinds that models ship, and chat templates in their families' styles."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXT = (
    "The cat sat by the sea and the sun was warm. You are a helpful assistant. What is the weather today?",
    "user assistant system model tool Tell me a story. Ä ö ü ß é 你好 世界 😀 “quotes” 0123456789 {}[]\"':,",
)

LLAMA_TEMPLATE = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' ~ (call.arguments | tojson) ~ "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

QWEN_TEMPLATE = """{%- set ns = namespace(last_query=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\nReturn <tool_call></tool_call><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and message.reasoning_content is defined %}
            {{- '<|im_start|>assistant\\n<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' }}
        {%- endif %}
        {{- content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

GEMMA_TEMPLATE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
"""

LIST_ONLY_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}"
)


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with BOS, every marker special."""
    markers = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    backend = byte_level(markers)
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    return _fast(backend, LLAMA_TEMPLATE, bos_token=markers[0], eos_token=markers[1], extra=markers[2:])


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE without BOS; ``<think>`` and tool markers are added tokens that are not special."""
    backend = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    plain = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<unseen>"]
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return _fast(backend, QWEN_TEMPLATE, eos_token="<|im_end|>", extra=["<|im_start|>"])


def gemma_tokenizer() -> PreTrainedTokenizerFast:
    """SentencePiece-like BPE with byte fallback and ``▁`` for spaces."""
    markers = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[*markers, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    backend.train_from_iterator(TEXT * 4, trainer)
    backend = _without_byte_specials(backend, markers)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return _fast(
        backend, GEMMA_TEMPLATE, bos_token="<bos>", eos_token="<eos>", extra=["<start_of_turn>", "<end_of_turn>"]
    )


def byte_level(markers: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=markers,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT * 4, trainer)
    return backend


def _without_byte_specials(backend: Tokenizer, markers: list[str]) -> Tokenizer:
    """Byte tokens belong to the vocabulary, but are not special."""
    import json

    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in markers]
    return Tokenizer.from_str(json.dumps(state))


def _fast(backend: Tokenizer, template: str, *, extra: list[str], **names: Any) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, additional_special_tokens=extra, **names)
    tokenizer.chat_template = template
    return tokenizer


def metaspace_tokenizer(prepend_scheme: str) -> PreTrainedTokenizerFast:
    """SentencePiece's word mark before the first word of the text (``first``), or of every stretch (``always``)."""
    markers = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    alphabet = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ<>[]|/_.,!? \n▁"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=markers, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["hello world the cat sat by the sea" * 4], trainer)
    template = "{% for m in messages %}{{ bos_token }}[INST]{{ m.content }}[/INST]{% endfor %}"
    return _fast(backend, template, bos_token="<s>", eos_token="</s>", extra=["[INST]", "[/INST]"])


def greedy_space_tokenizer() -> PreTrainedTokenizerFast:
    """Markers that swallow the spaces beside them, as Phi's do."""
    backend = byte_level(["<|endoftext|>"])
    backend.add_special_tokens(
        [AddedToken("<|user|>", rstrip=True, special=True), AddedToken("<|end|>", lstrip=True, special=True)]
    )
    template = "{% for m in messages %}<|user|>\n  {{ m.content }}  \n<|end|>{% endfor %}"
    return _fast(backend, template, eos_token="<|endoftext|>", extra=[])
