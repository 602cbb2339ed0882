"""/v1/messages/batches: request and answers, in Anthropic's form."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.http.errors import invalid
from openai_api.schemas.base import ListQuery, Part, RequestSchema

MAX_REQUESTS = 50_000  # lines of a batch
MAX_LISTED = 1_000

CustomId = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class BatchedMessage(Part):
    """``params`` is a request to /v1/messages. It is validated when it is processed."""

    custom_id: CustomId
    params: dict[str, Any]


class MessageBatchRequest(RequestSchema):
    requests: list[BatchedMessage] = Field(min_length=1, max_length=MAX_REQUESTS)

    TEXTS: ClassVar[tuple[str, ...]] = ()

    def check_together(self) -> None:
        super().check_together()
        seen: set[str] = set()
        for place, request in enumerate(self.requests):
            if request.custom_id in seen:
                param = f"requests[{place}].custom_id"
                raise invalid(f"`{param}` must be unique, got `{request.custom_id}` twice.", param=param)
            seen.add(request.custom_id)

    def parameters(self) -> dict[str, Any]:
        """Return the number of requests for the log; the requests themselves are logged when they are answered."""
        return {"requests": len(self.requests)}


class MessageBatchQuery(ListQuery):
    limit: int | None = Field(None, ge=1, le=MAX_LISTED)
    after_id: str | None = Field(None, max_length=64, pattern=r"^[^\x00]*$")
    before_id: str | None = Field(None, max_length=64, pattern=r"^[^\x00]*$")


class MessageBatchCounts(TypedDict):
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatchBody(TypedDict):
    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None
    results_url: str | None


class MessageBatchListBody(TypedDict):
    data: list[MessageBatchBody]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageBatchDeletedBody(TypedDict):
    id: str
    type: Literal["message_batch_deleted"]
