"""One request to /v1, from its arrival to its log row."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote as percent_encode

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from core.errors import MillmError
from core.ids import new_id
from inference.client import BACKGROUND_PRIORITY, Usage
from openai_api.http.client_address import client_address
from openai_api.http.errors import client_message, error_type, speaks_anthropic, unknown_parameter
from openai_api.http.in_flight import in_flight
from openai_api.http.json_body import read_json_object
from openai_api.keys.limits import KeyLease, get_limits
from openai_api.keys.record import KeyRecord
from openai_api.request_id import CLIENT_HEADER, answer_id_of, request_id
from openai_api.request_log.entry import LogEntry, Outcome, Source
from openai_api.request_log.metrics import note_request
from openai_api.request_log.tracing import start_span
from openai_api.request_log.writer import get_log_writer
from openai_api.schemas.base import RequestSchema

if TYPE_CHECKING:
    from inference.registry.records import ModelRecord
    from steering.profiles.resolver import ResolvedProfile, SteeringSelection

logger = logging.getLogger(__name__)
S = TypeVar("S", bound=RequestSchema)

CLIENT_CLOSED_REQUEST = 499  # the log's status for clients that disconnected before the response
MAX_IGNORED_NAMES = 50


@dataclass(frozen=True, slots=True)
class SteeringOverride:
    """Steering that replaces what the request selects; ``description`` is logged, a line for each edit."""

    selection: SteeringSelection
    description: tuple[str, ...]


class Call:
    """The request, its key, its limits and what the log will say of it.

    Handlers set ``outcome``, and ``model``, ``user``, ``prompt`` and ``parameters`` where the body does not have them.
    :meth:`close` comes last, once, from any thread.
    """

    timeout_setting = "MILLM_REQUEST_TIMEOUT"

    def __init__(
        self,
        request: HttpRequest,
        endpoint: str,
        *,
        is_background: bool = False,
        source: Source = "client",
        session_user_id: int | None = None,
        override: SteeringOverride | None = None,
        deployment: str = "",
        trace: Mapping[str, str] | None = None,
    ) -> None:
        """Start the call.

        ``is_background``: no client waits for the answer: others have priority. ``session_user_id``: the user
        of a console session, which has no key. ``override``: steering that replaces the request's own.
        ``deployment``: the model that the URL names, which replaces the body's. ``trace``: the headers of the trace
        that the call continues; by default the request's own.
        """
        self.request = request
        self.endpoint = endpoint
        self.override = override
        self.deployment = deployment
        self.is_background = is_background
        self._session_user_id = session_user_id
        named = request.headers.get(CLIENT_HEADER)
        self.id = request_id(named)
        self._is_named_by_client = self.id == named
        self.key: KeyRecord | None = None
        self.key_prefix = ""  # of the key that the client sent, also of a refused one
        self.model = ""
        self.user = ""
        self.prompt: object = ""
        self.parameters: dict[str, Any] = {}
        self.outcome = Outcome()
        self.status = 0
        self.error_code = ""
        self._error_message = ""
        self._client_address = client_address(request)
        self._source: Source = source
        self._created_at = timezone.now()
        self._span = start_span(request.headers if trace is None else trace, self._created_at)
        self._is_stream = False
        self._prompt_size = 0
        self._profile: ResolvedProfile | None = None
        self._is_metered = False
        self._is_counted = False
        self._journal_number = 0
        self.timeout_s: float = getattr(settings, self.timeout_setting)
        self.deadline = asyncio.get_running_loop().time() + self.timeout_s
        self._started_at = time.monotonic()
        self._ignored: list[str] = []
        self._registered_model = ""
        self._has_entered = False
        self._lease: KeyLease | None = None
        self._closing = threading.Lock()
        self._is_open = True

    def enter(self) -> None:
        """Count the request as in progress. Raises MillmError 503 when there are too many."""
        in_flight.enter(settings.MILLM_MAX_CONCURRENT_REQUESTS)
        self._has_entered = True

    async def admit(self, key: KeyRecord | None, *, is_counted: bool = False) -> None:
        """Count the request against its key's limits. Raises MillmError 429.

        ``is_counted``: it was counted before, as the request that this one carries out.
        """
        self.key = key
        if key is not None:
            self.key_prefix = key.prefix
            self._lease = await get_limits().aadmit(key, is_counted=is_counted)
            self._is_metered, self._is_counted = True, is_counted
        self._note_in_journal()

    def withdraw(self) -> None:
        """Release the key's limits; the call may be admitted again later."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close(0)

    def answer_id(self, prefix: str) -> str:
        """Return an id for the answer from which the log can find the request's row.

        Two requests may have the same client-given id; their answers get ids of their own.
        """
        return new_id(prefix) if self._is_named_by_client else answer_id_of(self.id, prefix)

    def use_model(self, name: str) -> None:
        """Record the registered model of the request."""
        self.model = self._registered_model = name
        self._note_in_journal()

    def use_steering(self, profile: ResolvedProfile) -> None:
        """Record what steers the request, for the log and the headers."""
        self._profile = profile

    def add_usage(self, usage: Usage) -> None:
        self.outcome = replace(self.outcome, usage=self.outcome.usage + usage)

    @property
    def priority(self) -> int:
        """Return the priority in the engine's queue."""
        if self.is_background:
            return BACKGROUND_PRIORITY
        return self.key.priority if self.key is not None else 0

    @property
    def owner_id(self) -> int | None:
        """Return the user whose objects the request may see: the key's owner, or the user of the console's session.

        None: without both; such requests share their objects.
        """
        return self.key.owner_id if self.key is not None else self._session_user_id

    def cache_salt(self, model: ModelRecord, own: str = "") -> str:
        """Return the salt of the prefix cache: requests of one user with the same ``own`` salt share cached prefixes,
        or all requests if the model allows it. Requests without key and session share theirs.
        """
        return json.dumps(["all"] if model.shared_prefix_cache else ["user", self.owner_id]) + own

    def trace_context(self) -> dict[str, str]:
        """Return the headers with which a job continues the request's trace; none without tracing."""
        return {} if self._span is None else self._span.context()

    async def reserve_tokens(self, amount: int) -> None:
        """Take ``amount`` of what the key may use. Raises MillmError 429."""
        if self._lease is not None:
            await self._lease.areserve_tokens(amount)

    async def reserve_media(self, unit: str, amount: float = 0) -> None:
        """Take ``amount`` of the key's daily quota; 0 only checks that some is left. Raises MillmError 429."""
        if self._lease is not None:
            await self._lease.areserve_media(unit, amount)

    def read(self, schema: type[S]) -> S:
        """Return the validated body, and record its parameters for the log and the headers."""
        return self.read_body(read_json_object(self.request), schema)

    def read_body(self, body: dict[str, Any], schema: type[S]) -> S:
        """Like :meth:`read`, for a body that was parsed already, such as a form."""
        if self.deployment:
            body = {**body, "model": self.deployment}
        self._note_raw(body, schema.TEXTS)
        parsed = schema.parse(body)
        if settings.MILLM_UNKNOWN_FIELDS == "reject" and (unknown := schema.unknown_in(body)):
            raise unknown_parameter(unknown[0])
        self._ignored = schema.ignored_in(body)
        self.parameters = parsed.parameters()
        if self._ignored:
            self.parameters["ignored"] = self._ignored[:MAX_IGNORED_NAMES]
        return parsed

    def note_ignored(self, name: str) -> None:
        """Record a field that has no effect, for a reason that depends on the model."""
        self._ignored.append(name)
        self.parameters["ignored"] = self._ignored[:MAX_IGNORED_NAMES]

    def refuse(self, error: MillmError) -> None:
        """Record ``error`` as the request's outcome."""
        self.error_code = error.code or error_type(error)
        self._error_message = client_message(error)

    def leave(self) -> None:
        """Record that the client disconnected before the response was complete."""
        self.error_code = "client_disconnected"
        self.status = self.status or CLIENT_CLOSED_REQUEST

    def headers(self) -> dict[str, str]:
        """Return the headers of every response."""
        headers = {"x-request-id": self.id, "openai-processing-ms": str(round(self._elapsed_ms()))}
        if speaks_anthropic(self.request):
            headers["request-id"] = self.id
        if self.key is not None:
            headers |= get_limits().headers(self.key)
        if self._profile is not None:
            steering = {
                "x-millm-profile": self._profile.label,
                "x-millm-steering": self._profile.fingerprint,
                "x-millm-policies": ", ".join(self._profile.policies),
            }
            headers |= {name: value for name, value in steering.items() if value}
        if self._ignored:
            headers["x-millm-ignored-fields"] = _header_list(self._ignored)
        return headers

    def close(self) -> None:
        """Release the limits and queue the log row."""
        with self._closing:
            if not self._is_open:
                return
            self._is_open = False
        if self._has_entered:
            in_flight.leave()
        entry = self.log_entry(total_ms=self._elapsed_ms())
        if self._lease is not None:
            self._lease.close(entry.prompt_tokens + entry.completion_tokens, entry.media)
        note_request(entry, self._registered_model)
        if self._span is not None:
            submitted_at = self.outcome.submitted_at
            submitted_ms = None if submitted_at is None else (submitted_at - self._started_at) * 1000
            self._span.end(entry, method=self.request.method or "POST", submitted_ms=submitted_ms)
        get_log_writer().write(entry)

    def log_entry(self, *, total_ms: float | None = None) -> LogEntry:
        """Return the request's log row as it is now."""
        key, profile, outcome = self.key, self._profile, self.outcome
        return LogEntry(
            id=self.id,
            created_at=self._created_at,
            endpoint=self.endpoint,
            client_address=self._client_address,
            source=self._source,
            api_key_id=key.pk if key is not None else None,
            key_prefix=self.key_prefix,
            model=self.model,
            profile=profile.label if profile is not None else "",
            fingerprint=profile.fingerprint if profile is not None else "",
            policies=", ".join(profile.policies) if profile is not None else "",
            steering_expected=outcome.steering_expected,
            steering_applied=outcome.steering_applied,
            steering_effects=[dict(effect) for effect in outcome.steering_effects],
            stream=self._is_stream,
            status=self.status,
            error_code=self.error_code,
            error_message=self._error_message,
            finish_reason=outcome.finish_reason,
            prompt_tokens=outcome.usage.prompt_tokens,
            cached_tokens=outcome.usage.cached_tokens,
            completion_tokens=outcome.usage.completion_tokens,
            queue_ms=outcome.queue_ms,
            ttft_ms=outcome.ttft_ms,
            total_ms=total_ms,
            token_ms=list(outcome.token_ms),
            user=self.user,
            parameters=self.parameters,
            prompt=self.prompt,
            prompt_size=self._prompt_size,
            completion=outcome.completion,
            findings=outcome.findings,
            tokens=outcome.tokens,
            media=dict(outcome.media),
            log_content=key.log_content if key is not None else "",
            is_metered=self._is_metered,
            is_counted=self._is_counted,
            journal_number=self._journal_number,
        )

    def _note_in_journal(self) -> None:
        entry = self.log_entry()
        get_log_writer().accept(entry)
        self._journal_number = entry.journal_number

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self._started_at) * 1000

    def _note_raw(self, body: dict[str, Any], texts: Sequence[str]) -> None:
        """Record what the log shows even for requests that are refused later."""
        self._is_stream = body.get("stream") is True
        if not self._registered_model:
            self.model = body["model"][:200] if isinstance(body.get("model"), str) else ""
        self.user = body["user"][:200] if isinstance(body.get("user"), str) else ""
        given = {name: body[name] for name in texts if name in body}
        self.prompt = given if len(given) > 1 else next(iter(given.values()), "")
        length = self.request.headers.get("Content-Length", "")
        self._prompt_size = int(length) if length.isdecimal() else 0


def _header_list(names: Sequence[str]) -> str:
    """Return names from a client's body, escaped for a header."""
    shown = [percent_encode(name[:64], safe="[]") for name in names[:MAX_IGNORED_NAMES]]
    return ", ".join([*shown, "..."] if len(names) > MAX_IGNORED_NAMES else shown)
