"""A database whose tables somebody holds, for longer than any request waits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from openai import APIStatusError, OpenAI
from psycopg import sql

from tests import live
from tests.conftest import site_environment

pytestmark = pytest.mark.live
STORY: Any = [{"role": "user", "content": "Tell me a story."}]
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
ROWS = 'SELECT "user", status FROM openai_api_requestlog'


def test_streams_go_on_and_others_wait_for_a_bounded_time(tmp_path: Path, database_url: str) -> None:
    environment = {
        **site_environment(database_url, tmp_path),
        "MILLM_AUTH": "required",
        "MILLM_DATABASE_TIMEOUT": "1",
    }
    with live.serving("--setup", environment=environment) as server:
        (key,) = re.findall(r"sk-millm-\S+", server.manage("create_api_key", "test", "--user", "admin"))
        client = OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
        tell(client, "before")
        stream = client.chat.completions.create(
            model="demo", messages=STORY, max_tokens=400, stream=True, user="during", extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        with every_table_held(database_url):
            assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
            status = status_of(client, "held")
            with pytest.raises(APIStatusError) as raised:
                client.responses.retrieve("resp_any")
        assert status in {200, 503}
        assert raised.value.status_code == 503
        assert raised.value.code == "database_unavailable"
        assert "retry-after" in raised.value.response.headers
        tell(client, "after")
        assert server.stop() == 0, server.output
    with psycopg.connect(database_url) as connection:
        logged: dict[str, int] = dict(connection.execute(ROWS).fetchall())
    assert logged | {"": 0} == {"before": 200, "during": 200, "held": status, "after": 200, "": 0}


def tell(client: OpenAI, user: str) -> None:
    assert client.chat.completions.create(model="demo", messages=STORY, max_tokens=5, user=user).choices


def status_of(client: OpenAI, user: str) -> int:
    try:
        tell(client, user)
    except APIStatusError as error:
        return error.status_code
    return 200


@contextmanager
def every_table_held(database_url: str) -> Iterator[None]:
    """By a transaction that lets nobody else read them."""
    with psycopg.connect(database_url) as connection:
        names = [sql.Identifier(name) for (name,) in connection.execute(TABLES).fetchall()]
        connection.execute("SET lock_timeout = '30s'")
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(", ").join(names)))
        yield
        connection.rollback()
