"""The Postgres that settings point to: a given server, or the embedded one under MILLM_HOME."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from millm_site.embedded_postgres.cluster import EmbeddedPostgres, socket_dir_for
from millm_site.embedded_postgres.place import data_dir_of
from millm_site.embedded_postgres.roles import APPLICATION, DATABASE, OWNER
from millm_site.env import Environment, environment

EMBEDDED = "millm_site.embedded_postgres"
RECONNECT_S = 4.0
MIN_PGVECTOR = (0, 8)  # has iterative scans of indexes
LISTENERS = 2  # connections of a process outside its pool: for changes, and for jobs


def database_settings(env: Environment) -> dict[str, Any]:
    """Return Django's DATABASES entry. The embedded server only starts at the first connection."""
    url = env.database_url.get_secret_value()
    place = parse_database_url(url) if url else embedded_database(data_dir_of(env.home))
    pool = {
        "min_size": 1,
        "max_size": env.database_pool_size,
        "timeout": env.database_timeout,
        # The pool doubles its waiting time after each failed attempt. Start over instead, so that a server that is up
        # again is used at once.
        "reconnect_timeout": RECONNECT_S,
    }
    return place | {
        "CONN_MAX_AGE": 0,  # a pool needs it, and persistent connections leak under ASGI
        "CONN_HEALTH_CHECKS": True,  # else requests fail after the server was restarted
        "OPTIONS": {"connect_timeout": 5, **place["OPTIONS"], "pool": pool},
    }


def embedded_database(data_dir: Path) -> dict[str, Any]:
    return {
        "ENGINE": EMBEDDED,
        "NAME": DATABASE,
        "USER": APPLICATION,
        "PASSWORD": "",
        "HOST": str(socket_dir_for(data_dir)),
        "PORT": "",
        "OPTIONS": {},
    }


def parse_database_url(url: str) -> dict[str, Any]:
    """Return Django's settings for a libpq URL. Raise psycopg.ProgrammingError if it is invalid."""
    parts = conninfo_to_dict(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": str(parts.pop("dbname", "postgres")),
        "USER": str(parts.pop("user", "")),
        "PASSWORD": str(parts.pop("password", "")),
        "HOST": str(parts.pop("host", "")),
        "PORT": str(parts.pop("port", "")),
        "OPTIONS": parts,
    }


@cache
def embedded_postgres() -> EmbeddedPostgres:
    """Return this process's handle of the embedded server."""
    home = environment().home
    return EmbeddedPostgres(data_dir_of(home), link=home / "postgres")


@contextmanager
def as_owner() -> Iterator[None]:
    """Connect as the owner of the tables within this block, to migrate them. Only for single-threaded processes.

    With MILLM_DATABASE_URL there is only the user of that URL.
    """
    from django.db import connection

    place = connection.settings_dict
    if place["ENGINE"] != EMBEDDED or place["USER"] == OWNER:
        yield
        return
    _connect_as(OWNER)
    try:
        yield
    finally:
        _connect_as(APPLICATION)


def _connect_as(user: str) -> None:
    from django.db import connections
    from django.db.backends.postgresql.base import DatabaseWrapper

    connection = connections["default"]
    connection.close()
    assert isinstance(connection, DatabaseWrapper)
    connection.close_pool()
    connection.settings_dict["USER"] = user


def stop_embedded() -> bool:
    """Close our connections and stop the embedded server unless another process uses it. Return whether it stopped."""
    from django.db import connections
    from django.db.backends.postgresql.base import DatabaseWrapper

    server = embedded_postgres()
    if not server.is_used_here:
        return False
    for connection in connections.all(initialized_only=True):
        connection.close()
        if isinstance(connection, DatabaseWrapper):
            connection.close_pool()
    return server.stop_if_unused()


def database_problem() -> str:
    """Return why the server of MILLM_DATABASE_URL cannot be used, otherwise "". The embedded one always can."""
    from django.db import connection

    if connection.settings_dict["ENGINE"] == EMBEDDED:
        return ""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('server_encoding'), coalesce("
            "(SELECT extversion FROM pg_extension WHERE extname = 'vector'), "
            "(SELECT default_version FROM pg_available_extensions WHERE name = 'vector'), '')"
        )
        encoding, pgvector = cursor.fetchone()
    return problem_of(encoding, pgvector)


def problem_of(encoding: str, pgvector: str) -> str:
    """Return what is wrong with a database of this encoding and version of pgvector ("" if it is missing)."""
    if encoding != "UTF8":
        return (
            f"The database has the encoding {encoding}, but miLLM needs UTF8. Create another one: "
            "CREATE DATABASE millm ENCODING 'UTF8' TEMPLATE template0."
        )
    if not pgvector:
        return "The database server does not have the extension pgvector. Install it there, version 0.8 or newer."
    if tuple(int(number) for number in pgvector.split(".")[:2]) < MIN_PGVECTOR:
        return (
            f"The database has pgvector {pgvector}, but miLLM needs 0.8 or newer. Install it on the database server; "
            "if an older version is in use, run ALTER EXTENSION vector UPDATE."
        )
    return ""


def connections_warning(num_processes: int) -> str:
    """Return a warning if the pools of so many processes may exceed the connections of the database, otherwise ""."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
        )
        (possible,) = cursor.fetchone()
    needed = num_processes * (environment().database_pool_size + LISTENERS)
    if needed <= possible:
        return ""
    return (
        f"Warning: {num_processes} processes may open {needed} database connections, but the database allows "
        f"{possible}. Lower MILLM_DATABASE_POOL_SIZE, or raise max_connections."
    )
