"""/v1/tokenize, /v1/detokenize and /v1/tokenizer_info."""

from __future__ import annotations

from django.http.response import HttpResponseBase

from inference.registry.model_card import ModelCard
from inference.text.model_text import PromptTooLongError
from openai_api.generation.prompt import off_loop, prompt_ids
from openai_api.generation.sampling import check_token_ids
from openai_api.generation.target import resolve_any
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.schemas.tokens import (
    DetokenizeBody,
    DetokenizeRequest,
    TokenizeBody,
    TokenizeRequest,
    TokenizerInfoBody,
)

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


async def tokenize(call: Call) -> HttpResponseBase:
    """Return the token ids that the model would read, the same that other endpoints count."""
    request = call.read(TokenizeRequest)
    model = await resolve_any(call, request.model)
    is_chat = request.messages is not None
    ids = await (prompt_ids(model.text, request.chat) if is_chat else _text_ids(model, request))
    body: TokenizeBody = {
        "count": len(ids),
        "max_model_len": model.max_model_len,
        "tokens": ids,
        "token_strs": await off_loop(lambda: [model.text.token_text(one) for one in ids], size=len(ids))
        if request.return_token_strs
        else None,
    }
    return json_response(body)


async def detokenize(call: Call) -> HttpResponseBase:
    request = call.read(DetokenizeRequest)
    model = await resolve_any(call, request.model)
    check_token_ids(request.tokens, model.vocab_size, param="tokens", code="invalid_prompt")
    text = await off_loop(lambda: model.text.decode(request.tokens), size=len(request.tokens))
    body: DetokenizeBody = {"prompt": text}
    return json_response(body)


async def tokenizer_info(call: Call) -> HttpResponseBase:
    """Describe the tokenizer of the model in the query."""
    model = await resolve_any(call, call.request.GET.get("model"))
    facts = model.text.tokenizer
    body: TokenizerInfoBody = {
        "model": model.record.name,
        "tokenizer_class": facts.kind,
        "vocab_size": facts.vocab_size,
        "model_max_length": model.max_model_len,
        "chat_template": facts.templates.get("default"),
    }
    for name in SPECIAL_TOKENS:
        if name in facts.tokens:
            body[name] = facts.tokens[name]  # type: ignore[literal-required]  # one of the keys
            body[f"{name}_id"] = facts.ids[name]  # type: ignore[literal-required]
    if "tool_use" in facts.templates:
        body["tool_template"] = facts.templates["tool_use"]
    return json_response(body)


async def _text_ids(model: ModelCard, request: TokenizeRequest) -> list[int]:
    prompt = request.prompt or ""
    try:
        return await off_loop(
            lambda: model.text.encode(prompt, adds_special=request.add_special_tokens is not False), size=len(prompt)
        )
    except PromptTooLongError as error:
        raise error.with_param("prompt") from None
