"""What the playground asks about an answer that is there: request and answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.schemas.bodies import MillmBody
from openai_api.schemas.drawing import TokenId
from openai_api.schemas.steered import SteeredSchema

MAX_PROMPT_TOKENS = 1_000_000  # the model's context is less
MAX_ANSWER_TOKENS = 4096


class InspectionRequest(SteeredSchema):
    """The prompt and the answer as tokens, with what steered when it was written."""

    kind: Literal["chat", "completion"]
    prompt_ids: list[TokenId] = Field(min_length=1, max_length=MAX_PROMPT_TOKENS)
    completion_ids: list[TokenId] = Field(min_length=1, max_length=MAX_ANSWER_TOKENS)
    sae: str | None = Field(None, min_length=1, max_length=200)
    feature: int | None = Field(None, ge=0, lt=2**31)

    TEXTS: ClassVar[tuple[str, ...]] = ("prompt_ids", "completion_ids")


class InspectionBody(TypedDict):
    """Each list has an entry for each token of the answer.

    ``kl`` is KL(steered || unsteered) in nats over the whole vocabulary, null where nothing steered. ``values`` are the
    feature's, null where none was asked for, and at a token that the model never read: the last.
    """

    kl: list[float] | None
    logprobs: list[float]
    unsteered_logprobs: list[float]
    values: list[float | None] | None
    millm: MillmBody | None
