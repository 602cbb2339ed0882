"""Count and limit the requests to /v1 in progress in this process."""

from __future__ import annotations

import threading

from openai_api.http.errors import unavailable

RETRY_S = 1.0


class InFlight:
    """Requests in progress.

    Requests wait in several places before the engine's queue limits them: for their model, for the tokenizer's thread.
    Each holds its body, so their number is limited too. Thread-safe: responses are closed in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def enter(self, most: int) -> None:
        """Count a request. Raises MillmError 503 when ``most`` are in progress."""
        with self._lock:
            if self._count >= most:
                message = f"The server is at its limit of {most} concurrent requests. Try again later."
                raise unavailable(message, code="server_is_overloaded", retry_after_s=RETRY_S)
            self._count += 1

    def leave(self) -> None:
        with self._lock:
            self._count -= 1


in_flight = InFlight()
