"""A server that is killed while requests run, and the one that starts after it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from openai import OpenAI

from tests import live
from tests.conftest import site_environment

pytestmark = pytest.mark.live
STORY: Any = [{"role": "user", "content": "Tell me a story."}]
RUNNING = 6
ROWS = """SELECT "user", error_code FROM openai_api_requestlog WHERE "user" <> '' OR error_code <> ''"""


def test_every_request_of_a_killed_server_has_one_row(tmp_path: Path, database_url: str) -> None:
    environment = site_environment(database_url, tmp_path)
    with live.serving("--setup", environment=environment) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)
        client.chat.completions.create(model="demo", messages=STORY, max_tokens=3, user="before")
        streams = [
            client.chat.completions.create(
                model="demo", messages=STORY, max_tokens=800, stream=True, extra_body={"ignore_eos": True}
            )
            for _ in range(RUNNING)
        ]
        for stream in streams:
            next(iter(stream))
        server.kill()
    with live.serving(environment=environment) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)
        client.chat.completions.create(model="demo", messages=STORY, max_tokens=3, user="after")
        assert server.stop() == 0, server.output
    with psycopg.connect(database_url) as connection:
        found = Counter(connection.execute(ROWS).fetchall())
    assert found == {("before", ""): 1, ("after", ""): 1, ("", "server_killed"): RUNNING}
    assert list((tmp_path / "journal").iterdir()) == []
