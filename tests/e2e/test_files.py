"""The official openai client sends, lists and fetches files from a live server."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import FileObject, Upload

from benchmarks.machine import peak_memory_mb
from tests import live
from tests.conftest import LiveSite, site_environment

MEGABYTE = 2**20


def test_a_file_s_life(client: OpenAI):
    file = client.files.create(
        file=("notes.txt", b"The cat sat."),
        purpose="assistants",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    FileObject.model_validate(file.to_dict(), strict=True)
    assert file.expires_at == file.created_at + 3_600
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == b"The cat sat."
    assert file.id in [each.id for each in client.files.list(purpose="assistants", limit=1)]
    assert client.files.wait_for_processing(file.id).status == "processed"
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.content(file.id)
    assert (caught.value.code, caught.value.param) == ("file_not_found", "file_id")


async def test_the_asynchronous_client(live_site: LiveSite):
    async with AsyncOpenAI(base_url=live_site.api_url, api_key="none", max_retries=0) as client:
        files = await asyncio.gather(
            *(client.files.create(file=(f"{n}.txt", b"x" * n), purpose="user_data") for n in range(8))
        )
        contents = await asyncio.gather(*(client.files.content(file.id) for file in files))
        assert [content.content for content in contents] == [b"x" * n for n in range(8)]
        assert {file.id for file in files} <= {file.id async for file in client.files.list(limit=3)}


def test_an_upload_in_parts(client: OpenAI, tmp_path: Path):
    path = tmp_path / "big.txt"
    path.write_bytes(os.urandom(2 * MEGABYTE + 17))
    upload = client.uploads.upload_file_chunked(
        file=path, mime_type="text/plain", purpose="assistants", part_size=700_000
    )
    Upload.model_validate(upload.to_dict(), strict=True)
    assert upload.file is not None
    assert client.files.content(upload.file.id).read() == path.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of the memory from /proc")
def test_large_files_pass_without_filling_the_memory(client: OpenAI, live_site: LiveSite, tmp_path: Path):
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(160 * MEGABYTE)
    client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hello."}], max_tokens=1)
    pid = live_site.server.pid  # what it needs in any case is loaded now
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the largest size until now
    before = peak_memory_mb(pid)
    kept = client.files.create(file=path, purpose="user_data", timeout=600)
    assert kept.bytes == 160 * MEGABYTE
    with httpx2.stream("GET", f"{live_site.api_url}/files/{kept.id}/content", timeout=600) as response:
        assert sum(len(block) for block in response.iter_bytes()) == kept.bytes
    part = httpx2.get(f"{live_site.api_url}/files/{kept.id}/content", headers={"Range": "bytes=-5"})
    assert (part.status_code, part.content) == (206, bytes(5))
    assert httpx2.head(f"{live_site.api_url}/files/{kept.id}/content").headers["Content-Length"] == str(kept.bytes)
    peak = peak_memory_mb(pid)
    assert before is not None
    assert peak is not None
    assert peak - before < 60
    assert client.files.delete(kept.id).deleted


def test_a_chunked_form_without_a_length(live_site: LiveSite):
    body = b'--X\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello\r\n'
    body += b'--X\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n--X--\r\n'
    blocks = (body[start : start + 7] for start in range(0, len(body), 7))
    headers = {"Content-Type": "multipart/form-data; boundary=X"}
    answer = httpx2.post(f"{live_site.api_url}/files", content=blocks, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == 5


def test_other_routes_take_no_large_bodies(live_site: LiveSite):
    answer = httpx2.post(f"{live_site.api_url}/files/file-0", content=b"x" * (9 * MEGABYTE))
    assert answer.status_code == 413


def test_the_examples_of_the_page_run(client: OpenAI):
    page = (live.PROJECT_DIR / "docs" / "openai-compatibility.md").read_text()
    section = page.split("\n## Files\n")[1].split("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    exec(compile(example, "docs/openai-compatibility.md", "exec"), {"client": client})  # noqa: S102


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 6 MiB, where the machine lets tests make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("only root can mount a small disk")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], check=False).returncode != 0:
        pytest.skip("this machine mounts nothing")
    try:
        yield folder
    finally:
        subprocess.run([unmount, "-l", str(folder)], check=True)


def test_a_full_disk_costs_the_upload_and_nothing_else(small_disk: Path, migrated_database_url: str):
    environment = {**site_environment(migrated_database_url, small_disk), "MILLM_MIN_FREE_BYTES": "0"}
    with live.serving(environment=environment) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        kept = client.files.create(file=("a.txt", b"a" * MEGABYTE), purpose="user_data")
        for size in (5 * MEGABYTE, 3 * MEGABYTE, 20 * MEGABYTE):
            with pytest.raises(openai.APIStatusError) as caught:
                client.files.create(file=("b.txt", b"b" * size), purpose="user_data")
            assert caught.value.status_code == 507
            assert caught.value.code == "insufficient_storage"
        assert [path.stat().st_size for path in (small_disk / "files").rglob("*") if path.is_file()] == [MEGABYTE]
        assert [file.id for file in client.files.list()] == [kept.id]
        assert client.files.content(kept.id).read() == b"a" * MEGABYTE
        assert httpx2.get(f"{server.url}/health").status_code in {200, 503}
        client.files.create(file=io.BytesIO(b"small"), purpose="user_data")
        assert server.stop() == 0, server.output
