"""/v1/batches: request and answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.schemas.base import Metadata, RequestSchema
from openai_api.schemas.files import ExpiresAfter

BatchEndpoint = Literal[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
    "/v1/decisions",
    "/v1/rerank",
    "/v1/score",
    "/v1/messages",
    "/v1/images/generations",
    "/v1/videos",
]
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class BatchRequest(RequestSchema):
    input_file_id: str = Field(max_length=64, description="A JSON lines file with the purpose `batch`.")
    endpoint: BatchEndpoint
    completion_window: str = Field(
        pattern=r"^(?:[1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$",
        description="`24h`, or another number of hours from 1 to 168. Requests that have not finished by then expire.",
    )
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    @property
    def hours(self) -> int:
        return int(self.completion_window.removesuffix("h"))


class BatchErrorBody(TypedDict):
    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrorsBody(TypedDict):
    object: Literal["list"]
    data: list[BatchErrorBody]


class BatchCountsBody(TypedDict):
    total: int
    completed: int
    failed: int


class BatchInputDetails(TypedDict):
    cached_tokens: int


class BatchOutputDetails(TypedDict):
    reasoning_tokens: int


class BatchUsageBody(TypedDict):
    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails
    total_tokens: int


class BatchBody(TypedDict):
    id: str
    object: Literal["batch"]
    endpoint: BatchEndpoint
    model: str | None
    errors: BatchErrorsBody | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCountsBody
    usage: BatchUsageBody
    metadata: dict[str, str] | None


class BatchListBody(TypedDict):
    object: Literal["list"]
    data: list[BatchBody]
    first_id: str | None
    last_id: str | None
    has_more: bool
