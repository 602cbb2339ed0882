"""The admin's pages of what clients keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from storage.blobs import BlobStore
from storage.files import keep_file
from storage.models import Batch, StoredFile, VectorStore

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0
    return tmp_path


@pytest.fixture
def file() -> StoredFile:
    with BlobStore.from_settings().writing() as writer:
        writer.write(b"x" * 2_048)
        return keep_file(writer=writer, filename="<b>cat</b>.txt", purpose="assistants", owner_id=None)


def test_everything_is_shown_and_nothing_changed(admin_client: Client, file: StoredFile):
    from django.utils import timezone

    batch = Batch.objects.create(endpoint="/v1/embeddings", input_file="f", expires_at=timezone.now())
    store = VectorStore.objects.create(name="notes")
    store.files.create(file=file, max_chunk_tokens=800, overlap_tokens=400)
    for name, row in (("storedfile", file), ("batch", batch), ("vectorstore", store)):
        listed = admin_client.get(f"/admin/storage/{name}/")
        assert row.public_id in listed.content.decode()
        page = admin_client.get(f"/admin/storage/{name}/{row.pk}/change/")
        assert page.status_code == 200
        assert "<b>cat</b>" not in page.content.decode()
        assert admin_client.post(f"/admin/storage/{name}/{row.pk}/change/", {"name": "x"}).status_code == 403
        assert admin_client.get(f"/admin/storage/{name}/add/").status_code == 403


def test_a_batch_names_its_files_and_says_how_far_it_is(admin_client: Client, file: StoredFile):
    from datetime import UTC, datetime

    at = datetime(2026, 3, 4, 17, 8, 9, tzinfo=UTC)
    batch = Batch.objects.create(
        endpoint="/v1/embeddings", input_file=file.public_id, output_file="file-gone", status="completed",
        total=1_200, completed=1_198, failed=2, usage={"input_tokens": 14, "output_tokens": 12, "cached_tokens": 3},
        errors=[{"code": "invalid", "line": 7, "message": "No <url>."}],
        created_at=at, completed_at=at, expires_at=at,
    )  # fmt: skip
    page = admin_client.get(f"/admin/storage/batch/{batch.pk}/change/").content.decode()
    assert f'<a href="/admin/storage/storedfile/{file.pk}/change/">&lt;b&gt;cat&lt;/b&gt;.txt</a>' in page
    for words in (
        "file-gone (deleted)",
        "1,198 of 1,200 completed, 2 failed",
        "14 → 12, 3 cached",
        "Line 7: No &lt;url&gt;.",
        "2026-03-04 17:08:09 completed",
    ):
        assert words in page
    assert "input_tokens" not in page
    assert "&lt;b&gt;cat&lt;/b&gt;.txt" in admin_client.get("/admin/storage/batch/").content.decode()


def test_a_store_shows_its_files_by_name_with_a_size(admin_client: Client, file: StoredFile):
    store = VectorStore.objects.create(name="notes")
    made = store.files.create(
        file=file, max_chunk_tokens=800, overlap_tokens=400, usage_bytes=2_048, attributes={"year": 2026}
    )
    page = admin_client.get(f"/admin/storage/vectorstore/{store.pk}/change/").content.decode()
    assert f'<a href="/admin/storage/storedfile/{made.file_id}/change/">' in page
    assert "2.0\xa0KB" in page
    assert "year: 2026" in page


@pytest.mark.parametrize("way", ["page", "action"])
def test_deleted_files_take_their_bytes_along(
    admin_client: Client, file: StoredFile, home: Path, way: str, django_capture_on_commit_callbacks: Any
):
    with django_capture_on_commit_callbacks(execute=True):
        if way == "page":
            admin_client.post(f"/admin/storage/storedfile/{file.pk}/delete/", {"post": "yes"})
        else:
            action = {"action": "delete_selected", "_selected_action": [file.pk], "post": "yes"}
            admin_client.post("/admin/storage/storedfile/", action)
    assert not StoredFile.objects.exists()
    assert [path for path in (home / "files").rglob("*") if path.is_file()] == []


def test_files_show_their_owner_s_quota_and_their_lifetime(admin_client: Client, file: StoredFile, settings: Any):
    from datetime import timedelta

    from django.utils import timezone

    page = admin_client.get("/admin/storage/storedfile/").content.decode()
    assert "2.0\xa0KB, no limit" in page
    assert "never" in page
    settings.MILLM_STORAGE_QUOTA_BYTES = 4_096
    StoredFile.objects.update(expires_at=timezone.now() + timedelta(days=3, minutes=5))
    page = admin_client.get("/admin/storage/storedfile/").content.decode()
    assert "2.0\xa0KB of 4.0\xa0KB (50%)" in page
    assert "in 3\xa0days" in page
    detail = admin_client.get(f"/admin/storage/storedfile/{file.pk}/change/").content.decode()
    assert "2.0\xa0KB of 4.0\xa0KB (50%)" in detail
