"""What came of a request, its log row, and what of a row may be kept without texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from inference.client import Usage

if TYPE_CHECKING:
    from openai_api.generation.token_record import TokenRecord
    from openai_api.models import RequestLog
    from openai_api.schemas.bodies import SiteEffectBody
    from steering.watch.watcher import WatchMatch

Source = Literal["client", "console", "job"]
"""Who made a request: a program over the API, a page of the console under its session, or a job such as a batch."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a generation or another computation produced, for the log.

    ``completion`` is JSON for several choices. ``findings`` of watch rules become rows of their own. ``tokens`` has a
    record for each generation whose per-token data was requested. ``media``: seconds of audio, characters, images,
    steps and seconds of video.
    """

    usage: Usage = field(default_factory=Usage)
    completion: str = ""
    finish_reason: str = ""
    steering_expected: int = 0
    steering_applied: int = 0
    steering_effects: tuple[SiteEffectBody, ...] = ()
    queue_ms: float | None = None
    ttft_ms: float | None = None
    submitted_at: float | None = None  # of time.monotonic(); the times above and below are counted from it
    token_ms: tuple[int, ...] = ()
    findings: tuple[WatchMatch, ...] = ()
    tokens: tuple[TokenRecord, ...] = ()
    media: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class LogEntry:
    """A log row, made by :meth:`openai_api.http.call.Call.log_entry`. Texts are raw until the log writer stores it.

    ``prompt`` is a text, or a JSON value (a chat's messages, several prompts, token ids) of about ``prompt_size``
    characters. See :class:`Outcome` for the other fields.
    """

    id: str
    created_at: datetime
    endpoint: str
    client_address: str | None
    api_key_id: int | None = None
    source: Source = "client"
    key_prefix: str = ""  # prefix of the secret, also of a refused one
    model: str = ""
    profile: str = ""
    fingerprint: str = ""
    policies: str = ""
    steering_expected: int = 0
    steering_applied: int = 0
    steering_effects: list[dict[str, Any]] = field(default_factory=list)
    stream: bool = False
    status: int = 0
    error_code: str = ""
    error_message: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    token_ms: list[int] = field(default_factory=list)
    user: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    prompt: object = ""
    prompt_size: int = 0
    completion: str = ""
    findings: tuple[WatchMatch, ...] = ()
    tokens: tuple[TokenRecord, ...] = ()
    media: dict[str, float] = field(default_factory=dict)
    log_content: str = ""  # what the key lets the log keep of texts; "" for the server's setting
    is_metered: bool = False  # counts in its key's daily usage, and is not yet written there
    is_counted: bool = False  # counted as the request that created it; its tokens still count

    journal_number: int = 0  # number in this process's journal; 0: not in it
    is_written: bool = False  # whether it has a row

    @property
    def num_characters(self) -> int:
        return self.prompt_size + len(self.completion) + sum(record.size for record in self.tokens)

    def drop_texts(self) -> None:
        self.prompt = self.completion = ""
        self.prompt_size = 0
        self.tokens = ()
        self.parameters = {"dropped": "texts and parameters"}


LEFT_OUT = "left out"
TOKENS = "token_record"  # among the parameters, so that whatever keeps, hides and prunes these does it with them
TEXT_FIELDS = ("prompt", "completion")
_LEVELS = ("full", "hash", "none")


def stricter(one: str, other: str) -> str:
    """Return which of `full`, `hash`, `none` keeps less; "" counts as unset."""
    return max(one or "full", other or "full", key=_LEVELS.index)


def bare_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers and switches as they are, and only the names of fields that may hold a client's text."""
    return {name: value if isinstance(value, int | float | bool) else LEFT_OUT for name, value in parameters.items()}


def quotes_client(status: int) -> bool:
    """Return whether the error message may quote the request."""
    return 400 <= status < 500


def without_texts(row: RequestLog) -> RequestLog:
    """Return the row as users without access to texts see it. Deferred texts are not fetched."""
    row.prompt = row.completion = ""
    row.parameters = bare_parameters(row.parameters)
    if quotes_client(row.status):
        row.error_message = ""
    return row
