"""Which reader a document needs, told from its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

from storage.extraction.errors import ExtractionError
from storage.extraction.markup import read_html, read_xml
from storage.extraction.office import read_docx, read_pdf
from storage.extraction.plain import read_json, read_table, read_text

Reader = Callable[[IO[bytes]], str]

MARKDOWN = frozenset({".md", ".markdown", ".mdx"})
HEADED = MARKDOWN | {".html", ".htm", ".docx"}  # whose headings are Markdown's once they are read
_TEXT = """
.txt .text .log .rst .tex .ini .cfg .conf .toml .yaml .yml .env .diff .patch .srt .vtt .c .h .cc .cpp .cxx .hpp .cs .css
.dart .erl .ex .exs .f90 .go .hs .java .jl .js .jsx .kt .lua .m .ml .pl .php .proto .ps1 .py .pyi .r .rb .rs .sass
.scala .scss .sh .sql .swift .tf .ts .tsx .vue .zig .graphql .cmake .gradle
"""
TEXT = frozenset(_TEXT.split())
READERS: dict[str, Reader] = {
    **dict.fromkeys(MARKDOWN | TEXT, read_text),
    ".json": read_json,
    ".jsonl": read_text,
    ".ipynb": read_json,
    ".csv": read_table,
    ".tsv": read_table,
    ".html": read_html,
    ".htm": read_html,
    ".xml": read_xml,
    ".pdf": read_pdf,
    ".docx": read_docx,
}


def suffix_of(filename: str) -> str:
    return Path(filename).suffix.lower()


def check_supported(filename: str) -> None:
    """Raises ExtractionError `unsupported_file`. A name without an ending is taken for a text's."""
    suffix = suffix_of(filename)
    if suffix and suffix not in READERS:
        message = f"Files named “{suffix[:20]}” are not read. Send text, Markdown, HTML, JSON, CSV, code, PDF or DOCX."
        raise ExtractionError(message, code="unsupported_file")


def extract(document: IO[bytes], filename: str) -> str:
    """The text of ``document``, a file that can be sought in; raises ExtractionError."""
    check_supported(filename)
    return READERS.get(suffix_of(filename), read_text)(document)
