"""Ids: of requests (the log row's), and of the objects that the API returns."""

from __future__ import annotations

import re

from core.ids import new_id

CLIENT_HEADER = "X-Client-Request-Id"
REQUEST = "req_"
ANSWERS = ("chatcmpl-", "cmpl-", "msg_", "resp_", "rerank-", "score-", "modr-")
MAX_CLIENT_ID = 48  # leaves room in the log's 64 characters to tell repeated ids apart
_SANE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{MAX_CLIENT_ID - 1}}}")


def request_id(client_id: str | None) -> str:
    """Return the client's id if it is short and printable, else a new one."""
    if client_id and _SANE.fullmatch(client_id):
        return client_id
    return new_id(REQUEST)


def answer_id_of(request_id: str, prefix: str) -> str:
    """Return the id of the only answer to a request whose id was made here."""
    return prefix + request_id.removeprefix(REQUEST)


def request_id_of(answer_id: str) -> str:
    """Return the id of the request, possibly cut, for that of its answer; other ids unchanged."""
    prefix = next((prefix for prefix in ANSWERS if answer_id.startswith(prefix)), None)
    return answer_id if prefix is None else REQUEST + answer_id.removeprefix(prefix)
