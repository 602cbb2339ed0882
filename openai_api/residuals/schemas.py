"""POST /v1/residuals: request and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from inference.captures import Pooling
from inference.interventions import Site, SiteKind
from openai_api.http.errors import invalid
from openai_api.schemas.base import Part
from openai_api.schemas.bodies import MillmBody, UsageBody
from openai_api.schemas.features import CapturedTextsRequest

MAX_SITES = 64
MAX_LAYER = 10_000
ResponseFormat = Literal["json", "safetensors", "npz"]


class SiteField(Part):
    """A layer and the place in it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    layer: int = Field(ge=0, le=MAX_LAYER)
    site: SiteKind = "resid_post"

    @property
    def place(self) -> Site:
        return Site(self.layer, self.site)


class ResidualsRequest(CapturedTextsRequest):
    sites: list[SiteField] = Field(min_length=1, max_length=MAX_SITES, description="Where to read, each place once.")
    pooling: Pooling | None = Field(
        None, description="One vector for each input: of its tokens' residuals, or of the last. Default: none."
    )
    response_format: ResponseFormat | None = Field(
        None, description="Default: json. The others are files, sent as application/octet-stream."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Of JSON. base64: little-endian float32 values. Default: float."
    )

    REMEDIES: ClassVar[Mapping[str, str]] = {
        **CapturedTextsRequest.REMEDIES,
        "stream": "Use `response_format`: files are sent in pieces.",
    }

    def check_together(self) -> None:
        super().check_together()
        seen: set[Site] = set()
        for number, field in enumerate(self.sites):
            if field.place in seen:
                raise invalid(f"`sites[{number}]` is listed twice: {field.place.label}.", param=f"sites[{number}]")
            seen.add(field.place)
        if self.encoding_format is not None and self.response_format not in {None, "json"}:
            message = f"`encoding_format` applies to JSON only, got `response_format` `{self.response_format}`."
            raise invalid(message, param="encoding_format")


class ResidualBody(TypedDict):
    """Residuals at a site: ``values`` of the ``shape`` [tokens, width], or [width] if pooled; or as base64."""

    layer: int
    site: str
    shape: list[int]
    values: list[list[float]] | list[float] | str


class InputResidualsBody(TypedDict):
    """``positions``: places of the read tokens in ``token_ids``, which holds the input and its completion."""

    index: int
    token_ids: list[int]
    positions: list[int]
    completion: str | None
    residuals: list[ResidualBody]


class ResidualsBody(TypedDict):
    object: Literal["list"]
    model: str
    stage: Literal["pre", "post"]
    pooling: Pooling
    data: list[InputResidualsBody]
    usage: UsageBody
    millm: NotRequired[MillmBody]
