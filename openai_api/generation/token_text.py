"""Tokens as clients see them in logprobs: text, bytes and offsets; and the count of reasoning tokens."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence

from inference.client import TokenLogprob, TokensEvent
from inference.text.dialects.answer_reader import AnswerReader
from inference.text.model_text import ModelText
from openai_api.schemas.bodies import (
    ChatLogprobsBody,
    PromptLogprobBody,
    PromptLogprobsBody,
    TokenLogprobBody,
    TopLogprobBody,
)

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


def prompt_logprobs(text: ModelText, tokens: Sequence[TokenLogprob | None]) -> PromptLogprobsBody:
    """Return prompt logprobs in vLLM's form: per token the most likely ones and itself by id, null for the first."""
    return [None if token is None else _by_id(text, token) for token in tokens]


def _by_id(text: ModelText, token: TokenLogprob) -> dict[str, PromptLogprobBody]:
    top = [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(token.top, 1)]
    return {
        str(token_id): {"logprob": finite(logprob), "rank": rank, "decoded_token": text.token_text(token_id)}
        for token_id, logprob, rank in (*top, (token.token_id, token.logprob, token.rank))
    }


def chat_logprobs(text: ModelText, tokens: tuple[TokenLogprob, ...]) -> ChatLogprobsBody:
    return {"content": [token_logprob(text, token) for token in tokens], "refusal": None}


class TextOffsets:
    """Compute where each token begins in the text, in characters, although a character may span tokens."""

    def __init__(self, text: ModelText, *, skip_special_tokens: bool = True) -> None:
        self._text = text
        self._skipped = text.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def next(self, token_id: int) -> int:
        offset = self._length
        if token_id in self._skipped:  # special tokens are not part of the text
            return offset
        self._length += len(self._decoder.decode(self._text.token_bytes(token_id)))
        return offset


class ReasoningTokens:
    """Count the reasoning tokens of one choice. Reasoning comes first, so while it lasts all tokens belong to it."""

    def __init__(self, text: ModelText) -> None:
        self.count = 0
        self._text = text
        self._num_tokens = 0
        self._num_characters = 0
        self._is_settled = False

    def note(self, event: TokensEvent, reader: AnswerReader) -> None:
        """Count an event after ``reader`` was fed its text."""
        if self._is_settled:
            return
        before, self._num_characters = self._num_characters, self._num_characters + len(event.text)
        if reader.reasoning_end:
            self.count = self._num_tokens + self._before(reader.reasoning_end - before, event)
            self._is_settled = True
        self._num_tokens += len(event.token_ids)
        if reader.is_reasoning:
            self.count = self._num_tokens

    def _before(self, end: int, event: TokensEvent) -> int:
        """Return the number of the event's tokens that begin before character ``end`` of its text."""
        if len(event.token_ids) == 1:
            return 1
        offsets = TextOffsets(self._text, skip_special_tokens=False)
        return sum(offsets.next(token_id) < end for token_id in event.token_ids)
