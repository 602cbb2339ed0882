"""Database work of requests, away from the event loop, with bounds: see core/database.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from core.database import DatabaseThreads, own_connection

MAX_CONNECTIONS = 6
T = TypeVar("T")
_threads = DatabaseThreads("api-database", MAX_CONNECTIONS)


async def in_database(work: Callable[[], T]) -> T:
    """Run ``work`` in one transaction and return its result. May be called in any event loop.

    Raises DatabaseTooSlowError (503); then nothing is written, also not later.
    """
    return await _threads.run(work)


async def in_database_however_long(work: Callable[[], T]) -> T:
    """Run ``work``, which waits for the database itself, in a thread of its own."""
    return await asyncio.to_thread(_with_own_connection, work)


def _with_own_connection(work: Callable[[], T]) -> T:
    with own_connection():
        return work()
