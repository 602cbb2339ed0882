"""/v1/files and /v1/uploads over fakes of the engine, with a real database and a real disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import RequestFactory
from django.utils import timezone
from openai.types import FileDeleted, FileObject, Upload
from openai.types.uploads import UploadPart

from jobs.periodic import enqueue_due
from openai_api.http.file_uploads import BLOCK, read_form
from openai_api.http.signed_links import signed_link
from storage.apps import EXPIRE_KIND, ORPHANS_KIND
from storage.blobs import BlobStore
from storage.files import keep_file
from storage.models import StoredFile
from storage.models import Upload as UploadRow
from storage.models import UploadPart as PartRow
from storage.sweep import Sweep, run_expire, run_orphans, sweep_storage
from tests.core.test_database import locked
from tests.openai_api.conftest import Api

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = b"The cat sat by the sea."


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0
    return tmp_path


def on_disk(home: Path) -> list[Path]:
    return [path for path in (home / "files").rglob("*") if path.is_file()]


def three_files(store: BlobStore) -> list[str]:
    """Store three files and return the names of their blobs."""
    names = []
    for number in range(3):
        with store.writing() as writer:
            writer.write(TEXT)
            names.append(keep_file(writer=writer, filename=str(number), purpose="assistants", owner_id=None).blob)
    return names


async def send(api: Api, content: bytes = TEXT, name: str = "cat.txt", /, headers: Any = None, **fields: Any) -> Any:
    form = {"file": SimpleUploadedFile(name, content), "purpose": "assistants", **fields}
    return await api.client.post("/v1/files", form, headers=headers)


async def kept(api: Api, *arguments: Any, **fields: Any) -> FileObject:
    response = await send(api, *arguments, **fields)
    assert response.status_code == 200, response.content
    return FileObject.model_validate(response.json(), strict=True)


async def content(api: Api, file_id: str, **headers: str) -> Any:
    response: Any = await api.client.get(f"/v1/files/{file_id}/content", headers=headers)
    response.body = b"".join([part async for part in response.streaming_content]) if response.streaming else b""
    return response


def check_error(response: Any, status: int, code: str, param: str | None) -> None:
    assert response.status_code == status, response.content[:500]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error


async def test_a_file_comes_back_as_it_was(api: Api, home: Path):
    file = await kept(api, b"\x00\xff" * 300_000, "a b.bin")
    assert (file.bytes, file.filename, file.purpose, file.expires_at) == (600_000, "a b.bin", "assistants", None)
    response = await content(api, file.id)
    assert response.body == b"\x00\xff" * 300_000
    assert response["Content-Type"] == "application/octet-stream"
    assert response["Content-Length"] == "600000"
    assert response["Content-Disposition"] == "attachment; filename*=UTF-8''a%20b.bin"
    assert len(on_disk(home)) == 1
    assert [entry.endpoint for entry in api.log.entries] == ["/v1/files", "/v1/files/{id}/content"]
    assert all(entry.status == 200 for entry in api.log.entries)


async def test_a_client_that_leaves_is_logged_and_the_file_closed(api: Api):
    file = await kept(api, b"x" * 500_000)
    response: Any = await api.client.get(f"/v1/files/{file.id}/content")
    assert len(await anext(aiter(response.streaming_content))) < 500_000
    await asyncio.to_thread(response.close)
    assert api.log.entries[-1].error_code == "client_disconnected"


async def test_an_empty_file_is_a_file(api: Api):
    file = await kept(api, b"")
    assert file.bytes == 0
    assert (await content(api, file.id)).body == b""


async def test_lists_have_cursors_and_purposes(api: Api):
    ids = [(await kept(api, TEXT, f"{n}.txt")).id for n in range(5)]
    vision = await kept(api, b"\x89PNG\r\n\x1a\nx", "x.png", purpose="vision")

    async def listed(query: str) -> list[str]:
        body = (await api.client.get(f"/v1/files?{query}")).json()
        assert body["object"] == "list"
        assert [body["first_id"], body["last_id"]] == [body["data"][0]["id"], body["data"][-1]["id"]]
        return [item["id"] for item in body["data"]] + [body["has_more"]]

    assert await listed("") == [vision.id, *ids[::-1], False]
    assert await listed("purpose=assistants&order=asc&limit=2") == [*ids[:2], True]
    assert await listed(f"purpose=assistants&order=asc&limit=2&after={ids[1]}") == [*ids[2:4], True]
    assert await listed(f"order=asc&limit=2&before={ids[3]}") == [*ids[1:3], True]
    assert await listed(f"limit=2&after={ids[1]}") == [ids[0], False]
    assert await listed("purpose=vision") == [vision.id, False]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=file-x", "after"),
        ("after=%00", "after"),
    ],
)
async def test_bad_queries_are_named(api: Api, query: str, param: str):
    check_error(await api.client.get(f"/v1/files?{query}"), 400, "invalid_value", param)


async def test_a_locked_table_is_503_within_a_bounded_time(api: Api, settings: Any):
    settings.MILLM_DATABASE_TIMEOUT = 1.0
    file = await kept(api)
    with locked("storage_storedfile"):
        answers = await asyncio.gather(
            *(api.client.get(path) for path in ["/v1/files", f"/v1/files/{file.id}"] * 10), send(api)
        )
        for answer in answers:
            check_error(answer, 503, "database_unavailable", None)
            assert answer["Retry-After"]
    assert len((await api.client.get("/v1/files")).json()["data"]) == 1


async def test_deleted_files_are_gone_with_their_bytes(api: Api, home: Path):
    file = await kept(api)
    answer = (await api.client.delete(f"/v1/files/{file.id}")).json()
    assert FileDeleted.model_validate(answer, strict=True).deleted
    assert on_disk(home) == []
    for path in (f"/v1/files/{file.id}", f"/v1/files/{file.id}/content"):
        check_error(await api.client.get(path), 404, "file_not_found", "file_id")
    check_error(await api.client.delete(f"/v1/files/{file.id}"), 404, "file_not_found", "file_id")


@pytest.mark.parametrize(
    ("asked", "status", "expected", "shown"),
    [
        ("bytes=0-3", 206, TEXT[:4], "0-3"),
        ("bytes=20-", 206, TEXT[20:], "20-22"),
        ("bytes=-4", 206, TEXT[-4:], "19-22"),
        ("bytes=0-999", 206, TEXT, "0-22"),
        ("bytes=-999", 206, TEXT, "0-22"),
        ("bytes=5-2", 200, TEXT, None),
        ("bytes=0-1,3-4", 200, TEXT, None),
        ("bytes=-", 200, TEXT, None),
        ("lines=0-1", 200, TEXT, None),
        ("bytes=" + "9" * 5_000 + "-", 200, TEXT, None),
    ],
)
async def test_ranges(api: Api, asked: str, status: int, expected: bytes, shown: str | None):
    file = await kept(api)
    response = await content(api, file.id, Range=asked)
    assert (response.status_code, response.body) == (status, expected)
    assert response.get("Content-Range") == (f"bytes {shown}/{len(TEXT)}" if shown else None)
    assert int(response["Content-Length"]) == len(expected)


@pytest.mark.parametrize("asked", ["bytes=23-", "bytes=99-100", "bytes=-0"])
async def test_ranges_beyond_the_end(api: Api, asked: str):
    file = await kept(api)
    response = await content(api, file.id, Range=asked)
    check_error(response, 416, "range_not_satisfiable", None)
    assert response["Content-Range"] == f"bytes */{len(TEXT)}"


async def test_a_range_of_another_version_is_the_whole(api: Api):
    file = await kept(api)
    tag = (await content(api, file.id))["ETag"]
    assert tag.strip('"') == hashlib.sha256(TEXT).hexdigest()
    assert (await content(api, file.id, Range="bytes=0-1", **{"If-Range": tag})).status_code == 206
    assert (await content(api, file.id, Range="bytes=0-1", **{"If-Range": '"other"'})).status_code == 200


async def test_another_owner_s_file_is_as_absent(api: Api):
    mine, yours = [await get_user_model().objects.acreate(username=name) for name in ("mine", "yours")]
    my_key, your_key = api.keys.add("a", owner_id=mine.pk), api.keys.add("b", owner_id=yours.pk)
    file = FileObject.model_validate((await send(api, headers=my_key)).json(), strict=True)
    paths = [f"/v1/files/{file.id}", f"/v1/files/{file.id}/content"]
    assert [(await api.client.get(path, headers=my_key)).status_code for path in paths] == [200, 200]
    for path in paths:
        for headers in (your_key, None):
            foreign, absent = [
                await api.client.get(each, headers=headers) for each in (path, path.replace(file.id, "file-0"))
            ]
            check_error(foreign, 404, "file_not_found", "file_id")
            assert foreign.json()["error"]["message"].replace(file.id, "file-0") == absent.json()["error"]["message"]
    assert (await api.client.get("/v1/files", headers=your_key)).json()["data"] == []
    check_error(await api.client.delete(paths[0], headers=your_key), 404, "file_not_found", "file_id")
    assert await StoredFile.objects.acount() == 1


@pytest.mark.parametrize("file_id", ["file-" + "x" * 10_000, "%00", "..", "%2e%2e", "🦊", "%ff"])
async def test_odd_ids_are_absent(api: Api, file_id: str):
    response = await api.client.get(f"/v1/files/{file_id}")
    assert response.status_code == 404
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("CON", "CON"),
        ("a\u202etxt.exe", "atxt.exe"),
        ("x" * 900 + ".txt", "x" * 255),
        ("tab\tname.txt", "tabname.txt"),
        ("ü 🦊.txt", "ü 🦊.txt"),
        ("<script>.html", "<script>.html"),
    ],
)
async def test_names_are_shown_and_never_paths(api: Api, home: Path, given: str, shown: str):
    body = form_of(("file", given, TEXT), ("purpose", None, b"assistants"))
    response = await api.client.generic("POST", "/v1/files", body, content_type="multipart/form-data; boundary=X")
    assert response.status_code == 200, response.content
    assert response.json()["filename"] == shown
    (path,) = on_disk(home)
    assert path.is_relative_to(home / "files")
    assert path.name == (await StoredFile.objects.aget()).blob


def form_of(*parts: tuple[str, str | None, bytes]) -> bytes:
    lines = []
    for name, filename, content in parts:
        shown = f'; filename="{filename}"' if filename is not None else ""
        head = f'--X\r\nContent-Disposition: form-data; name="{name}"{shown}\r\n\r\n'.encode()
        lines += [head, content, b"\r\n"]
    return b"".join([*lines, b"--X--\r\n"])


PURPOSE = ("purpose", None, b"assistants")
FORMS: list[tuple[bytes, str, str | None]] = [
    (form_of(PURPOSE), "missing_required_parameter", "file"),
    (form_of(("file", "a.txt", TEXT)), "missing_required_parameter", "purpose"),
    (form_of(("file", "", TEXT), PURPOSE), "missing_required_parameter", "file"),
    (form_of(("file", None, TEXT), PURPOSE), "missing_required_parameter", "file"),
    (form_of(("file", "a.txt", TEXT), ("file", "b.txt", TEXT), PURPOSE), "invalid_value", "file"),
    (form_of(("other", "a.txt", TEXT), PURPOSE), "invalid_value", "file"),
    (form_of(*[("f", None, b"x")] * 100_000), "invalid_multipart", None),
    (form_of(("file", "a.txt", TEXT), ("purpose", None, b"evals")), "invalid_value", "purpose"),
    (form_of(("file", "a.txt", TEXT), ("purpose", None, b"batch_output")), "invalid_value", "purpose"),
    (form_of(("file", "a.txt", TEXT), ("purpose", None, b"x\x00" * 500)), "invalid_value", "purpose"),
    (form_of(("file", "a.txt", TEXT), ("purpose", None, b"batch")), "invalid_file_format", "file"),
    (form_of(("file", "a.png", TEXT), ("purpose", None, b"vision")), "invalid_file_format", "file"),
    (b"--X\r\nnonsense", "invalid_multipart", None),
    (b"--X--\r\n", "missing_required_parameter", "file"),
    (form_of(PURPOSE) + form_of(("file", "a.txt", TEXT)), "missing_required_parameter", "file"),  # behind the end
    (form_of(("file", "x" * 4_096, TEXT), PURPOSE), "invalid_multipart", None),
    (
        form_of(("file", "a.txt", TEXT), PURPOSE, ("expires_after[seconds]", None, b"3600")),
        "missing_required_parameter",
        "expires_after[anchor]",
    ),
    *(
        (
            form_of(
                ("file", "a.txt", TEXT),
                PURPOSE,
                ("expires_after[anchor]", None, b"created_at"),
                ("expires_after[seconds]", None, seconds),
            ),
            "invalid_value",
            "expires_after[seconds]",
        )
        for seconds in (b"3599", b"2592001", b"-1", b"nan", b"9" * 500)
    ),
]


@pytest.mark.parametrize(("body", "code", "param"), FORMS, ids=[f"form{number}" for number in range(len(FORMS))])
async def test_bad_forms_leave_nothing(api: Api, home: Path, body: bytes, code: str, param: str | None):
    response = await api.client.generic("POST", "/v1/files", body, content_type="multipart/form-data; boundary=X")
    check_error(response, 400, code, param)
    assert len(response.content) < 4_000
    assert on_disk(home) == []
    assert api.log.only.error_code == code
    assert await StoredFile.objects.acount() == 0
    await kept(api)


@pytest.mark.parametrize("path", ["files", "uploads"])
async def test_a_form_that_ends_early_is_refused_wherever_it_is_cut(api: Api, home: Path, path: str):
    whole = form_of(PURPOSE, ("file", "a.txt", TEXT)) if path == "files" else form_of(("data", "a.txt", TEXT))
    url = "/v1/files"
    if path == "uploads":
        fields = {"filename": "a.txt", "purpose": "assistants", "bytes": len(TEXT), "mime_type": "text/plain"}
        url = f"/v1/uploads/{(await api.post('/v1/uploads', fields)).json()['id']}/parts"
    for length in range(len(whole) - len("--\r\n") - 12, len(whole) - len("\r\n")):
        response = await api.client.generic("POST", url, whole[:length], content_type="multipart/form-data; boundary=X")
        check_error(response, 400, "invalid_multipart", None)
        assert on_disk(home) == []
    assert not await StoredFile.objects.aexists()
    assert not await PartRow.objects.aexists()
    response = await api.client.generic("POST", url, whole, content_type="multipart/form-data; boundary=X")
    assert response.status_code == 200


@pytest.mark.parametrize("size", range(BLOCK - 150, BLOCK + 10, 7))
def test_the_last_boundary_is_found_across_blocks(home: Path, size: int):
    """Also without a line break behind it, and with something that is ignored behind it."""
    store = BlobStore(home / "files", min_free_bytes=0)
    for end in (b"--X--", b"--X--\r\n", b"--X-- and\r\n--X\r\nso on" + bytes(2 * BLOCK)):
        body = form_of(("file", "a.txt", b"x" * size)).removesuffix(b"--X--\r\n") + end
        request = RequestFactory().generic("POST", "/", body, content_type="multipart/form-data; boundary=X")
        with store.writing() as writer:
            assert read_form(request, writer, name="file", max_bytes=2**30).filename == "a.txt"
            assert writer.size == size


@pytest.mark.parametrize(
    ("content_type", "status", "code"),
    [
        ("multipart/form-data", 400, "invalid_multipart"),
        ("multipart/form-data; boundary=" + "x" * 300, 400, "invalid_multipart"),
        ("application/json", 415, "unsupported_media_type"),
        ("text/plain", 415, "unsupported_media_type"),
    ],
)
async def test_bodies_that_are_no_forms(api: Api, content_type: str, status: int, code: str):
    response = await api.client.generic("POST", "/v1/files", form_of(PURPOSE), content_type=content_type)
    check_error(response, status, code, None)


async def test_compressed_forms_are_never_inflated(api: Api):
    check_error(await send(api, headers={"Content-Encoding": "gzip"}), 415, "unsupported_content_encoding", None)


async def test_a_page_of_another_site_cannot_send_files_without_a_key(api: Api, home: Path):
    check_error(await send(api, headers={"Origin": "https://evil.example"}), 401, "invalid_api_key", None)
    check_error(await send(api, headers={"Origin": "null"}), 401, "invalid_api_key", None)
    assert on_disk(home) == []
    assert (await send(api, headers={"Origin": "http://testserver"})).status_code == 200
    key = api.keys.add("k")
    assert (await send(api, headers={**key, "Origin": "https://friend.example"})).status_code == 200


async def test_files_over_the_limit_leave_nothing(api: Api, settings: Any, home: Path):
    settings.MILLM_MAX_FILE_BYTES = 1_000
    check_error(await send(api, b"x" * 1_001), 413, "file_too_large", "file")
    assert on_disk(home) == []
    assert (await kept(api, b"x" * 1_000)).bytes == 1_000


async def test_a_disk_without_room_refuses_and_keeps_nothing(api: Api, settings: Any, home: Path):
    settings.MILLM_MIN_FREE_BYTES = 2**62
    response = await send(api)
    check_error(response, 507, "insufficient_storage", None)
    assert response.json()["error"]["type"] == "server_error"
    assert response["x-should-retry"] == "false"
    assert on_disk(home) == []
    settings.MILLM_MIN_FREE_BYTES = 0
    await kept(api)


async def test_files_expire(api: Api, home: Path):
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = await kept(api, TEXT, "a.txt", **fields)
    assert file.expires_at is not None
    assert file.expires_at - file.created_at == 3_600
    await StoredFile.objects.aupdate(expires_at=timezone.now() - timedelta(seconds=1))
    check_error(await api.client.get(f"/v1/files/{file.id}"), 404, "file_not_found", "file_id")
    assert (await api.client.get("/v1/files")).json()["data"] == []


async def test_files_for_batches_expire_by_themselves(api: Api):
    file = await kept(api, b"{}", "a.jsonl", purpose="batch")
    assert file.expires_at is not None
    assert file.expires_at - file.created_at == 30 * 86_400


# Uploads


async def begin(api: Api, size: int, **fields: Any) -> Upload:
    body = {"bytes": size, "filename": "big.txt", "mime_type": "text/plain", "purpose": "assistants", **fields}
    return Upload.model_validate((await api.post("/v1/uploads", body)).json(), strict=True)


async def add(api: Api, upload: Upload, data: bytes) -> Any:
    return await api.client.post(f"/v1/uploads/{upload.id}/parts", {"data": SimpleUploadedFile("part", data)})


async def finish(api: Api, upload: Upload, *part_ids: str, **fields: Any) -> Any:
    return await api.post(f"/v1/uploads/{upload.id}/complete", {"part_ids": part_ids, **fields})


async def test_parts_become_a_file_in_the_order_named(api: Api, home: Path):
    upload = await begin(api, 9, expires_after={"anchor": "created_at", "seconds": 7_200})
    assert (upload.status, upload.bytes, upload.expires_at - upload.created_at) == ("pending", 9, 3_600)
    answers = [(await add(api, upload, data)).json() for data in (b"def", b"ghi", b"abc")]
    first, second, third = [UploadPart.model_validate(answer, strict=True) for answer in answers]
    digest = hashlib.md5(b"abcdefghi").hexdigest()  # noqa: S324 - what the API speaks
    done = await finish(api, upload, third.id, first.id, second.id, md5=digest)
    complete = Upload.model_validate(done.json(), strict=True)
    assert complete.status == "completed"
    assert complete.file is not None
    assert complete.file.expires_at is not None
    assert complete.file.expires_at - complete.file.created_at == 7_200
    assert (await content(api, complete.file.id)).body == b"abcdefghi"
    assert len(on_disk(home)) == 1
    check_error(await add(api, upload, b"x"), 400, "upload_not_pending", None)
    check_error(await finish(api, upload, first.id), 400, "upload_not_pending", None)


async def test_parts_that_do_not_fit_leave_the_upload_pending(api: Api, home: Path):
    upload, other = await begin(api, 4), await begin(api, 4)
    one, two = [(await add(api, upload, data)).json()["id"] for data in (b"ab", b"cd")]
    foreign = (await add(api, other, b"ab")).json()["id"]
    check_error(await add(api, upload, b"e"), 400, "invalid_value", "data")
    check_error(await finish(api, upload, one), 400, "upload_size_mismatch", "part_ids")
    check_error(await finish(api, upload, one, one), 400, "invalid_value", "part_ids")
    check_error(await finish(api, upload, one, foreign), 400, "invalid_value", "part_ids")
    check_error(await finish(api, upload, one, two, md5="0" * 32), 400, "md5_mismatch", "md5")
    check_error(await finish(api, upload), 400, "invalid_value", "part_ids")
    assert len(on_disk(home)) == 3
    assert (await finish(api, upload, one, two)).status_code == 200


async def test_cancelled_uploads_are_over(api: Api, home: Path):
    upload = await begin(api, 4)
    await add(api, upload, b"ab")
    answer = (await api.client.post(f"/v1/uploads/{upload.id}/cancel")).json()
    assert Upload.model_validate(answer, strict=True).status == "cancelled"
    assert on_disk(home) == []
    check_error(await add(api, upload, b"cd"), 400, "upload_not_pending", None)


async def test_uploads_expire_and_are_swept(api: Api, home: Path):
    upload = await begin(api, 4)
    await add(api, upload, b"ab")
    await UploadRow.objects.aupdate(expires_at=timezone.now() - timedelta(seconds=1))
    check_error(await add(api, upload, b"cd"), 400, "upload_not_pending", None)


def test_a_sweep_removes_what_nobody_can_reach(home: Path):
    store = BlobStore.from_settings()
    names = three_files(store)
    StoredFile.objects.filter(blob=names[0]).update(expires_at=timezone.now() - timedelta(seconds=1))
    StoredFile.objects.filter(blob=names[1]).delete()  # as the deletion of its owner does
    (store.unfinished / "crashed").write_bytes(b"half")
    (store.unfinished / "running").write_bytes(b"half")
    old = time.time() - 2 * 86_400
    for path in (store.path(names[1]), store.path(names[2]), store.unfinished / "crashed"):
        os.utime(path, (old, old))
    swept = sweep_storage()
    assert (swept.files, swept.blobs) == (1, 2)
    assert sorted(path.name for path in on_disk(home)) == sorted([names[2], "running"])
    assert sweep_storage() == Sweep(0, 0, 0, 0)


def test_jobs_delete_what_has_expired_and_what_no_row_names(home: Path):
    store = BlobStore.from_settings()
    names = three_files(store)
    assert enqueue_due() == []
    StoredFile.objects.filter(blob=names[0]).update(expires_at=timezone.now() - timedelta(seconds=1))
    [expire] = enqueue_due()
    assert expire.kind == EXPIRE_KIND
    assert enqueue_due() == [], "not twice within its interval"
    assert run_expire(Mock()) == {"files": 1, "uploads": 0, "chunks": 0}
    StoredFile.objects.filter(blob=names[1]).delete()
    StoredFile.objects.filter(blob=names[2]).update(created_at=timezone.now() - timedelta(days=2))
    os.utime(store.path(names[1]), (0, 0))
    [orphans] = enqueue_due()
    assert orphans.kind == ORPHANS_KIND
    assert run_orphans(Mock()) == {"blobs": 1}
    assert [path.name for path in on_disk(home)] == [names[2]]


def test_files_that_vanish_while_the_sweep_lists_them_are_passed_over(home: Path):
    """Another upload ends, or a file is deleted, between the listing of its folder and the look at its age."""
    store = BlobStore.from_settings()
    with store.writing() as writer:
        writer.write(TEXT)
        kept = keep_file(writer=writer, filename="a", purpose="assistants", owner_id=None)
    for folder in (store.unfinished, store.path(kept.blob).parent):
        (folder / "vanished").symlink_to(home / "nowhere")  # listed, and not there
    assert sweep_storage() == Sweep(0, 0, 0, 0)
    assert store.path(kept.blob).read_bytes() == TEXT


async def test_uploads_that_are_refused(api: Api, settings: Any):
    settings.MILLM_MAX_FILE_BYTES = 1_000
    body = {"bytes": 10, "filename": "a.txt", "mime_type": "text/plain", "purpose": "assistants"}
    cases: list[tuple[dict[str, Any], int, str, str]] = [
        ({"bytes": 1_001}, 413, "file_too_large", "bytes"),
        ({"bytes": 0}, 400, "invalid_value", "bytes"),
        ({"bytes": "10"}, 400, "invalid_type", "bytes"),
        ({"bytes": 10**30}, 413, "file_too_large", "bytes"),
        ({"filename": ""}, 400, "invalid_value", "filename"),
        ({"filename": "a\0b"}, 400, "invalid_value", "filename"),
        ({"purpose": "batch"}, 400, "invalid_file_format", "filename"),
        ({"purpose": "nonsense"}, 400, "invalid_value", "purpose"),
        ({"expires_after": {"anchor": "now", "seconds": 3_600}}, 400, "invalid_value", "expires_after.anchor"),
    ]
    for change, status, code, param in cases:
        check_error(await api.post("/v1/uploads", {**body, **change}), status, code, param)
    for path in ("/v1/uploads/upload_0/cancel", "/v1/uploads/upload_0/complete", "/v1/uploads/upload_0/parts"):
        if path.endswith("parts"):
            response = await api.client.post(path, {"data": SimpleUploadedFile("part", b"x")})
        else:
            response = await api.post(path, {"part_ids": ["part_0"]})
        check_error(response, 404, "upload_not_found", "upload_id")
    assert json.loads(json.dumps(api.log.entries[-1].parameters)) == {}


def made(data: bytes = TEXT, *, lifetime_s: int = 3_600, name: str = "image.png") -> StoredFile:
    """Store a file that the server made, of an owner for which no request without a key may act."""
    owner = get_user_model().objects.create(username=name)
    with BlobStore.from_settings().writing() as writer:
        writer.write(data)
        return keep_file(
            writer=writer,
            filename=name,
            purpose=StoredFile.Purpose.ASSISTANTS_OUTPUT,
            owner_id=owner.pk,
            expires_after_s=lifetime_s,
        )


async def test_a_signed_link_needs_no_key(api: Api, settings: Any):
    settings.MILLM_PUBLIC_URL = "https://models.example.com"
    settings.MILLM_AUTH = "required"
    file = await asyncio.to_thread(made)
    link = signed_link(file)
    assert link.startswith(f"https://models.example.com/v1/files/{file.public_id}/content?expires=")
    response: Any = await api.client.get(link.removeprefix("https://models.example.com"))
    assert response.status_code == 200
    assert b"".join([part async for part in response.streaming_content]) == TEXT
    assert response["Content-Type"] == "image/png"
    assert response["Content-Disposition"].startswith("inline;")
    assert response["X-Content-Type-Options"] == "nosniff"
    kind, _, max_age = response["Cache-Control"].partition(", max-age=")
    assert kind == "private"
    assert 3_500 < int(max_age) <= 3_600
    check_error(await content(api, file.public_id), 401, "invalid_api_key", None)
    for path in (f"/v1/files/{file.public_id}", "/v1/files"):
        assert (await api.client.get(f"{path}?{link.partition('?')[2]}")).status_code == 401


async def test_other_links_are_refused(api: Api):
    file, other = await asyncio.to_thread(made), await asyncio.to_thread(made, name="other.png")
    path, _, query = signed_link(file).partition("?")
    expires = query.partition("&")[0]
    for forged in (
        f"{path}?{query[:-1]}{'0' if query[-1] != '0' else '1'}",
        f"{path}?{expires}&signature=",
        f"{path}?{expires}&signature=%C3%A4%00",
        f"{path}?{query.replace('expires=', 'expires=9')}",
        f"{path}?signature={query.partition('signature=')[2]}",
        f"/v1/files/{other.public_id}/content?{query}",
    ):
        check_error(await api.client.get(forged), 403, "invalid_link", None)
    check_error(await api.client.get(path), 404, "file_not_found", "file_id")
    file.expires_at = timezone.now() - timedelta(seconds=1)
    check_error(await api.client.get(signed_link(file)), 410, "link_expired", None)


async def test_uploads_stay_attachments(api: Api):
    png = b"\x89PNG\r\n\x1a\n" + TEXT
    file = await kept(api, png, "image.png", purpose="vision")
    assert (await content(api, file.id))["Content-Type"] == "application/octet-stream"
    check_error(await send(api, png, "image.png", purpose="assistants_output"), 400, "invalid_value", "purpose")
    page = await asyncio.to_thread(made, name="page.html")
    response = await api.client.get(signed_link(page))
    assert response["Content-Type"] == "application/octet-stream"
    assert response["Content-Disposition"].startswith("attachment;")
