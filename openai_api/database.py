"""Database work of requests, away from the event loop, with bounds: see core/database.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from core.database import DatabaseThreads, DatabaseTooSlowError, own_connection
from openai_api.http.errors import unavailable

MAX_CONNECTIONS = 6
T = TypeVar("T")
_threads = DatabaseThreads("api-database", MAX_CONNECTIONS)


async def in_database(work: Callable[[], T]) -> T:
    """What ``work`` returns, run in one transaction; may be called in any event loop.

    Raises ApiError 503 where the database is too slow; then nothing is written, also not later.
    """
    try:
        return await _threads.run(work)
    except DatabaseTooSlowError as error:
        raise unavailable(str(error), code="database_unavailable") from None


async def in_database_however_long(work: Callable[[], T]) -> T:
    """The same for work that waits for the database by itself, in a thread that nobody else waits for."""
    return await asyncio.to_thread(_with_own_connection, work)


def _with_own_connection(work: Callable[[], T]) -> T:
    with own_connection():
        return work()
