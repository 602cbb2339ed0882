"""MILLM_STORAGE_QUOTA_BYTES: what one owner's files may have together."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection

from storage.blobs import BlobStore
from storage.errors import StorageQuotaError
from storage.files import keep_file, used_bytes
from storage.models import StoredFile
from tests.database import in_thread
from tests.openai_api.conftest import Api
from tests.openai_api.test_files import check_error, kept, on_disk, send

pytestmark = pytest.mark.django_db(transaction=True)
QUOTA = 1_000


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0
    settings.MILLM_STORAGE_QUOTA_BYTES = QUOTA
    return tmp_path


async def begin(api: Api, size: int) -> Any:
    fields = {"bytes": size, "filename": "a.txt", "mime_type": "text/plain", "purpose": "assistants"}
    return await api.post("/v1/uploads", fields)


async def part(api: Api, upload_id: str, content: bytes) -> Any:
    form = {"data": SimpleUploadedFile("part", content)}
    return await api.client.post(f"/v1/uploads/{upload_id}/parts", form)


async def test_files_up_to_the_quota_are_taken_and_no_more(api: Api, home: Path):
    first = await kept(api, b"x" * 600)
    check_error(await send(api, b"x" * 401), 413, "storage_quota_exceeded", "file")
    assert len(on_disk(home)) == 1, "nothing is left of what was refused"
    await kept(api, b"x" * 400)
    refused = await send(api, b"x")
    check_error(refused, 413, "storage_quota_exceeded", "file")
    assert "1000 bytes" in refused.json()["error"]["message"]
    await api.client.delete(f"/v1/files/{first.id}")
    await kept(api, b"x" * 600)


async def test_each_owner_has_an_own_quota(api: Api):
    await kept(api, b"x" * 1_000)
    user = await get_user_model().objects.acreate(username="ann")
    ann = api.keys.add("sk-ann", owner_id=user.pk)
    await kept(api, b"x" * 1_000, headers=ann)
    check_error(await send(api, b"x", headers=ann), 413, "storage_quota_exceeded", "file")


async def test_uploads_are_refused_when_they_begin_and_parts_count(api: Api):
    check_error(await begin(api, 1_001), 413, "storage_quota_exceeded", "bytes")
    first, second = [(await begin(api, 600)).json()["id"] for _ in range(2)]
    part_id = (await part(api, first, b"x" * 600)).json()["id"]
    check_error(await part(api, second, b"x" * 600), 413, "storage_quota_exceeded", "data")
    done = await api.post(f"/v1/uploads/{first}/complete", {"part_ids": [part_id]})
    assert done.status_code == 200, done.content
    assert await in_thread(used, None) == 600
    assert (await part(api, second, b"x" * 400)).status_code == 200
    await api.post(f"/v1/uploads/{second}/cancel", {})
    assert await in_thread(used, None) == 600


async def test_without_a_quota_everything_is_taken(api: Api, settings: Any):
    settings.MILLM_STORAGE_QUOTA_BYTES = 0
    await kept(api, b"x" * 5_000)


def used(owner_id: int | None) -> int:
    try:
        return used_bytes(owner_id)
    finally:
        connection.close()


def keep(size: int, purpose: str = "assistants") -> StoredFile:
    with BlobStore.from_settings().writing() as writer:
        writer.write(b"x" * size)
        return keep_file(writer=writer, filename="a.txt", purpose=purpose, owner_id=None)


def test_results_of_batches_are_kept_all_the_same():
    keep(1_000)
    assert keep(500, "batch_output").size == 500
    with pytest.raises(StorageQuotaError):
        keep(1)


def test_files_that_come_at_once_share_the_quota():
    """Each looks, and only one finds room."""
    barrier, ends = threading.Barrier(4), list[str]()

    def work() -> None:
        try:
            barrier.wait()
            keep(600)
            ends.append("kept")
        except StorageQuotaError:
            ends.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["kept", "refused", "refused", "refused"]
    assert used_bytes(None) == 600
