"""One request's row of the log while the request runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from openai_api.models import RequestLog

if TYPE_CHECKING:
    from openai_api.generation.token_record import TokenRecord
    from steering.watch.watcher import WatchMatch

Source = Literal["client", "console", "job"]
"""Who made a request: a program over the API, a page of the console under its session, or a job such as a batch."""


@dataclass(slots=True)
class LogEntry:
    """Filled in as the request proceeds; written once by the log writer. Texts are raw until then.

    ``prompt`` is a text, or a JSON value (a chat's messages, several prompts, token ids) of about ``prompt_size``
    characters; ``completion`` is JSON for several choices. ``findings`` of watch rules become rows of their own.
    ``tokens`` has a record for each generation of the request whose tokens it asked about.
    """

    id: str
    created_at: datetime
    endpoint: str
    client_address: str | None
    api_key_id: int | None = None
    source: Source = "client"
    key_prefix: str = ""  # of the secret that was sent, also of one that was refused
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
    user: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    prompt: object = ""
    prompt_size: int = 0
    completion: str = ""
    findings: tuple[WatchMatch, ...] = ()
    tokens: tuple[TokenRecord, ...] = ()
    log_content: str = ""  # what the key wants kept of texts; "" for the server's setting
    is_metered: bool = False  # whether it counts in its key's day, and has not been written down there
    is_counted: bool = False  # whether the request that ordered it counts in its place; its tokens count still

    journal_number: int = 0  # in this process' journal; 0: it is not in it
    is_written: bool = False  # whether it is a row

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
    """The one of `full`, `hash`, `none` that keeps less; "" says nothing."""
    return max(one or "full", other or "full", key=_LEVELS.index)


def bare_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and switches as they are; of everything that may hold a client's words only the name."""
    return {name: value if isinstance(value, int | float | bool) else LEFT_OUT for name, value in parameters.items()}


def quotes_client(status: int) -> bool:
    """Whether the error message may quote the request: refusals say what was wrong with which value."""
    return 400 <= status < 500


def without_texts(row: RequestLog) -> RequestLog:
    """The row, in memory, as those see it who may see no texts. Deferred texts are not fetched for it."""
    row.prompt = row.completion = ""
    row.parameters = bare_parameters(row.parameters)
    if quotes_client(row.status):
        row.error_message = ""
    return row
