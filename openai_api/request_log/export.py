"""Export the log as CSV, JSONL or chats in batches, with constant memory.

Chats are lines of messages that end with the answer, as programs for training and evaluation read them.

Batches continue from the last row instead of a server-side cursor: a slow reader would keep its transaction open, and
with it a connection and everything that vacuum may not remove.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import F, Func, IntegerField, QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    QueryDict,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.urls import path, reverse
from django.utils import timezone

from core.pagination import ByTime, Cursor
from openai_api.database import in_database_however_long
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import EXPORT, may_see_text, record_access
from openai_api.request_log.conversations import chat_messages
from openai_api.request_log.scores import exported_scores
from openai_api.request_log.search import TEXTS, LogSearch
from openai_api.request_log.search_form import SearchForm
from openai_api.request_log.summary import cost_of, known_prices

_STARTS = (
    "=",
    "+",
    "-",
    "@",
    "＝",
    "＋",
    "－",
    "＠",
)  # the wide ones count as well where Chinese and Japanese are written
_BLANKS = ("\t", "\r", "\n")


def safe_cell(value: object) -> object:
    """Prefix text that could be a formula, also after blanks, with an apostrophe; numbers stay numbers."""
    if not isinstance(value, str) or not value:
        return value
    if value.startswith(_BLANKS) or value.lstrip().startswith(_STARTS):
        return f"'{value}"
    return value


Format = Literal["csv", "jsonl", "chats"]
FORMATS: tuple[Format, ...] = ("csv", "jsonl", "chats")
BATCH = 1_000
MAX_BATCH_BYTES = 8 * 2**20  # bytes of texts; a single request may be larger
COLUMNS = (
    "id",
    "created_at",
    "source",
    "endpoint",
    "model",
    "profile",
    "fingerprint",
    "policies",
    "steering_expected",
    "steering_applied",
    "steering_effects",
    "stream",
    "status",
    "error_code",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "media",
    "queue_ms",
    "ttft_ms",
    "total_ms",
    "client_address",
    "user",
)
KEY_NAME = "api_key"
KEY_PREFIX = "key_prefix"
SCORES = "scores"
COST = "cost"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Export:
    """A running export; ``access`` is its row in the access log, which records the progress."""

    search: LogSearch
    format: Format
    with_text: bool
    access: LogAccess

    @property
    def columns(self) -> tuple[str, ...]:
        return (*COLUMNS, COST, KEY_NAME, KEY_PREFIX, SCORES, *(TEXTS if self.with_text else ()))

    @property
    def file_name(self) -> str:
        kind, ending = ("chats", "jsonl") if self.format == "chats" else ("requests", self.format)
        return f"{kind}-{timezone.now():%Y%m%d-%H%M%S}.{ending}"

    def batches(self) -> Iterator[bytes]:
        """Yield batches, newest first. Rows logged after the start are not included."""
        if self.format == "csv":
            yield _csv([self.columns])
        count = 0
        for rows in self._groups():
            yield self._encoded(rows)
            count += len(rows)
            LogAccess.objects.filter(pk=self.access.pk).update(num_rows=count)
        LogAccess.objects.filter(pk=self.access.pk).update(num_rows=count, is_complete=True)

    def _encoded(self, rows: Sequence[Row]) -> bytes:
        if self.format != "csv":
            lines = rows if self.format == "jsonl" else [{"messages": chat} for chat in map(_chat, rows) if chat]
            return "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines).encode()
        return _csv([_cell(row[name]) for name in self.columns] for row in rows)

    def _groups(self) -> Iterator[list[Row]]:
        prices = known_prices()
        for rows in _pages(self.search.rows()):
            for group in _small(rows) if self.with_text else [rows]:
                scores = exported_scores([row["id"] for row in group], with_notes=self.with_text)
                found = _with_texts(group) if self.with_text else [_shown(row) for row in group]
                for row in found:
                    row[COST] = cost_of(
                        row["model"], row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"], prices
                    )
                    row[SCORES] = scores.get(row["id"], [])
                yield found


def start_export(
    *, search: LogSearch, conditions: dict[str, str], form: Format, with_text: bool, user: User | None
) -> Export:
    """Record the export and return it, before any byte is sent. The caller checks the permission for texts.

    Chats are always exported ``with_text``.
    """
    access = record_access(
        act=LogAccess.Act.EXPORT,
        user=user,
        detail={"conditions": conditions, "format": form, "texts": with_text},
        num_rows=0,
        is_complete=False,
    )
    return Export(search, form, with_text, access)


def _pages(rows: QuerySet[RequestLog]) -> Iterator[list[Row]]:
    sizes = {"prompt": "octet_length", "completion": "octet_length", "parameters": "pg_column_size"}
    octets = [Func(F(name), function=size, output_field=IntegerField()) for name, size in sizes.items()]
    named = rows.annotate(key_name=F("api_key__name"), num_bytes=sum(octets[1:], octets[0]))
    cursor: Cursor | None = None
    while True:
        found = list(
            ByTime("created_at").older_than(named, cursor).values(*COLUMNS, KEY_PREFIX, "key_name", "num_bytes")[:BATCH]
        )
        if found:
            yield found
        if len(found) < BATCH:
            return
        cursor = Cursor(found[-1]["created_at"], found[-1]["id"])


def _small(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Split into groups, in order, whose texts fit in memory together."""
    group: list[Row] = []
    size = 0
    for row in rows:
        if group and size + row["num_bytes"] > MAX_BATCH_BYTES:
            yield group
            group, size = [], 0
        group.append(row)
        size += row["num_bytes"]
    if group:
        yield group


