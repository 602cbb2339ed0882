"""Read untrusted label files: JSON, JSONL and CSV, also gzipped, with limits on their size."""

from __future__ import annotations

import csv
import gzip
import json
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from steering.features.label_records import parse_record
from steering.features.labels import FeatureLabel, LabelCollector, LabelSet
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.fields import describe

MAX_FILE_BYTES = 256 << 20
MAX_TEXT_BYTES = 1 << 30  # after unpacking
MAX_JSON_BYTES = 64 << 20  # a JSON document is read as a whole
MAX_LINE_BYTES = 8 << 20
MAX_PROBLEMS = 20
_GZIP_MAGIC = b"\x1f\x8b"
_NUMBERS = ("max_activation", "density")
_LISTS = ("top_tokens", "examples")

Record = tuple[str, object]  # its path in the file, and its value


def read_labels(path: Path, d_sae: int) -> tuple[FeatureLabel, ...]:
    """Return only the labels of :func:`read_label_file`."""
    return read_label_file(path, d_sae).labels


def read_label_file(path: Path, d_sae: int) -> LabelSet:
    """Read the labels of an SAE with ``d_sae`` features. Raise OSError, or InvalidSpecError by line and field."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise _refusal(f"{path} is not a file.")
    with path.open("rb") as file:
        return parse_label_file(file, path.name, d_sae)


def parse_label_file(file: IO[bytes], name: str, d_sae: int) -> LabelSet:
    """Parse a seekable file; the suffix of ``name`` selects the format."""
    problems: list[Problem] = []
    collector = LabelCollector(problems)
    try:
        for path, value in read_records(file, name):
            record = parse_record(value, path, d_sae, problems)
            if not problems:
                collector.add(record)
            if len(problems) >= MAX_PROBLEMS:
                break
    except InvalidSpecError as error:  # the rest of the file cannot be parsed
        problems += error.problems
    if problems:
        raise InvalidSpecError(problems[:MAX_PROBLEMS])
    return collector.result()


def read_records(file: IO[bytes], name: str) -> Iterator[Record]:
    """Yield the records of a seekable file with their paths in it. Raise InvalidSpecError where it cannot be read."""
    stem, is_packed = (name[:-3], True) if name.lower().endswith(".gz") else (name, False)
    read = _READERS.get(Path(stem).suffix.lower())
    if read is None:
        raise _refusal(f"{_shown(name)} must end with {', '.join(_READERS)}, optionally followed by .gz.")
    _check_container(file, name, is_packed=is_packed)
    try:
        with gzip.GzipFile(fileobj=file) if is_packed else file as plain:
            yield from read(_Lines(plain))  # type: ignore[arg-type]  # GzipFile is no IO to mypy
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _refusal(f"{_shown(name)} is damaged: {error}.") from error


class _Lines:
    """Decodes the lines of a binary file and enforces the limits."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._num_bytes = 0
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            self.number += 1
            self._num_bytes += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise self.refusal(f"The line is longer than {MAX_LINE_BYTES >> 20} MiB.")
            if self._num_bytes > MAX_TEXT_BYTES:
                raise self.refusal(
                    f"The file contains more than {MAX_TEXT_BYTES >> 20} MiB of text; import it in parts."
                )
            yield self._decode(line)

    def whole(self) -> str:
        data = self._file.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise _refusal(
                f"JSON files can have at most {MAX_JSON_BYTES >> 20} MiB; write one object per line (.jsonl)."
            )
        self.number = 1
        return self._decode(data)

    def refusal(self, message: str, code: str = "invalid_value") -> InvalidSpecError:
        return InvalidSpecError([Problem(f"line {self.number}", message, code)])

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            line = self.number + data.count(b"\n", 0, error.start)
            byte = data[error.start]
            message = f"The text is not valid UTF-8 (byte 0x{byte:02x}). Save the file as UTF-8."
            raise InvalidSpecError([Problem(f"line {line}", message, "invalid_unicode")]) from error


def _json(lines: _Lines) -> Iterator[Record]:
    """Yield the records of a list, or a single record, as the API of Neuronpedia returns it."""
    value = _parse(lines.whole(), lines)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise _refusal(f"Expected a list of features, got {describe(value)}.")
    for number, item in enumerate(value):
        yield f"labels[{number}]", item


def _jsonl(lines: _Lines) -> Iterator[Record]:
    for line in lines:
        if line.strip():
            yield f"line {lines.number}", _parse(line.strip(), lines)


def _csv(lines: _Lines) -> Iterator[Record]:
    """Yield the rows of a CSV file whose header names our own fields. An empty cell is an absent field."""
    rows = csv.reader(lines, strict=True)
    header: list[str] | None = None
    try:
        for row in rows:
            if header is None:
                header = _header(row, lines)
            elif len(row) > len(header):
                raise lines.refusal(f"The row has {len(row)} cells, but the header has {len(header)}.")
            elif row:
                cells = dict(zip(header, row, strict=False))
                yield f"line {lines.number}", {name: _cell(name, text) for name, text in cells.items() if text}
    except csv.Error as error:
        raise lines.refusal(f"This is not valid CSV: {error}.") from error


def _header(row: list[str], lines: _Lines) -> list[str]:
    names = [name.strip().lower() for name in row]
    if "index" not in names or len(set(names)) != len(names):
        raise lines.refusal("The first line must name each column once, including `index`.")
    return names


def _cell(name: str, text: str) -> object:
    """Return the value of a cell as JSON would have it. Invalid text stays a string and is rejected later."""
    try:
        if name == "index":
            return int(text)
        if name in _NUMBERS:
            return float(text)
        return json.loads(text) if name in _LISTS else text
    except (ValueError, RecursionError):
        return text


def _parse(text: str, lines: _Lines) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = Problem(f"line {lines.number + error.lineno - 1}", f"This is not valid JSON: {error.msg}.")
        raise InvalidSpecError([where]) from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists in lists
        raise lines.refusal("This is not valid JSON: a number is too long, or lists are nested too deeply.") from error


_READERS: dict[str, Callable[[_Lines], Iterator[Record]]] = {
    ".json": _json,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _csv,
}


def _check_container(file: IO[bytes], name: str, *, is_packed: bool) -> None:
    num_bytes = file.seek(0, 2)
    file.seek(0)
    if num_bytes > MAX_FILE_BYTES:
        raise _refusal(f"{_shown(name)} is larger than {MAX_FILE_BYTES >> 20} MiB.")
    is_gzip = file.read(2) == _GZIP_MAGIC
    file.seek(0)
    if is_gzip != is_packed:
        raise _refusal(f"{_shown(name)} is {'' if is_gzip else 'not '}gzipped, which does not match its name.")


def _refusal(message: str) -> InvalidSpecError:
    return InvalidSpecError([Problem("labels", message)])


def _shown(name: str) -> str:
    return name if len(name) <= 100 else f"{name[:100]}…"
