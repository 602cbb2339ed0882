"""Tokens as clients see them in logprobs: text, bytes, and where in the text they stand."""

from __future__ import annotations

import codecs
import math

from inference.client import TokenLogprob
from inference.text import ModelText
from openai_api.schemas.bodies import ChatLogprobsBody, TokenLogprobBody, TopLogprobBody

VERY_UNLIKELY = -9999.0  # OpenAI's number for minus infinity, which JSON lacks


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else VERY_UNLIKELY


def top_logprob(text: ModelText, token_id: int, logprob: float) -> TopLogprobBody:
    raw = text.token_bytes(token_id)
    return {"token": text.token_text(token_id), "logprob": finite(logprob), "bytes": list(raw)}


def token_logprob(text: ModelText, token: TokenLogprob) -> TokenLogprobBody:
    return {
        **top_logprob(text, token.token_id, token.logprob),
        "top_logprobs": [top_logprob(text, token_id, logprob) for token_id, logprob in token.top],
    }


def chat_logprobs(text: ModelText, tokens: tuple[TokenLogprob, ...]) -> ChatLogprobsBody:
    return {"content": [token_logprob(text, token) for token in tokens], "refusal": None}


class TextOffsets:
    """Where each token of a text begins, in characters, although a character may be spread over tokens."""

    def __init__(self, text: ModelText) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def next(self, token_id: int) -> int:
        offset = self._length
        if token_id in self._text.special_token_ids:  # they are not part of the text
            return offset
        self._length += len(self._decoder.decode(self._text.token_bytes(token_id)))
        return offset