def _with_texts(rows: Sequence[Row]) -> list[Row]:
    """Fetch the texts. A row that was pruned in the meantime has none."""
    found = RequestLog.objects.filter(pk__in=[row["id"] for row in rows]).values("pk", *TEXTS)
    texts = {text.pop("pk"): text for text in found}
    return [_shown(row) | texts.get(row["id"], dict.fromkeys(TEXTS, "")) for row in rows]


def _shown(row: Row) -> Row:
    shown = {name: row[name] for name in COLUMNS} | {KEY_NAME: row["key_name"], KEY_PREFIX: row[KEY_PREFIX]}
    return shown | {"created_at": row["created_at"].isoformat()}


def _chat(row: Row) -> list[dict[str, Any]]:
    """Return the messages of a chat with its answer; none for other requests, and without one answer of text."""
    parameters, answer = row["parameters"], row["completion"]
    has_one = answer and row["finish_reason"] in {"stop", "length"} and parameters.get("n", 1) == 1
    if row["error_code"] or not has_one:
        return []
    sent = chat_messages(RequestLog(endpoint=row["endpoint"], prompt=row["prompt"]))
    return [*sent, {"role": "assistant", "content": answer}] if sent else []


def _cell(value: object) -> object:
    return safe_cell(json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value)


def _csv(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson", "chats": "application/x-ndjson"}


class ExportPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """The export view; POST only, because it writes to the access log."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.export_view)
        return [path("export/", view, name="openai_api_requestlog_export"), *super().get_urls()]

    def has_export_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and request.user.has_perm(EXPORT)

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        file_format = request.POST.get("format", "")
        with_text = request.POST.get("with_text") == "on" or file_format == "chats"
        if not self.has_export_permission(request) or (with_text and not may_see_text(request.user)):
            raise PermissionDenied
        form = SearchForm(QueryDict(request.POST.get("query", "")), sees_text=may_see_text(request.user))
        if file_format not in FORMATS or not form.is_valid():
            return self._refuse(request, form)
        assert isinstance(request.user, User)
        export = start_export(
            search=form.search(),
            conditions=form.conditions,
            form=file_format,
            with_text=with_text,
            user=request.user,
        )
        return export_response(export)

    def _refuse(self, request: HttpRequest, form: SearchForm) -> HttpResponse:
        text = f"The export failed. Check the search, and choose {' or '.join(FORMATS)}."
        self.message_user(request, text, messages.ERROR)
        url = reverse("admin:openai_api_requestlog_changelist")
        return HttpResponseRedirect(f"{url}?{urlencode(form.conditions)}")


def export_response(export: Export) -> StreamingHttpResponse:
    """Stream the batches; each is read when the previous one was sent."""
    response = StreamingHttpResponse(_batches(export), content_type=_TYPES[export.format])
    response.headers["Content-Disposition"] = f'attachment; filename="{export.file_name}"'
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response


async def _batches(export: Export) -> AsyncGenerator[bytes, None]:
    batches = export.batches()
    while (batch := await in_database_however_long(lambda: next(batches, None))) is not None:
        yield batch
