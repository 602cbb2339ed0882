"""Read untrusted JSON and CSV files with limits."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NoReturn

from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.fields import describe

MAX_BYTES = 4 << 20
MAX_DEPTH = 24
MAX_ROWS = 256
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: ``value`` is a JSON value, or a :class:`Table` for CSV. ``stem`` is the file name without its
    suffix."""

    stem: str
    value: object


@dataclass(frozen=True, slots=True)
class Table:
    """Rows by column name, without empty cells."""

    header: tuple[str, ...]
    rows: tuple[dict[str, str], ...]


def read_document(data: bytes, name: str) -> Document:
    """Parse a file by its suffix. Raise InvalidSpecError if it is damaged, too large or nested too deeply."""
    if len(data) > MAX_BYTES:
        raise refusal(f"The file has {len(data)} bytes; the limit is {MAX_BYTES >> 20} MiB.")
    path = PurePath(name)
    read = {".json": _json, ".csv": _csv}.get(path.suffix.lower())
    if read is None:
        raise refusal(f"The file name {name[:_SHOWN]!r} must end with .json or .csv.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        message = f"The file is not valid UTF-8 (byte 0x{byte:02x} at position {error.start}). Save it as UTF-8."
        raise refusal(message, "invalid_unicode") from error
    return Document(path.stem[:_SHOWN], read(text))


def refusal(message: str, code: str = "invalid_value", path: str = "file") -> InvalidSpecError:
    return InvalidSpecError([Problem(path, message, code)])


def _json(text: str) -> object:
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise refusal(f"This is not valid JSON: {error.msg}, in line {error.lineno}.", "invalid_json") from error
    except InvalidSpecError:
        raise
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists in lists
        message = "This is not valid JSON: a number is too long, or lists are nested too deeply."
        raise refusal(message, "invalid_json") from error
    _check_tree(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise refusal(f"{name} is not valid JSON; use a finite number.", "invalid_json")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise refusal(f"The field {describe(twice)} occurs twice in one object; keep one of them.", "invalid_json")
    return found


def _check_tree(value: object) -> None:
    """Check the depth and all texts, without recursion: the depth is what is checked."""
    waiting: list[tuple[str, object, int]] = [("file", value, 1)]
    while waiting:
        path, item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise refusal(f"The file is nested more than {MAX_DEPTH} levels deep.", path=path[:_SHOWN])
        if isinstance(item, str):
            check_text(item, path)
        elif isinstance(item, dict):
            for name in item:
                check_text(name, path)
            waiting += [(f"{path}.{name}", child, depth + 1) for name, child in item.items()]
        elif isinstance(item, list):
            deep = (pair for pair in enumerate(item) if isinstance(pair[1], str | dict | list))
            waiting += [(f"{path}[{number}]", child, depth + 1) for number, child in deep]


def check_text(text: str, path: str) -> None:
    """Raise InvalidSpecError for NUL and unpaired surrogates, which the database cannot store."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        message = f"The text {ascii(text)[:_SHOWN]} contains NUL or an unpaired surrogate; remove it."
        raise refusal(message, "invalid_unicode", path[:_SHOWN])


def _csv(text: str) -> Table:
    check_text(text, "file")
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        return Table(tuple(header), tuple(_rows(reader, header)))
    except csv.Error as error:
        raise refusal(f"This is not valid CSV: {error}, in line {reader.line_num}.") from error


def _rows(reader: Any, header: list[str]) -> Iterator[dict[str, str]]:
    """Return the rows. A trailing comma makes an empty column without a name, which is left out."""
    names = [name for name in header if name]
    if len(set(names)) < len(names):
        raise refusal("The first line must name each column once.", path="line 1")
    for number, row in enumerate(filter(None, reader)):
        if number >= MAX_ROWS:
            raise refusal(f"The file has more than {MAX_ROWS} lines; split it.")
        if any(cell.strip() for cell in row[len(header) :]):
            path = f"line {reader.line_num}"
            raise refusal(f"The line has {len(row)} cells, but the first line has {len(header)}.", path=path)
        yield {name: cell.strip() for name, cell in zip(header, row, strict=False) if name and cell.strip()}
