"""Convert request fields to the engine's sampling parameters, validated against the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from django.conf import settings

from inference.client import SamplingParams
from inference.registry.model_card import ModelCard
from inference.text.grammar import Grammar, GrammarError
from inference.text.model_text import ModelText
from openai_api.http.errors import context_length_exceeded, invalid
from openai_api.schemas.generation import DrawingSchema, SamplingSchema
from openai_api.schemas.structured import GrammarSpec

DEFAULTABLE = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def sampling_params(
    request: SamplingSchema, model: ModelCard, max_tokens: int, *, stop: tuple[str, ...] = ()
) -> SamplingParams:
    """Return the request's values, else the model's defaults, else the engine's. Raises MillmError 400.

    ``stop``: strings that end the answer beside those of the request.
    """
    check_token_ids(request.stop_token_ids or (), model.vocab_size, param="stop_token_ids")
    check_token_ids(request.allowed_token_ids or (), model.vocab_size, param="allowed_token_ids")
    return SamplingParams(
        max_tokens=max_tokens,
        logit_bias=_logit_bias(request, model.vocab_size),
        bad_words=_bad_words(request.bad_words or (), model.text),
        allowed_token_ids=None if request.allowed_token_ids is None else tuple(request.allowed_token_ids),
        min_tokens=_min_tokens(request, max_tokens),
        seed=request.seed,
        stop=(*(request.stop or ()), *stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        include_stop=bool(request.include_stop_str_in_output),
        ignore_eos=bool(request.ignore_eos),
        skip_special_tokens=request.skip_special_tokens is not False,
        prompt_logprobs=request.prompt_logprobs,
        **_numbers(request, model),
    )


def completion_budget(
    asked: int | None, prompt_tokens: int, model: ModelCard, *, param: str, clamps: bool = False
) -> int:
    """Return how many tokens may be generated. Raises MillmError 400 when the prompt leaves no space.

    ``clamps``, or the setting of that name: reduce a larger limit to the remaining context.
    """
    limit = model.max_model_len
    if asked is not None and (clamps or settings.MILLM_CLAMP_MAX_TOKENS):
        asked = min(asked, max(1, limit - prompt_tokens))
    needed = 1 if asked is None else asked
    if prompt_tokens + needed > limit:
        raise context_length_exceeded(limit=limit, prompt=prompt_tokens, completion=needed, param=param)
    if asked is not None:
        return asked
    default: int = model.record.default_sampling.get("max_tokens") or settings.MILLM_MAX_TOKENS_DEFAULT
    return min(default, limit - prompt_tokens)


def check_token_ids(ids: Iterable[int], vocab_size: int, *, param: str, code: str = "invalid_value") -> None:
    """Refuse ids outside the vocabulary, which would abort the CUDA context."""
    worst = max(ids, default=0)
    if worst >= vocab_size:
        raise invalid(
            f"`{param}` must contain token ids below {vocab_size}, the size of the vocabulary, got {worst}.",
            param=param,
            code=code,
        )


def _numbers(request: DrawingSchema, model: ModelCard) -> dict[str, Any]:
    defaults = model.record.default_sampling
    asked = {name: getattr(request, name) for name in DEFAULTABLE}
    values = {name: defaults.get(name) if value is None else value for name, value in asked.items()}
    if values["top_k"] is not None:
        values["top_k"] = min(max(0, values["top_k"]), model.vocab_size)
    return {name: value for name, value in values.items() if value is not None}


def _logit_bias(request: DrawingSchema, vocab_size: int) -> tuple[tuple[int, float], ...]:
    bias = {int(token): value for token, value in (request.logit_bias or {}).items()}
    check_token_ids(bias, vocab_size, param="logit_bias")
    return tuple(bias.items())


def _min_tokens(request: DrawingSchema, max_tokens: int) -> int:
    least = request.min_tokens or 0
    if least > max_tokens:
        raise invalid(
            f"`min_tokens` must be at most {max_tokens}, the maximum number of generated tokens, got {least}.",
            param="min_tokens",
        )
    return least


def _bad_words(words: Iterable[str], text: ModelText) -> tuple[tuple[int, ...], ...]:
    """Return each word at the start of a text and after a space: these are different tokens for most tokenizers."""
    found: dict[tuple[int, ...], None] = {}
    for place, word in enumerate(words):
        bare = word.lstrip()
        if not bare:
            raise invalid(f"`bad_words[{place}]` must not be blank.", param=f"bad_words[{place}]")
        for form in (bare, f" {bare}"):
            found[tuple(text.encode_plain(form))] = None
    return tuple(ids for ids in found if ids)


async def constrained(
    spec: GrammarSpec | None, model: ModelCard, params: Iterable[SamplingParams]
) -> list[SamplingParams]:
    """Return ``params`` with the request's grammar. Raises MillmError 400, or 503 when too many are being compiled."""
    if spec is None:
        return list(params)
    assert model.grammars is not None, "only generation models get here"
    try:
        await model.grammars.prepare(spec.grammar)
    except GrammarError as error:
        raise error.at(spec.param, is_schema=is_json(spec.grammar)) from None
    return [dataclasses.replace(one, grammar=spec.grammar) for one in params]


def is_json(grammar: Grammar) -> bool:
    return grammar.kind in {"json_object", "json_schema", "composed"}
