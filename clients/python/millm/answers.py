"""Answers of chats, whole or streamed, with the receipt of what steered them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from openai import Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk


@dataclass(frozen=True)
class SiteEffect:
    """What steering did at one site.

    ``tokens``: tokens in scope. ``changed_share``: share of them whose residual changed. ``mean_change``: mean of
    ``|h' - h| / |h|`` over them.
    """

    site: str
    tokens: int
    changed_share: float
    mean_change: float


@dataclass(frozen=True)
class Receipt:
    """The server's account of what steered an answer. ``applied`` and ``expected`` count tokens times sites.

    ``profile`` is ``name@version``, ``inline`` for edits of the request, or None if only policies steered.
    ``raw`` is the whole object as the server sent it.
    """

    profile: str | None
    fingerprint: str
    policies: tuple[str, ...]
    intensity: float
    applied: int
    expected: int
    sites: tuple[SiteEffect, ...]
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, millm: Mapping[str, Any] | None) -> Receipt | None:
        """Return the receipt in an answer's ``millm`` object, None if nothing steered."""
        if not millm or "fingerprint" not in millm:
            return None
        steering = millm["steering"]
        return cls(
            profile=millm["profile"],
            fingerprint=millm["fingerprint"],
            policies=tuple(millm["policies"]),
            intensity=millm["intensity"],
            applied=steering["applied"],
            expected=steering["expected"],
            sites=tuple(
                SiteEffect(one["site"], one["tokens"], one["changed_share"], one["mean_change"])
                for one in steering["sites"]
            ),
            raw=millm,
        )


@dataclass(frozen=True)
class Answer:
    """An answer. ``texts`` has one text for each of the request's ``n``; ``text`` is the first.

    ``raw`` is the answer as OpenAI's client returns it.
    """

    text: str
    texts: tuple[str, ...]
    receipt: Receipt | None
    finish_reason: str
    raw: ChatCompletion = field(repr=False)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def read(cls, completion: ChatCompletion) -> Answer:
        texts = tuple(choice.message.content or "" for choice in completion.choices)
        reason = completion.choices[0].finish_reason
        return cls(texts[0], texts, Receipt.read(_millm(completion)), reason, completion)


class AnswerStream:
    """Pieces of an answer's text as they are generated. Iterate over it, once.

    Afterwards ``text`` has the whole text, and ``receipt`` what steered it. Close it, or use it as a context manager,
    to end the request early.
    """

    def __init__(self, chunks: Stream[ChatCompletionChunk]) -> None:
        self._chunks = chunks
        self.text = ""
        self.receipt: Receipt | None = None
        self.finish_reason: str | None = None

    def __iter__(self) -> Iterator[str]:
        for chunk in self._chunks:
            self.receipt = Receipt.read(_millm(chunk)) or self.receipt
            for choice in chunk.choices:
                self.finish_reason = choice.finish_reason or self.finish_reason
                if choice.delta.content:
                    self.text += choice.delta.content
                    yield choice.delta.content

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the request if it is still running."""
        self._chunks.close()


def _millm(body: ChatCompletion | ChatCompletionChunk) -> Mapping[str, Any] | None:
    return (body.model_extra or {}).get("millm")
