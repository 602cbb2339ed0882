"""Fields that request SAE activations at the tokens of a prompt or of an answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from openai_api.schemas.base import Part

MAX_TOP_K = 100
MAX_FEATURES = 256
MAX_RANGES = 64
MAX_DIRECTIONS = 64
DEFAULT_TOP_K = 10
_PLACE = 2**31

Ends = tuple[int, int | None]


def _ends(value: Any) -> Any:
    """Parse ``[start, end]``, end exclusive; the end may be null."""
    if (
        isinstance(value, list)
        and len(value) == 2
        and type(value[0]) is int
        and (value[1] is None or type(value[1]) is int)
        and 0 <= value[0] < (_PLACE if value[1] is None else min(value[1], _PLACE))
    ):
        return tuple(value)
    raise PydanticCustomError("invalid_range", "must be [start, end] with 0 <= start < end; end may be null")


Range = Annotated[Ends, BeforeValidator(_ends, json_schema_input_type=list[int | None])]


class TokenSelection(Part):
    """Which tokens are read, and on which side of the edits."""

    stage: Literal["pre", "post"] | None = Field(
        None, description="Read before or after steering at the site. Default: after."
    )
    phase: Literal["prompt", "completion", "both"] | None = Field(None, description="Default: both.")
    ranges: list[Range] | None = Field(
        None,
        min_length=1,
        max_length=MAX_RANGES,
        description="Token ranges [start, end), counted from the prompt's first token.",
    )
    special_tokens: bool | None = Field(None, description="Include special tokens. Default: false.")


class DirectionField(Part):
    """A vector that is read: the value at a token is ``h v + bias``, or its logistic function."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    name: str | None = Field(None, max_length=100, description="Repeated in the answer.")
    set: str | None = Field(None, max_length=100, description="A vector set; otherwise `values`.")
    layer: int | None = Field(None, ge=0, lt=_PLACE, description="Of a set with several vectors, or of `values`.")
    site: str | None = Field(None, max_length=20, description="Default: `resid_post`, or the set's.")
    values: list[float] | str | None = Field(None, description="The vector, or its float32 values as base64.")
    bias: float = 0.0
    sigmoid: bool = Field(default=False, description="Of a logistic probe: return the probability.")


class CaptureFields(TokenSelection):
    sae: str | None = Field(None, min_length=1, max_length=200, description="Required if the model has several SAEs.")
    features: list[Annotated[int, Field(ge=0, lt=_PLACE)]] | None = Field(
        None, min_length=1, max_length=MAX_FEATURES, description="Return only these features, with their exact values."
    )
    top_k: int | None = Field(
        None, ge=1, le=MAX_TOP_K, description=f"Number of strongest features per token. Default: {DEFAULT_TOP_K}."
    )


class ActivationsOptions(CaptureFields):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def _options(value: Any) -> Any:
    """Map ``true`` to the defaults and ``false`` to none."""
    return ({} if value else None) if isinstance(value, bool) else value


ActivationsOptionsOrFlag = Annotated[
    ActivationsOptions | None, BeforeValidator(_options, json_schema_input_type=ActivationsOptions | bool | None)
]
