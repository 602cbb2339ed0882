"""Results of a running batch: two growing files, in a separate folder for each run.

Results are written in the order in which lines end, with the numbers of their lines; the files for clients have them in
the order of the input. A later run copies the results into its own folder. So a run that hung and was replaced can
continue to write without harm: its files are no longer read.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from storage.batch_lines import BatchLine
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
    """Result of one line. ``record`` is written to the file."""

    number: int
    record: Mapping[str, Any]
    is_error: bool
    usage: Mapping[str, int] = field(default_factory=dict)


class BatchResults:
    """Result files of the run ``run``."""

    def __init__(self, batch_id: str, run: str) -> None:
        self.store = BlobStore.from_settings()
        self.batch = f"batches/{batch_id}"
        self.run = run
        self.folder = self.store.root / self.batch / run
        self._saved: dict[str, int] = {}  # the bytes of each file that other machines find
        self._is_alone = False  # the files of earlier runs are deleted
        self._expected: deque[tuple[int, int]] = deque()  # number and end of the lines after the checkpoint's

    @property
    def output(self) -> Path:
        return self.folder / "output.jsonl"

    @property
    def errors(self) -> Path:
        return self.folder / "errors.jsonl"

    def resume(self, saved: Checkpoint) -> Checkpoint:
        """Take over the results of the run before: those up to the checkpoint, and those that it wrote afterwards.

        Start over if its files are shorter than the checkpoint says.
        """
        before = BatchResults(PurePosixPath(self.batch).name, saved.run)
        before.fetch(saved)
        files: Sequence[tuple[Path, Path, int]] = (
            (before.output, self.output, saved.output_bytes),
            (before.errors, self.errors, saved.error_bytes),
        )
        if any(_size_of(source) < size for source, _, size in files):
            saved, files = Checkpoint(), ()
        with raising_if_full():
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in (self.output, self.errors):
                path.write_bytes(b"")
            for source, target, size in files:
                if size:
                    _copy(source, target, size)
        taken = replace(saved, run=self.run)
        for source, _, size in files:
            taken = self._append(taken, list(_later(source, size, taken)), is_error=source == before.errors)
        return taken

    def fetch(self, saved: Checkpoint) -> None:
        """Fetch the files of this run, up to the checkpoint, if it ran on another machine."""
        for path, size in ((self.output, saved.output_bytes), (self.errors, saved.error_bytes)):
            if _size_of(path) < size:
                self.store.fetch_parts(self.shared(path), path)

    def shared(self, path: Path) -> str:
        """Return the name under which other machines find one of the files."""
        return "/".join(part for part in (self.batch, self.run, path.name) if part)

    def drop_others(self) -> None:
        """Delete the files of earlier runs. Call it once a checkpoint names this run."""
        if not self._is_alone:
            self.store.drop_folder(self.batch, besides=self.run)
            self._is_alone = True

    def expect(self, lines: Sequence[BatchLine]) -> None:
        """Note the next lines, in the order of the input, whose results may come in any order."""
        self._expected.extend((line.number, line.end) for line in lines)

    def append(self, done: Checkpoint, results: Sequence[Result]) -> Checkpoint:
        """Write the results and return the new checkpoint. Raise StorageFullError if the disk is full."""
        with raising_if_full():
            self.store.check_room(0)
            for is_error in (False, True):
                chosen = [one for one in results if one.is_error == is_error]
                done = self._append(done, [(_line_of(one), one) for one in chosen], is_error=is_error)
        return done

    def sync(self) -> None:
        """Wait until the written results are on the disk, and where other machines find them. Call it before storing
        their checkpoint.
        """
        with raising_if_full():
            for path in (self.output, self.errors):
                with path.open("ab") as file:
                    _sync(file)
                self._saved[path.name] = self.store.save_part(self.shared(path), path, self._saved.get(path.name, 0))

    def _append(
        self, done: Checkpoint, results: Sequence[tuple[bytes, Result | _Header]], *, is_error: bool
    ) -> Checkpoint:
        if not results:
            return done
        with (self.errors if is_error else self.output).open("ab") as file:
            file.writelines(line for line, _ in results)
            size = file.tell()
        ended = {*done.ahead, *(one.number for _, one in results)}
        number, offset = done.number, done.offset
        while self._expected and self._expected[0][0] in ended:
            number, offset = self._expected.popleft()
        done = replace(
            done,
            number=number,
            offset=offset,
            ahead=tuple(sorted(line for line in ended if line > number)),
            usage={name: done.usage[name] + sum(one.usage.get(name, 0) for _, one in results) for name in USAGE},
        )
        if is_error:
            return replace(done, error_bytes=size, failed=done.failed + len(results))
        return replace(done, output_bytes=size, completed=done.completed + len(results))

    @contextmanager
    def writing(self, path: Path, size: int) -> Iterator[BlobWriter | None]:
        """Provide a writer of a blob with the records of the first ``size`` bytes of ``path``, in the order of the
        input's lines; None if there are none.
        """
        places = _places(path, size)
        if not places:
            yield None
            return
        with self.store.writing() as writer, path.open("rb") as source:
            for _, start, length in places:
                source.seek(start)
                writer.write(source.read(length))
            yield writer

    def drop(self) -> None:
        self.store.drop_folder(self.batch)


@dataclass(frozen=True, slots=True)
class _Header:
    """What stands before a record in a file of results, separated by a tab, which JSON does not contain."""

    number: int
    usage: Mapping[str, int]


def _line_of(result: Result) -> bytes:
    header = json.dumps({"line": result.number, "usage": dict(result.usage)}).encode()
    return header + b"\t" + json.dumps(result.record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _header_of(line: bytes) -> _Header | None:
    """Return the header; None for a line that was cut off, or of a version that wrote none."""
    header, separator, _ = line.partition(b"\t")
    if not separator or not line.endswith(b"\n"):
        return None
    try:
        values = json.loads(header)
        return _Header(values["line"], values["usage"])
    except (ValueError, TypeError, KeyError):  # after a crash of the machine, the end may be anything
        return None


def _later(path: Path, size: int, done: Checkpoint) -> Iterator[tuple[bytes, _Header]]:
    """Yield the results after the first ``size`` bytes whose lines are not in the checkpoint."""
    if not path.exists():
        return
    seen = set(done.ahead)
    with path.open("rb") as file:
        file.seek(size)
        for line in file:
            header = _header_of(line)
            if header is None:
                return
            if header.number > done.number and header.number not in seen:
                seen.add(header.number)
                yield line, header


def _places(path: Path, size: int) -> list[tuple[int, int, int]]:
    """Return number, start and length of each record, by number; records without a number come first."""
    places: list[tuple[int, int, int]] = []
    start = 0
    if size and path.exists():
        with path.open("rb") as file:
            for line in file:
                header = _header_of(line)
                record = line.find(b"\t") + 1 if header is not None else 0
                places.append((header.number if header is not None else 0, start + record, len(line) - record))
                start += len(line)
                if start >= size:
                    break
    return sorted(places, key=lambda place: place[0])


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _copy(source: Path, target: Path, size: int) -> None:
    with source.open("rb") as reading, target.open("wb") as file:
        while size and (block := reading.read(min(size, BLOCK))):
            file.write(block)
            size -= len(block)
        _sync(file)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
