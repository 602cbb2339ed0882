"""A server that is killed while requests run, and the one that starts after it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from openai import OpenAI

from tests import live
from tests.conftest import site_environment
from tests.media.tiny_video import save_wan

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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of OpenAI's client
def test_a_video_of_a_killed_server_is_made_by_the_next_one(tmp_path: Path, migrated_database_url: str) -> None:
    environment = site_environment(migrated_database_url, tmp_path) | {"MILLM_JOB_STALL_SECONDS": "1"}
    live.manage("add_model", "wan", str(save_wan(tmp_path.parent / "wan")), environment=environment)
    shape: Any = {"size": "64x32", "seconds": "1", "extra_body": {"fps": 5, "steps": 1_000}}
    with live.serving(environment=environment) as server:
        videos = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0).videos
        made = videos.create(model="wan", prompt="a bird", **shape)
        waiting = videos.create(model="wan", prompt="a cat", **shape)
        _until(lambda: videos.retrieve(made.id).progress > 0)
        server.kill()
    with psycopg.connect(migrated_database_url) as connection:
        progress, *_ = connection.execute("SELECT max(progress) FROM media_video").fetchone() or (0,)
        connection.execute("UPDATE media_video SET options = '{\"steps\": 2}'")
    with live.serving(environment=environment) as server:
        videos = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0).videos
        assert videos.retrieve(made.id).progress >= progress
        _until(lambda: all(videos.retrieve(video.id).status == "completed" for video in (made, waiting)))
        content = videos.download_content(made.id).content
        assert b"ftyp" in content[:16]
        assert videos.delete(waiting.id).deleted
        assert server.stop() == 0, server.output
    with psycopg.connect(migrated_database_url) as connection:
        rows = connection.execute("SELECT attempts, outputs FROM media_video").fetchall()
    assert [attempts for attempts, _ in rows] == [2]
    files = {path.name for path in (tmp_path / "videos").rglob("*") if path.is_file()}
    assert files == {output["name"] for _, outputs in rows for output in outputs.values()}


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + live.PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
