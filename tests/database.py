"""The databases of tests: copies of templates, restored after transactional tests without locks on whole tables.

Migrations and the demo's installation take seconds of CPU, a copy takes tenths of one. Each template is made once for
each state of the code and kept on the tests' database server; those of earlier states are dropped.

Django empties all tables with TRUNCATE, which needs an exclusive lock on each of them. A thread of the application that
is still reading when its test ends then waits for the test and the test for the thread, and Postgres ends one of the
two with "deadlock detected". Deleting rows conflicts with no reader.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TypeVar

import psycopg
from django.db import OperationalError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.test import TransactionTestCase
from psycopg import sql

from core.database import own_connection
from tests import live

LOCK = 0x6D694C54  # any number that no other program on this server takes
OTHER_PACKAGES = {"benchmarks", "tests", "tools"}  # they install nothing
ATTEMPTS = 5
WAIT_S = 60.0  # for transactions that other threads have open; only a test that leaks one waits this long
KEPT = "rows_of_migrations"  # the schema with copies of the rows that migrations made
_numbers = itertools.count()
T = TypeVar("T")


class Content(StrEnum):
    """What a new database holds."""

    NOTHING = "nothing"
    SCHEMA = "schema"  # as `manage.py migrate` leaves it
    DEMO = "demo"  # with the demo, as `manage.py serve --setup` leaves it, but without users


@contextmanager
def own_database(content: Content = Content.DEMO) -> Iterator[str]:
    """Make a database beside the test database and yield its URL; drop it in the end."""
    name = f"live_{os.getpid()}_{next(_numbers)}"
    with _server() as server:
        server.execute(_create(name, template(content)))
        server.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(name)))
    try:
        yield live.maintenance_url(name)
    finally:
        with _server() as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def template(content: Content) -> str:
    """Return the name of the template with ``content``, and make it where it is missing."""
    if content is Content.NOTHING:
        return "template0"
    name = f"millm_{content}_{_state_of_the_code()}"
    with _server() as server:
        server.execute("SELECT pg_advisory_lock(%s)", [LOCK])  # until the connection is closed
        if not server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            _drop_others(server, content)
            _make(server, name, content)
    return name


def _server() -> psycopg.Connection:
    return psycopg.connect(live.maintenance_url("postgres"), autocommit=True)


def _make(server: psycopg.Connection, name: str, content: Content) -> None:
    unfinished = f"millm_{content}_unfinished"
    server.execute(_create(unfinished, "template0"))
    with tempfile.TemporaryDirectory() as home:
        environment = {"MILLM_HOME": home, "MILLM_DATABASE_URL": live.maintenance_url(unfinished)}
        live.manage("migrate", environment=environment)
        if content is Content.DEMO:
            live.manage("install_demo", "--demo", "tiny", environment=environment)
    rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
    server.execute(rename.format(sql.Identifier(unfinished), sql.Identifier(name)))


def _drop_others(server: psycopg.Connection, content: Content) -> None:
    query = "SELECT datname FROM pg_database WHERE datname LIKE %s"
    for (name,) in server.execute(query, [f"millm\\_{content}\\_%"]).fetchall():
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _create(name: str, template: str) -> sql.Composed:
    return sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))


@cache
def _state_of_the_code() -> str:
    """Return a digest of all modules of ours and of the demo's files, any of which may change what is installed."""
    digest = hashlib.sha256(str(live.PROJECT_DIR).encode())  # rows name the demo's folder
    for package in sorted(path.parent for path in live.PROJECT_DIR.glob("*/__init__.py")):
        for path in sorted(package.rglob("*")) if package.name not in OTHER_PACKAGES else ():
            if path.suffix == ".py":
                digest.update(path.read_bytes())
            elif "artifacts" in path.parts and path.is_file():
                digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class InitialRows:
    """The content of the test database before the first test, copied into a schema of its own."""

    changed: psycopg.sql.Composed  # the query for the tables whose rows are not those that migrations made
    initial: frozenset[str]  # tables in which migrations made rows

    @classmethod
    def keep(cls) -> InitialRows:
        """Copy the rows that migrations made. The role must be a superuser, as the owner of an embedded server is."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'")
            tables = [name for (name,) in cursor.fetchall()]
            initial = names(cursor, sql.SQL(" UNION ALL ").join(_holds_rows(table) for table in tables))
            cursor.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(KEPT)))  # --reuse-db
            cursor.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(KEPT)))
            for table in sorted(initial):
                cursor.execute(sql.SQL("CREATE TABLE {} AS TABLE {}").format(_copy_of(table), sql.Identifier(table)))
        checks = [_differs(table) if table in initial else _holds_rows(table) for table in tables]
        return cls(sql.SQL(" UNION ALL ").join(checks), frozenset(initial))

    def restore(self) -> None:
        """Delete what was written since. Threads of the application may go on reading and writing meanwhile."""
        _wait_for_writers()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with transaction.atomic(), connection.cursor() as cursor:
                    self._restore(cursor)
                return
            except OperationalError:  # such as a deadlock with a thread that writes
                if attempt == ATTEMPTS:
                    raise

    def _restore(self, cursor: CursorWrapper) -> None:
        # As a replica Postgres runs no trigger: neither the checks of foreign keys nor the audit trail's own refusal.
        cursor.execute(f"SET LOCAL session_replication_role = replica; SET LOCAL lock_timeout = '{WAIT_S:.0f}s'")
        for table in names(cursor, self.changed):
            cursor.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
            if table in self.initial:
                cursor.execute(sql.SQL("INSERT INTO {} TABLE {}").format(sql.Identifier(table), _copy_of(table)))


def restore_after_transactional_tests() -> None:
    """Let Django's transactional test cases, which are pytest-django's too, restore the database in this way."""
    initial_rows = InitialRows.keep()

    def restore(self: TransactionTestCase) -> None:
        initial_rows.restore()

    TransactionTestCase._fixture_teardown = restore  # type: ignore[attr-defined]


def delete_rows(table: str) -> None:
    """Delete all rows of ``table`` for the test that runs, those too that the audit trail's triggers protect."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        cursor.execute("SET LOCAL session_replication_role = origin")


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Run ``work``, which uses the database, in a thread whose connection returns to the pool.

    ``asyncio.to_thread`` leaves a connection of the pool in the thread, which ends with the test's event loop.
    """

    def run() -> T:
        with own_connection():
            return work(*arguments)

    return await asyncio.to_thread(run)


def end_other_connections() -> None:
    """End the connections of threads that outlived their tests, for which DROP DATABASE would wait."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def names(cursor: CursorWrapper, query: psycopg.sql.Composed) -> set[str]:
    cursor.execute(query)
    return {name for (name,) in cursor.fetchall()}


def _wait_for_writers() -> None:
    """Wait for the transactions in which other connections have written: their rows cannot be seen before."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL)"
            )
            if cursor.fetchone() == (False,):
                return
        time.sleep(0.01)


def _holds_rows(table: str) -> psycopg.sql.Composed:
    return sql.SQL("SELECT {} WHERE EXISTS (TABLE {})").format(sql.Literal(table), sql.Identifier(table))


def _differs(table: str) -> psycopg.sql.Composed:
    return sql.SQL("SELECT {} WHERE {} IS DISTINCT FROM {}").format(
        sql.Literal(table), _digest(sql.Identifier(table)), _digest(_copy_of(table))
    )


def _digest(table: psycopg.sql.Composable) -> psycopg.sql.Composed:
    return sql.SQL("(SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {} t)").format(table)


def _copy_of(table: str) -> psycopg.sql.Identifier:
    return sql.Identifier(KEPT, table)
