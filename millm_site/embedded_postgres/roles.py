"""Who connects to the embedded server: the owner of the tables migrates them, the application reads and writes rows."""

from __future__ import annotations

from pathlib import Path

import psycopg

OWNER = "postgres"  # the superuser of initdb: extensions need one
APPLICATION = "millm"
DATABASE = "postgres"

# Idempotent. The default privileges are for tables that later migrations create. TRUNCATE is not granted.
_STATEMENTS = f"""
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{APPLICATION}') THEN
        CREATE ROLE {APPLICATION} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
    END IF;
END
$$;
GRANT USAGE ON SCHEMA public TO {APPLICATION};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {APPLICATION};
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO {APPLICATION};
ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER} IN SCHEMA public
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {APPLICATION};
ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER} IN SCHEMA public GRANT USAGE, SELECT, UPDATE ON SEQUENCES TO {APPLICATION};
"""


def prepare_roles(socket_dir: Path) -> None:
    """Create the application's role, or grant it the privileges that a newer version needs.

    Databases of older versions have only the owner. Does nothing if the role can already use all tables, because
    several processes may start at once.
    """
    with psycopg.connect(host=str(socket_dir), user=OWNER, dbname=DATABASE, connect_timeout=30) as connection:
        if connection.execute(_IS_READY).fetchone() != (True,):
            connection.execute(_STATEMENTS.encode())


_IS_READY = f"""
    SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = '{APPLICATION}')
    AND EXISTS (SELECT FROM pg_default_acl)
    AND NOT EXISTS (
        SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
        AND NOT COALESCE(has_table_privilege(
            (SELECT oid FROM pg_roles WHERE rolname = '{APPLICATION}'), oid, 'SELECT'), false)
    )
"""  # noqa: S608 - constants
