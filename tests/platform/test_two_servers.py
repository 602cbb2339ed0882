"""Two servers that start at the same moment on one database."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests import live
from tests.conftest import site_environment
from tests.platform.wire import get

pytestmark = pytest.mark.live


def test_they_migrate_once_and_both_serve(tmp_path: Path, empty_database_url: str) -> None:
    command = [sys.executable, "manage.py", "serve", "--setup"]
    environment = {**site_environment(empty_database_url, tmp_path), "MILLM_PORT": "0"}
    with ExitStack() as stack:
        servers = [stack.enter_context(live.running(command, environment)) for _ in range(2)]
        urls = [server.wait_for(live.SERVES_ON).group(1) for server in servers]
        assert [model_ids(url) for url in urls] == [["demo"], ["demo"]]
        assert servers[0].stop() == 0
        assert model_ids(urls[1]) == ["demo"], "the first one's end is not the second one's"
        assert servers[1].stop() == 0
    with psycopg.connect(empty_database_url) as connection:
        twice = "SELECT app, name FROM django_migrations GROUP BY app, name HAVING count(*) > 1"
        assert connection.execute(twice).fetchall() == []
        assert connection.execute("SELECT count(*) FROM auth_user").fetchone() == (1,)


def model_ids(url: str) -> list[str]:
    return [model["id"] for model in json.loads(get(url, "/v1/models").body)["data"]]
