"""Django's DATABASES from MILLM_DATABASE_URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from millm_site.database import database_settings, parse_database_url, problem_of
from millm_site.embedded_postgres.cluster import MAX_SOCKET_PATH, socket_dir_for
from millm_site.env import Environment


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@db:5433/name", {"USER": "u", "PASSWORD": "p", "HOST": "db", "PORT": "5433", "NAME": "name"}),
        ("postgresql://u%40x:p%2F%3A%20%25@db/na%20me", {"USER": "u@x", "PASSWORD": "p/: %", "NAME": "na me"}),
        ("postgresql:///name?host=/run/postgresql", {"HOST": "/run/postgresql", "NAME": "name", "USER": ""}),
        ("postgresql://u@%2Frun%2Fpg/name", {"HOST": "/run/pg", "USER": "u"}),
        ("postgres://db", {"HOST": "db", "NAME": "postgres", "PORT": ""}),
        ("postgresql://[::1]:5433/name", {"HOST": "::1", "PORT": "5433"}),
        ("postgresql://a:1,b:2/name", {"HOST": "a,b", "PORT": "1,2"}),
        (
            "postgresql://db/n?sslmode=require&application_name=m",
            {"OPTIONS": {"sslmode": "require", "application_name": "m"}},
        ),
    ],
)
def test_url_is_read_as_libpq_reads_it(url: str, expected: dict[str, object]) -> None:
    parsed = parse_database_url(url)
    assert {key: parsed[key] for key in expected} == expected


def test_given_server_uses_djangos_own_backend_with_a_checked_pool() -> None:
    env = Environment.model_validate(
        {"database_url": "postgresql://db/n", "database_pool_size": 7, "database_timeout": 2}
    )
    entry = database_settings(env)
    assert entry["ENGINE"] == "django.db.backends.postgresql"
    assert entry["CONN_MAX_AGE"] == 0
    assert entry["CONN_HEALTH_CHECKS"] is True
    assert entry["OPTIONS"]["pool"] == {"min_size": 1, "max_size": 7, "timeout": 2.0, "reconnect_timeout": 4.0}


def test_no_url_means_the_embedded_server(home: Path) -> None:
    entry = database_settings(Environment.model_validate({"home": str(home)}))
    assert (entry["ENGINE"], entry["USER"]) == ("millm_site.embedded_postgres", "millm")
    assert entry["HOST"] == str(home / "postgres")
    assert not (home / "postgres").exists()


@pytest.mark.parametrize(
    ("encoding", "pgvector", "expected"),
    [
        ("UTF8", "0.8.0", ""),
        ("UTF8", "0.10.1", ""),
        ("UTF8", "1.0", ""),
        ("UTF8", "0.7.4", "has pgvector 0.7.4"),
        ("UTF8", "", "does not have the extension pgvector"),
        ("SQL_ASCII", "0.8.0", "has the encoding SQL_ASCII"),
    ],
)
def test_database_needs_utf8_and_a_recent_pgvector(encoding: str, pgvector: str, expected: str) -> None:
    problem = problem_of(encoding, pgvector)
    assert expected in problem
    assert bool(problem) is bool(expected)


def test_socket_lies_in_the_data_folder_unless_the_path_is_too_long() -> None:
    short, long = Path("/srv/millm/postgres"), Path("/srv") / ("x" * 120) / "postgres"
    assert socket_dir_for(short) == short
    assert len(str(socket_dir_for(long) / ".s.PGSQL.5432")) <= MAX_SOCKET_PATH
    assert socket_dir_for(long) != socket_dir_for(long.with_name("other"))
