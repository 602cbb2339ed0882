"""Files in a bucket: the store against an S3 server and other file systems, and a batch that another machine goes on
with.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from storage import blobs
from storage.batch_lines import BatchLine
from storage.batch_results import BatchResults, Checkpoint, Result
from storage.blobs import BlobStore, RemoteBlobStore
from storage.errors import StorageUnreachableError
from storage.sweep import ABANDONED_S
from tests.s3_server import BUCKET, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket, with its server and credentials in the environment."""
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield BUCKET


@pytest.fixture(params=["s3", "folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    place = tmp_path.name
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{place}"
    return f"file://{tmp_path}/shared" if request.param == "folder" else f"memory://{place}"


@pytest.fixture
def store(url: str, tmp_path: Path) -> RemoteBlobStore:
    return RemoteBlobStore(url, tmp_path / "here", min_free_bytes=0)


def write(store: BlobStore, content: bytes) -> str:
    with store.writing() as writer:
        for start in range(0, len(content), 2**20):
            writer.write(content[start : start + 2**20])
        blob = writer.keep()
    assert blob.sha256 == hashlib.sha256(content).hexdigest()
    return blob.name


@pytest.mark.parametrize("size", [0, 1, 9 * 2**20 + 5])
def test_a_blob_is_read_from_every_machine_as_it_was_written(
    store: RemoteBlobStore, url: str, tmp_path: Path, size: int
):
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    name = write(store, content)
    assert [path for path in (tmp_path / "here").rglob("*") if path.is_file()] == []
    other = RemoteBlobStore(url, tmp_path / "there", min_free_bytes=0)
    with other.open(name) as file:
        assert file.read() == content
        file.seek(size // 2)
        assert file.read(7) == content[size // 2 :][:7]
    with other.local(name) as path:
        assert path.read_bytes() == content
    assert not path.exists()
    with other.writing() as writer:
        other.copy([name, name], writer)
        assert writer.flushed().read_bytes() == 2 * content


def test_what_is_deleted_or_was_never_there_is_not_found(store: RemoteBlobStore):
    name = write(store, b"x")
    store.delete(name)
    store.delete(name)
    with pytest.raises(FileNotFoundError):
        store.open(name)
    with pytest.raises(FileNotFoundError), store.local(name):
        pass
    with store.writing() as writer:
        writer.write(b"not kept")
    assert list(store.names(older_than_s=-60)) == []


def test_names_are_those_of_old_blobs_only(store: RemoteBlobStore, monkeypatch: pytest.MonkeyPatch):
    names = {write(store, b"x"), write(store, b"y")}
    source = store.unfinished / "output.jsonl"
    source.write_bytes(b"{}\n")
    store.save_part("batches/batch_a/one/output.jsonl", source, 0)
    assert set(store.names(older_than_s=-60)) == names
    assert set(store.names(older_than_s=60)) == set()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + ABANDONED_S + 60)
    assert set(store.names(older_than_s=ABANDONED_S)) == names


def test_a_growing_file_is_put_together_up_to_the_first_missing_part(
    store: RemoteBlobStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(blobs, "PART_BYTES", 8)
    source, target = tmp_path / "output.jsonl", tmp_path / "there" / "output.jsonl"
    saved = 0
    for part in (b"one\n", b"two22\n", b"", b"three\n"):
        with source.open("ab") as file:
            file.write(part)
        saved = store.save_part("batches/a/run/output.jsonl", source, saved)
        store.fetch_parts("batches/a/run/output.jsonl", target)
        assert target.read_bytes() == source.read_bytes()
    assert saved == 16
    assert [PurePosixPath(path).name for path in sorted(store._find("batches/a"))] == [f"{0:015d}", f"{8:015d}"]
    store.save_part("batches/a/gap/output.jsonl", source, 0)
    source.write_bytes(30 * b"x")
    store.save_part("batches/a/gap/output.jsonl", source, 25)
    store.fetch_parts("batches/a/gap/output.jsonl", target)
    assert len(target.read_bytes()) == 16
    store.fetch_parts("batches/a/none/output.jsonl", target)
    assert target.read_bytes() == b""
    assert store.folders("batches") == {"a"}
    store.drop_folder("batches/a", besides="run")
    store.fetch_parts("batches/a/gap/output.jsonl", target)
    assert target.read_bytes() == b""
    store.drop_folder("batches/a")
    store.drop_folder("batches/a")
    assert store.folders("batches") == set()


def test_a_batch_goes_on_on_another_machine(url: str, tmp_path: Path, settings):
    def result(number: int) -> Result:
        return Result(number, {"n": number}, is_error=number == 2, usage={"output_tokens": number})

    settings.MILLM_FILES_URL = url
    settings.MILLM_HOME = tmp_path / "here"
    first = BatchResults("batch_a", "one")
    done = first.resume(Checkpoint())
    first.expect([BatchLine(number, "", b"", 10 * number) for number in range(1, 6)])
    for number in (1, 2, 4):
        done = first.append(done, [result(number)])
        first.sync()
    saved = Checkpoint.read(json.loads(json.dumps(done.as_json())))
    first.append(done, [result(5)])  # is lost with the machine

    settings.MILLM_HOME = tmp_path / "there"
    later = BatchResults("batch_a", "two")
    done = later.resume(saved)
    assert (done.number, done.ahead, done.completed, done.failed, done.run) == (2, (4,), 2, 1, "two")
    later.sync()
    later.drop_others()
    later.expect([BatchLine(number, "", b"", 10 * number) for number in (3, 5)])
    done = later.append(done, [result(5), result(3)])
    later.sync()

    settings.MILLM_HOME = tmp_path / "a third"
    last = BatchResults("batch_a", "two")
    last.fetch(done)
    with last.writing(last.output, done.output_bytes) as writer:
        assert writer is not None
        assert [json.loads(each)["n"] for each in writer.flushed().read_text().splitlines()] == [1, 3, 4, 5]
    with last.writing(last.errors, done.error_bytes) as writer:
        assert writer is not None
        assert [json.loads(each)["n"] for each in writer.flushed().read_text().splitlines()] == [2]
    last.drop()
    assert BlobStore.from_settings().folders("batches") == set()


def test_a_bucket_that_is_not_there_is_reported_and_not_created(s3: str, tmp_path: Path):
    store = RemoteBlobStore("s3://another-bucket/x", tmp_path, min_free_bytes=0)
    with pytest.raises(FileNotFoundError):
        store.open("0" * 32)
    with pytest.raises(StorageUnreachableError):
        write(store, b"x")
    assert list(tmp_path.rglob("*/*")) == []
