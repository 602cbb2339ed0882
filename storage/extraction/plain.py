"""Texts that are texts already."""

from __future__ import annotations

import codecs
import csv
import io
import json
from typing import IO

from storage.extraction.errors import ExtractionError

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def read_text(document: IO[bytes]) -> str:
    """UTF-8, or UTF-16 with its mark."""
    raw = document.read()
    encoding = next((name for mark, name in _MARKS if raw.startswith(mark)), "utf-8")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise ExtractionError(f"The file is no text in UTF-8: {error.reason} at byte {error.start}.") from None
    if text.count("\0") > len(text) // 100:
        raise ExtractionError("The file is binary, no text.")
    return text


def read_json(document: IO[bytes]) -> str:
    """Indented, so that it can be cut between lines."""
    try:
        value = json.loads(read_text(document))
    except (ValueError, RecursionError):
        raise ExtractionError("The file is no valid JSON.") from None
    return json.dumps(value, ensure_ascii=False, indent=1)


def read_table(document: IO[bytes]) -> str:
    """Each row with the names of its columns, so that a piece of the table can be understood alone."""
    text = read_text(document)
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter="\t" if _has_tabs(text) else ","))
    except csv.Error as error:
        raise ExtractionError(f"The file is no valid table: {error}.") from None
    if len(rows) < 2:
        return text
    names = rows[0]
    return "\n".join(
        "; ".join(f"{name}: {value}" for name, value in zip(names, row, strict=False) if value) for row in rows[1:]
    )


def _has_tabs(text: str) -> bool:
    first = text.partition("\n")[0]
    return first.count("\t") > first.count(",")
