"""Results of a running batch: two growing files, in a separate folder for each run.

A later run copies the results up to the last checkpoint into its own folder. So a run that hung and was replaced can
continue to write without harm: its files are no longer read.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

from storage.blobs import BLOCK, BlobStore, BlobWriter, raising_if_full

USAGE = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Progress of a batch: how many lines and bytes of its input are processed, and the size of their results in bytes.

    ``ahead``: lines after ``number`` that are done too. ``run``: the run whose folder has the results; empty for
    batches of older versions.
    """

    number: int = 0
    offset: int = 0
    output_bytes: int = 0
    error_bytes: int = 0
    completed: int = 0
    failed: int = 0
    usage: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(USAGE, 0))
    ahead: tuple[int, ...] = ()
    run: str = ""

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Checkpoint:
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in saved.items() if name in known}
        return cls(**{**values, "ahead": tuple(saved.get("ahead", ()))})

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "usage": dict(self.usage), "ahead": list(self.ahead)}


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one line. ``record`` is written to the file; ``end`` as in BatchLine."""

    number: int
    end: int
    record: Mapping[str, Any]
    is_error: bool
    usage: Mapping[str, int] = field(default_factory=dict)


class BatchResults:
    """Result files of the run ``run``."""

    def __init__(self, batch_id: str, run: str) -> None:
        self.batch_folder = BlobStore.from_settings().root / "batches" / batch_id
        self.run = run
        self.folder = self.batch_folder / run

    @property
    def output(self) -> Path:
        return self.folder / "output.jsonl"

    @property
    def errors(self) -> Path:
        return self.folder / "errors.jsonl"

    def resume(self, saved: Checkpoint) -> Checkpoint:
        """Copy the results up to the checkpoint. Start over if its files are shorter than the checkpoint says."""
        before = BatchResults(self.batch_folder.name, saved.run)
        places: Sequence[tuple[Path, Path, int]] = (
            (before.output, self.output, saved.output_bytes),
            (before.errors, self.errors, saved.error_bytes),
        )
        if any(_size_of(source) < size for source, _, size in places):
            saved, places = Checkpoint(), ()
        with raising_if_full():
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in (self.output, self.errors):
                path.write_bytes(b"")
            for source, target, size in places:
                if size:
                    _copy(source, target, size)
        return replace(saved, run=self.run)

    def drop_others(self) -> None:
        """Delete the files of earlier runs. Call it once a checkpoint names this run."""
        for path in self.batch_folder.iterdir():
            if path.is_dir() and path != self.folder:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_file():
                path.unlink(missing_ok=True)

    def append(self, done: Checkpoint, lines: Sequence[int], results: Sequence[Result]) -> Checkpoint:
        """Write and sync the results, and return the new checkpoint. Raise StorageFullError if the disk is full.

        ``lines`` are the numbers of the next lines; some may have no result yet.
        """
        with raising_if_full():
            BlobStore.from_settings().check_room(0)
            output_bytes = _append(self.output, [one for one in results if not one.is_error])
            error_bytes = _append(self.errors, [one for one in results if one.is_error])
        failed = sum(one.is_error for one in results)
        ends = {one.number: one.end for one in results}
        number, offset = done.number, done.offset
        for line in itertools.takewhile(ends.__contains__, lines):
            number, offset = line, ends[line]
        return Checkpoint(
            number=number,
            offset=offset,
            output_bytes=output_bytes,
            error_bytes=error_bytes,
            completed=done.completed + len(results) - failed,
            failed=done.failed + failed,
            usage={name: done.usage[name] + sum(one.usage.get(name, 0) for one in results) for name in USAGE},
            ahead=tuple(sorted(line for line in {*done.ahead, *ends} if line > number)),
            run=done.run,
        )

    @contextmanager
    def writing(self, path: Path) -> Iterator[BlobWriter | None]:
        """Provide a writer of a blob with the content of ``path``; None if there is no content."""
        if not path.exists() or path.stat().st_size == 0:
            yield None
            return
        with BlobStore.from_settings().writing() as writer, path.open("rb") as source:
            shutil.copyfileobj(source, _Sink(writer), 2**20)
            yield writer

    def drop(self) -> None:
        shutil.rmtree(self.batch_folder, ignore_errors=True)


class _Sink:
    def __init__(self, writer: BlobWriter) -> None:
        self.write = writer.write


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _copy(source: Path, target: Path, size: int) -> None:
    with source.open("rb") as reading, target.open("wb") as file:
        while size and (block := reading.read(min(size, BLOCK))):
            file.write(block)
            size -= len(block)
        _sync(file)


def _append(path: Path, results: list[Result]) -> int:
    """Append the results and return the size of the file."""
    with path.open("ab") as file:
        for one in results:
            file.write(json.dumps(one.record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        _sync(file)
        return file.tell()


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
