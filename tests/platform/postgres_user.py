"""Run with ``python -m``: a process that uses the embedded server until its standard input closes."""

from __future__ import annotations

import sys

import django
from django.conf import settings
from django.db import connection

from millm_site.database import database_settings
from millm_site.embedded_postgres.roles import OWNER
from millm_site.env import environment

# Of the site only the database: this process is started often.
DATABASE = {**database_settings(environment()), "USER": OWNER}  # it makes a table
settings.configure(DATABASES={"default": DATABASE}, INSTALLED_APPS=["millm_site"])
django.setup()


def main() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(1)")
        cursor.execute("CREATE TABLE IF NOT EXISTS visits (pid int)")
        cursor.execute("SELECT pg_advisory_unlock(1)")
        cursor.execute("INSERT INTO visits VALUES (pg_backend_pid())")
        cursor.execute("SELECT count(*), (SELECT pg_postmaster_start_time()) FROM visits")
        print("visits", *(cursor.fetchone() or ()), sep="|", flush=True)  # noqa: T201
    connection.close()  # as at the end of a request
    sys.stdin.read()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    print("still served", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
