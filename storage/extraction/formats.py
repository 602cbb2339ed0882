"""Parsers of documents, chosen by file name."""

from __future__ import annotations

import codecs
import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, Any

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from storage.errors import ExtractionError

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def read_text(document: IO[bytes]) -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark."""
    raw = document.read()
    encoding = next((name for mark, name in _MARKS if raw.startswith(mark)), "utf-8")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise ExtractionError(f"The file is not valid UTF-8 text: {error.reason} at byte {error.start}.") from None
    if text.count("\0") > len(text) // 100:
        raise ExtractionError("The file is binary, not text.")
    return text


def read_json(document: IO[bytes]) -> str:
    """Return the JSON indented, so that it can be split between lines."""
    try:
        value = json.loads(read_text(document))
    except (ValueError, RecursionError):
        raise ExtractionError("The file is not valid JSON.") from None
    return json.dumps(value, ensure_ascii=False, indent=1)


def read_table(document: IO[bytes]) -> str:
    """Return each row with the names of its columns, so that a chunk of the table can be understood alone."""
    text = read_text(document)
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter="\t" if _has_tabs(text) else ","))
    except csv.Error as error:
        raise ExtractionError(f"The file is not a valid table: {error}.") from None
    if len(rows) < 2:
        return text
    names = rows[0]
    return "\n".join(
        "; ".join(f"{name}: {value}" for name, value in zip(names, row, strict=False) if value) for row in rows[1:]
    )


def _has_tabs(text: str) -> bool:
    first = text.partition("\n")[0]
    return first.count("\t") > first.count(",")


SILENT = {"script", "style", "template", "noscript", "svg", "head"}
BLOCKS = {"p", "div", "br", "li", "tr", "section", "article", "pre", "blockquote", "table", "ul", "ol", "dd", "dt"}
HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}


class _Text(HTMLParser):
    """Collects the text of HTML, with headings as in Markdown because chunks start at them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in SILENT:
            self._silent.append(tag)
        elif tag in HEADINGS:
            self.parts.append(f"\n\n{HEADINGS[tag]} ")
        elif tag in BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._silent:
            while self._silent.pop() != tag:
                pass
        elif tag in BLOCKS or tag in HEADINGS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def read_html(document: IO[bytes]) -> str:
    parser = _Text()
    parser.feed(read_text(document))
    parser.close()
    lines = [" ".join(line.split()) for line in "".join(parser.parts).splitlines()]
    return "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line or before)


def read_xml(document: IO[bytes]) -> str:
    """Return the texts of all elements. Entities and external references are refused."""
    try:
        root = fromstring(document.read(), forbid_dtd=True)
    except DefusedXmlException:
        raise ExtractionError("XML that defines entities or refers to other documents is not supported.") from None
    except (ParseError, ValueError) as error:
        raise ExtractionError(f"The file is not valid XML: {error}.") from None
    return "\n".join(text for text in (piece.strip() for piece in root.itertext()) if text)


MAX_UNPACKED = 200 * 2**20
MAX_PARTS = 10_000


def read_pdf(document: IO[bytes]) -> str:
    """Return the text layer. Scanned pages have none."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(document)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ExtractionError("Encrypted PDF files are not supported.")
        text = "\n\n".join(page.extract_text() for page in reader.pages)
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ExtractionError(f"The PDF cannot be read: {str(error)[:200]}.") from None
    if not text.strip():
        raise ExtractionError("The PDF contains no text. Images of text are not read.")
    return text


def read_docx(document: IO[bytes]) -> str:
    """Return the paragraphs and tables in order, with headings as in Markdown."""
    from docx import Document
    from docx.opc.exceptions import OpcError
    from lxml.etree import LxmlError

    check_archive(document)
    try:
        return "\n\n".join(text for text in _blocks(Document(document)) if text.strip())
    except (OpcError, LxmlError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ExtractionError(f"The DOCX cannot be read: {str(error)[:200]}.") from None


def check_archive(document: IO[bytes]) -> None:
    """Raise ExtractionError if the archive would be too large unpacked.

    The sizes in the archive's directory can be trusted: unpacking stops at them.
    """
    try:
        with zipfile.ZipFile(document) as archive:
            parts = archive.infolist()
    except zipfile.BadZipFile:
        raise ExtractionError("The file is not a valid DOCX document.") from None
    if len(parts) > MAX_PARTS or sum(part.file_size for part in parts) > MAX_UNPACKED:
        raise ExtractionError("The document would be too large unpacked.")


def _blocks(document: Any) -> Iterator[str]:
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            for row in block.rows:
                yield " | ".join(dict.fromkeys(cell.text.strip() for cell in row.cells))
        else:
            level = _level(block.style.name if block.style is not None else "")
            yield f"{'#' * level} {block.text}" if level else str(block.text)


def _level(style: str | None) -> int:
    number = (style or "").removeprefix("Heading ")
    return int(number) if number.isdecimal() and number != style and 1 <= int(number) <= 6 else 0


Reader = Callable[[IO[bytes]], str]

MARKDOWN = frozenset({".md", ".markdown", ".mdx"})
HEADED = MARKDOWN | {".html", ".htm", ".docx"}  # formats whose extracted text has Markdown headings
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
    """Raise ExtractionError with code `unsupported_file`. A name without a suffix counts as a text file."""
    suffix = suffix_of(filename)
    if suffix and suffix not in READERS:
        message = f"`{suffix[:20]}` files are not supported. Send text, Markdown, HTML, JSON, CSV, code, PDF or DOCX."
        raise ExtractionError(message, code="unsupported_file")


def extract(document: IO[bytes], filename: str) -> str:
    """Return the text of ``document``, a seekable file. Raise ExtractionError if it cannot be read."""
    check_supported(filename)
    return READERS.get(suffix_of(filename), read_text)(document)
