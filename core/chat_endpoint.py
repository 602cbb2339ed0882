"""A client of an OpenAI-compatible chat endpoint that the server's settings name, for jobs. Blocking."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from core.errors import MillmError

TIMEOUT_S = 60.0
TRIES = 3
FIRST_PAUSE_S = 1.0
MAX_BYTES = 1 << 20
RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})


class ChatEndpointError(MillmError):
    """The endpoint gave no answer. ``is_final`` is True where other requests would fail in the same way."""

    status = 502
    code = "endpoint_failed"

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    """An endpoint of the operator's choice: it may be on a private network. ``api_key`` is never shown or logged."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)
    timeout_s: float = TIMEOUT_S
    pause_s: float = FIRST_PAUSE_S  # before the second try; twice as long before each further one

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        sleep: Callable[[float], object] = time.sleep,
    ) -> str:
        """Return the answer's text, at temperature 0. Raise ChatEndpointError after three tries."""
        body = {"model": self.model, "messages": list(messages), "temperature": 0, "max_tokens": max_tokens}
        for number in range(TRIES):
            try:
                return self._ask(json.dumps(body).encode())
            except urllib.error.HTTPError as error:
                error.close()
                failure = f"{self.host} answered with the status {error.code}."
                if error.code not in RETRIED:
                    raise ChatEndpointError(failure, is_final=True) from None
            except (OSError, http.client.HTTPException) as error:
                failure = f"{self.host} could not be reached: {type(error).__name__}."
            if number + 1 < TRIES:
                sleep(self.pause_s * 2**number)
        raise ChatEndpointError(failure)

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).netloc.rpartition("@")[2]

    def _ask(self, body: bytes) -> str:
        headers = {"Content-Type": "application/json", "User-Agent": "miLLM"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(url, body, headers)  # noqa: S310 - http or https, checked by the settings
        with _OPENER.open(request, timeout=self.timeout_s) as response:
            return _text(response.read(MAX_BYTES), self.host)


def _text(body: bytes, host: str) -> str:
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        content = None
    if not isinstance(content, str):
        raise ChatEndpointError(f"{host} gave no chat completion.")
    return content
