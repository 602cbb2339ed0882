"""A corpus of texts from requests whose keys share them, for examples of features."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from django.conf import settings

from openai_api.models import ApiKey, RequestLog
from steering.corpora.corpus import Corpus, CorpusError, Document, version_of

NAME = "requests"
_MAX_ROWS = 5_000
_MAX_CHARS = 8_000_000
_ROLES = frozenset({"system", "user", "assistant"})


def traffic_corpus() -> Corpus:
    """Return the newest requests first. Raises CorpusError when no key shares or no texts are stored."""
    if settings.MILLM_LOG_CONTENT != "full":
        raise CorpusError("The request log does not store texts (see MILLM_LOG_CONTENT).")
    rows = RequestLog.objects.filter(api_key__shares_examples=True, status=200).exclude(completion="")
    found = list(_bounded(rows.order_by("-created_at")[:_MAX_ROWS]))
    if not found:
        raise CorpusError("No API key allows its texts to become feature examples. Keys have a setting for that.")
    documents = tuple(document for _, document in found)
    version = version_of(json.dumps([[d.text, list(d.messages)] for d in documents]).encode())
    return Corpus(NAME, version, documents, partial(_all_share, frozenset(key for key, _ in found)))


def _all_share(keys: frozenset[int]) -> bool:
    """Return whether each of these keys still exists and shares its texts; measuring takes time."""
    return ApiKey.objects.filter(pk__in=keys, shares_examples=True).count() == len(keys)


def _bounded(rows: Iterable[RequestLog]) -> Iterator[tuple[int, Document]]:
    """Yield keys and the texts of their requests, up to the limit."""
    num_chars = 0
    for row in rows:
        num_chars += len(row.prompt) + len(row.completion)
        if num_chars > _MAX_CHARS:
            return
        if row.api_key_id is not None and (document := _document(row)) is not None:
            yield row.api_key_id, document


def _document(row: RequestLog) -> Document | None:
    """Return the text of a row, None for token ids, several prompts and other inputs without one text."""
    if row.endpoint.endswith("/chat/completions"):
        messages = _messages(row.prompt)
        answer = {"role": "assistant", "content": row.completion}
        return Document(messages=(*messages, answer)) if messages else None
    if row.endpoint.endswith("/completions") and not row.prompt.startswith("["):
        return Document(text=row.prompt + row.completion)
    return None


def _messages(prompt: str) -> tuple[Mapping[str, Any], ...]:
    try:
        found = json.loads(prompt)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(found, list):
        return ()
    plain = [{"role": m.get("role"), "content": m.get("content")} for m in found if isinstance(m, dict)]
    if all(m["role"] in _ROLES and isinstance(m["content"], str) for m in plain):
        return tuple(plain)
    return ()
