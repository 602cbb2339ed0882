"""What may be said of a database error: Postgres quotes rows in its messages, and rows hold prompts."""

from __future__ import annotations

import psycopg
from django.db import Error as DjangoDatabaseError

MAX_LINE = 300


def is_of_database(error: object) -> bool:
    return isinstance(error, DjangoDatabaseError | psycopg.Error)


def describe(error: BaseException) -> str:
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
