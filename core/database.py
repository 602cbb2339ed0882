"""Database work outside the event loop, with a limit on every wait; and safe descriptions of database errors.

:class:`DatabaseThreads` runs short work in one transaction. The caller waits for at most MILLM_DATABASE_TIMEOUT; after
that, nothing is committed. :func:`in_thread` runs work that may take long, such as an upload: only the waits for a
thread and for locks are limited. It has a separate thread pool, so that slow disks do not delay tokenizers, which use
the default pool of the process.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

import psycopg
from django.conf import settings
from django.db import Error as DjangoDatabaseError
from django.db import InterfaceError, OperationalError, close_old_connections, connection, transaction

from core.errors import MillmError

P = ParamSpec("P")
T = TypeVar("T")
MAX_AT_ONCE = 8
SET_LIMITS = "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false)"


class DatabaseTooSlowError(MillmError, OperationalError):
    """The database did not respond in time, and nothing was written."""

    status = 503
    code = "database_unavailable"
    retry_after_s = 5.0


class Attempt:
    """Decides once whether work is committed or abandoned. The thread and its caller may decide at the same time."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._is_decided = False

    def decide(self) -> bool:
        """Return True for the first call only: by the thread about to commit, or by the caller whose wait is over."""
        with self._lock:
            is_first, self._is_decided = not self._is_decided, True
            return is_first

    def check(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        """Run a statement, or raise DatabaseTooSlowError after the deadline, which rolls the work back."""
        if time.monotonic() > self._deadline:
            raise DatabaseTooSlowError("The database did not respond in time. Try again later.")
        return execute(*arguments)


class DatabaseThreads:
    """A few threads, each with a connection while it works. The pool's size bounds the number of connections."""

    def __init__(self, name: str, max_at_once: int) -> None:
        self._pool = ThreadPoolExecutor(max_at_once, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in one transaction and return its result. After DatabaseTooSlowError nothing is written.

        May be called in any event loop. Work that has started continues if its caller is cancelled.
        """
        attempt = Attempt(settings.MILLM_DATABASE_TIMEOUT)
        future = self._pool.submit(_in_transaction, attempt, work)
        try:
            return await _result(future, attempt.timeout_s)
        except _StillRunningError:
            future.cancel()  # has an effect if the work still waits for a thread
            if not attempt.decide():  # the thread is already committing
                try:
                    return await _result(future, attempt.timeout_s)
                except _StillRunningError:
                    pass
            raise DatabaseTooSlowError("The database did not respond in time. Try again later.") from None


_database = DatabaseThreads("storage-database", MAX_AT_ONCE)
_pool = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="storage")


async def in_database(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run short work on the shared pool, see :meth:`DatabaseThreads.run`."""
    return await _database.run(lambda: work(*args, **kwargs))


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work``, which may take long, in a thread, and close the thread's database connection.

    Raise DatabaseTooSlowError if no thread becomes free in time, OperationalError if a lock does not.
    """
    started = threading.Event()

    def run() -> T:
        started.set()
        return _with_limits(
            lambda: work(*args, **kwargs),
            lock_s=settings.MILLM_DATABASE_TIMEOUT,
            statement_s=settings.MILLM_REQUEST_TIMEOUT,
        )

    future = _pool.submit(run)
    try:
        return await _result(future, settings.MILLM_DATABASE_TIMEOUT)
    except _StillRunningError:
        if future.cancel():
            raise DatabaseTooSlowError(
                "The server is busy with other uploads and downloads. Try again later."
            ) from None
    return await asyncio.wrap_future(future)


class _StillRunningError(Exception):
    """The work is still running. Not a TimeoutError, which the work itself may raise."""


async def _result(future: Future[T], timeout_s: float) -> T:
    """Wait for the result, or raise _StillRunningError. Work still queued when its caller is cancelled never runs."""
    waiter = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait({waiter}, timeout=timeout_s)
    except asyncio.CancelledError:
        future.cancel()
        waiter.add_done_callback(_ignore)
        raise
    if done:
        return waiter.result()
    waiter.add_done_callback(_ignore)
    raise _StillRunningError


def _ignore(waiter: asyncio.Future[Any]) -> None:
    """Retrieve the exception, so that asyncio does not log it as never retrieved."""
    if not waiter.cancelled():
        waiter.exception()


def _in_transaction(attempt: Attempt, work: Callable[[], T]) -> T:
    def committed() -> T:
        with connection.execute_wrapper(attempt.check), transaction.atomic():
            result = work()
            if not attempt.decide():
                raise DatabaseTooSlowError("The database did not respond in time. Try again later.")
            return result

    return _with_limits(committed, lock_s=attempt.timeout_s, statement_s=attempt.timeout_s)


def _with_limits(work: Callable[[], T], *, lock_s: float, statement_s: float) -> T:
    with own_connection(), _limits(lock_s, statement_s):
        return work()


@contextmanager
def own_connection() -> Iterator[None]:
    """Close this thread's database connection at the end, unless the caller is inside a transaction."""
    close_old_connections()
    try:
        yield
    finally:
        if not connection.in_atomic_block:
            connection.close()


@contextmanager
def _limits(lock_s: float, statement_s: float) -> Iterator[None]:
    """Limit the duration of each statement, and reset the limits because the connection returns to a pool."""
    with connection.cursor() as cursor:
        cursor.execute(SET_LIMITS, [_milliseconds(lock_s), _milliseconds(statement_s)])
    try:
        yield
    finally:
        with (
            suppress(OperationalError, InterfaceError),
            connection.cursor() as cursor,
        ):  # a broken connection is dropped anyway
            cursor.execute("RESET lock_timeout")
            cursor.execute("RESET statement_timeout")


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1_000)))


MAX_LINE = 300


def is_database_error(error: object) -> bool:
    return isinstance(error, DjangoDatabaseError | psycopg.Error)


def describe_database_error(error: BaseException) -> str:
    """Describe a database error by schema names, without its message: Postgres quotes rows, which may contain prompts.

    Messages of failed connections contain no rows and are kept, because an operator needs them.
    """
    cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
    if not isinstance(cause, psycopg.Error):
        return _first_line(error)  # written by Django, without row values
    if cause.sqlstate is None:
        return _first_line(cause)  # written by libpq, about the connection
    about = cause.diag
    names = {"table": about.table_name, "column": about.column_name, "constraint": about.constraint_name}
    named = ", ".join(f"{kind} {name}" for kind, name in names.items() if name)
    return f"{type(cause).__name__} (SQLSTATE {cause.sqlstate}{f', {named}' if named else ''})"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:MAX_LINE] or type(error).__name__
