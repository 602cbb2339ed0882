"""Work on the database and the disk beside the event loop, with a bound on every wait.

Two kinds. :class:`DatabaseThreads` run short work in one transaction, and the caller waits for at most
MILLM_DATABASE_TIMEOUT: where it gives up, nothing is committed later. :func:`in_thread` runs what may take long, such
as an upload: only the waits for a thread and for locks are bounded. Its threads are its own, so that slow disks keep
no tokenizer waiting for the process' common pool.
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

P = ParamSpec("P")
T = TypeVar("T")
MAX_AT_ONCE = 8
SET_LIMITS = "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false)"


class DatabaseTooSlowError(OperationalError):
    """The database did not answer in time; what was to be written is not."""


class Attempt:
    """Decides once whether work is committed or given up: the thread and its caller ask at the same time."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._is_decided = False

    def decide(self) -> bool:
        """True for the first who asks: the thread that is about to commit, or the caller that gives up."""
        with self._lock:
            is_first, self._is_decided = not self._is_decided, True
            return is_first

    def check(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        """Before each statement: work that comes late is not begun, and rolled back."""
        if time.monotonic() > self._deadline:
            raise DatabaseTooSlowError("The database takes too long.")
        return execute(*arguments)


class DatabaseThreads:
    """A few threads, each with a connection for the moment. The bound is on connections: beyond it work waits."""

    def __init__(self, name: str, max_at_once: int) -> None:
        self._pool = ThreadPoolExecutor(max_at_once, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, which runs in one transaction. Raises DatabaseTooSlowError; then nothing is written.

        From any event loop. A caller that is cancelled leaves work that has begun to its own end.
        """
        attempt = Attempt(settings.MILLM_DATABASE_TIMEOUT)
        future = self._pool.submit(_in_transaction, attempt, work)
        try:
            return await _result(future, attempt.timeout_s)
        except _StillRunningError:
            future.cancel()  # where it waits for a thread
            if not attempt.decide():  # it is committing
                try:
                    return await _result(future, attempt.timeout_s)
                except _StillRunningError:
                    pass
            raise DatabaseTooSlowError("The database takes too long.") from None


_database = DatabaseThreads("storage-database", MAX_AT_ONCE)
_pool = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="storage")


async def in_database(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Short work on storage's tables: see :meth:`DatabaseThreads.run`."""
    return await _database.run(lambda: work(*args, **kwargs))


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work``, which may take long, in a thread that leaves no database connection behind.

    Raises DatabaseTooSlowError where no thread is free, OperationalError where a lock is not.
    """
    started = threading.Event()

    def run() -> T:
        started.set()
        return _with_own_connection(
            lambda: work(*args, **kwargs),
            lock_s=settings.MILLM_DATABASE_TIMEOUT,
            statement_s=settings.MILLM_REQUEST_TIMEOUT,
        )

    future = _pool.submit(run)
    try:
        return await _result(future, settings.MILLM_DATABASE_TIMEOUT)
    except _StillRunningError:
        if future.cancel():
            raise DatabaseTooSlowError("All threads of the storage are busy.") from None
    return await asyncio.wrap_future(future)


class _StillRunningError(Exception):
    """Not a TimeoutError, which work may raise itself."""


async def _result(future: Future[T], timeout_s: float) -> T:
    """Raises _StillRunningError. Work that has not begun when its caller is cancelled never does."""
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
    """Nobody asks for it any more."""
    if not waiter.cancelled():
        waiter.exception()


def _in_transaction(attempt: Attempt, work: Callable[[], T]) -> T:
    def committed() -> T:
        with connection.execute_wrapper(attempt.check), transaction.atomic():
            result = work()
            if not attempt.decide():
                raise DatabaseTooSlowError("The database takes too long.")
            return result

    return _with_own_connection(committed, lock_s=attempt.timeout_s, statement_s=attempt.timeout_s)


def _with_own_connection(work: Callable[[], T], *, lock_s: float, statement_s: float) -> T:
    close_old_connections()
    try:
        with _limits(lock_s, statement_s):
            return work()
    finally:
        connection.close()


@contextmanager
def _limits(lock_s: float, statement_s: float) -> Iterator[None]:
    """Bounds of each statement. The connection goes back to a pool afterwards, so they are taken back."""
    with connection.cursor() as cursor:
        cursor.execute(SET_LIMITS, [_milliseconds(lock_s), _milliseconds(statement_s)])
    try:
        yield
    finally:
        with suppress(OperationalError, InterfaceError), connection.cursor() as cursor:  # one that broke is dropped
            cursor.execute("RESET lock_timeout")
            cursor.execute("RESET statement_timeout")


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1_000)))


MAX_LINE = 300


def is_database_error(error: object) -> bool:
    return isinstance(error, DjangoDatabaseError | psycopg.Error)


def describe_database_error(error: BaseException) -> str:
    """What a database error is about, by names that the schema gives; never its message, which may quote a row.

    Messages of connections that failed hold no rows, and are what an operator needs to read.
    """
    cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
    if not isinstance(cause, psycopg.Error):
        return _first_line(error)  # Django's own words
    if cause.sqlstate is None:
        return _first_line(cause)  # libpq's, about the connection
    about = cause.diag
    names = {"table": about.table_name, "column": about.column_name, "constraint": about.constraint_name}
    named = ", ".join(f"{kind} {name}" for kind, name in names.items() if name)
    return f"{type(cause).__name__} (SQLSTATE {cause.sqlstate}{f', {named}' if named else ''})"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:MAX_LINE] or type(error).__name__
