"""Two servers on one database that keep files in a bucket: each has what the other one stored."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from openai import OpenAI

from tests import live
from tests.conftest import site_environment
from tests.e2e.test_batches import COUNT, begin, lines, until
from tests.s3_server import BUCKET, s3_server

pytestmark = pytest.mark.live
TEXT = b"The ferry to Nordby leaves at seven.\n" * 4_000


def client_of(server: live.LiveServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_another_server_has_the_files_and_goes_on_with_a_batch(database_url: str, tmp_path: Path):
    with s3_server() as credentials:
        shared = {"MILLM_FILES_URL": f"{BUCKET}/site", "MILLM_JOB_STALL_SECONDS": "2"} | credentials
        homes = [site_environment(database_url, tmp_path / name) | shared for name in ("first", "second")]
        with live.serving("--setup", environment=homes[0]) as server:
            client = client_of(server)
            file = client.files.create(file=("notes.txt", TEXT), purpose="assistants")
            batch = until(client, begin(client, lines(COUNT, max_tokens=60, ignore_eos=True)), num_done=1)
            assert batch.status == "in_progress", batch
            server.stop(signal.SIGKILL)
        with live.serving("--setup", environment=homes[1]) as server:
            client = client_of(server)
            assert client.files.content(file.id).content == TEXT
            part = client.files.with_raw_response.content(file.id, extra_headers={"Range": "bytes=37-73"})
            assert (part.http_response.status_code, part.content) == (206, TEXT[37:74])
            batch = until(client, batch)
            assert batch.status == "completed", batch
            assert batch.output_file_id is not None
            answers = client.files.content(batch.output_file_id).text.splitlines()
            assert [json.loads(line)["custom_id"] for line in answers] == [f"r{n}" for n in range(COUNT)]
            client.files.delete(file.id)
            assert server.stop() == 0, server.output
        assert not list((tmp_path / "second").glob("**/files/??"))
