"""Count and limit the requests to /v1 in progress, in this process or in several that share a board."""

from __future__ import annotations

import mmap
import os
import threading

from openai_api.http.errors import unavailable

RETRY_S = 1.0


class Board:
    """Numbers in shared memory, one for each process that has a place there. Only that process writes its number."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self._numbers = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, places: int) -> Board:
        descriptor = os.memfd_create("millm-counts")
        os.ftruncate(descriptor, 8 * places)
        return cls(descriptor)

    def write(self, place: int, number: int) -> None:
        self._numbers[place] = number

    def total(self) -> int:
        return sum(self._numbers)


class InFlight:
    """Requests in progress.

    Requests wait in several places before the engine's queue limits them: for their model, for the tokenizer's thread.
    Each holds its body, so their number is limited too. Thread-safe: responses are closed in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._board: Board | None = None
        self._place = 0

    def share(self, board: Board, place: int) -> None:
        """Count together with the other processes that have a place on the board."""
        with self._lock:
            self._board, self._place = board, place
            board.write(place, self._count)

    @property
    def count(self) -> int:
        """The number of requests, of all processes that share the board.

        Processes that count at the same moment may exceed the limit by one each.
        """
        return self._count if self._board is None else self._board.total()

    def enter(self, most: int) -> None:
        """Count a request. Raises MillmError 503 when ``most`` are in progress."""
        with self._lock:
            if self.count >= most:
                message = f"The server is at its limit of {most} concurrent requests. Try again later."
                raise unavailable(message, code="server_is_overloaded", retry_after_s=RETRY_S)
            self._add(1)

    def leave(self) -> None:
        with self._lock:
            self._add(-1)

    def _add(self, change: int) -> None:
        self._count += change
        if self._board is not None:
            self._board.write(self._place, self._count)


in_flight = InFlight()
