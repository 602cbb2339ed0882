"""Fetch a file from a URL that a client sent, from public addresses only. Each redirect is checked as well."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from urllib.parse import urljoin

from core.outbound import OutboundError, OutboundRules, failing, open_url, parse_url
from core.runtime import Service

BLOCK = 2**16
HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "miLLM", "Connection": "close"}
MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
FETCH_RULES = Service(lambda: OutboundRules())


def fetch(url: str, write: Callable[[bytes], object], *, max_bytes: int, rules: OutboundRules) -> None:
    """Pass the file at the URL to ``write`` in blocks. Raise OutboundError. Blocks, so not for the event loop."""
    deadline = time.monotonic() + rules.timeout_s
    for _ in range(MAX_REDIRECTS + 1):
        with open_url("GET", parse_url(url), rules, headers=HEADERS, deadline=deadline) as response:
            if response.status not in REDIRECTS:
                _copy(response, write, max_bytes)
                return
            url = urljoin(url, response.headers.get("Location", ""))
    raise OutboundError(f"The URL redirects more than {MAX_REDIRECTS} times.")


def _copy(response: http.client.HTTPResponse, write: Callable[[bytes], object], max_bytes: int) -> None:
    if response.status != http.HTTPStatus.OK:
        raise OutboundError(f"The URL was answered with the status {response.status}.")
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise OutboundError("The URL was answered with compressed content.")
    num_bytes, length = 0, response.length
    too_large = OutboundError(f"The file at the URL has more than {max_bytes} bytes.")
    if length is not None and length > max_bytes:
        raise too_large
    while True:
        with failing():
            block = response.read1(BLOCK)
        if not block:
            break
        num_bytes += len(block)
        if num_bytes > max_bytes:
            raise too_large
        write(block)
    if length is not None and num_bytes < length:
        raise OutboundError("The connection of the URL's server ended too early, or took too long.")
