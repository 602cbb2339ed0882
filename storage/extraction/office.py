"""PDF and DOCX."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from typing import IO, Any

from storage.extraction.errors import ExtractionError

MAX_UNPACKED = 200 * 2**20
MAX_PARTS = 10_000


def read_pdf(document: IO[bytes]) -> str:
    """The text layer: pages that are pictures have none."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(document)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ExtractionError("The PDF is encrypted.")
        text = "\n\n".join(page.extract_text() for page in reader.pages)
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ExtractionError(f"The PDF cannot be read: {str(error)[:200]}.") from None
    if not text.strip():
        raise ExtractionError("The PDF has no text; pictures of text are not read.")
    return text


def read_docx(document: IO[bytes]) -> str:
    """Paragraphs and tables in their order; headings as Markdown's."""
    from docx import Document
    from docx.opc.exceptions import OpcError
    from lxml.etree import LxmlError

    check_archive(document)
    try:
        return "\n\n".join(text for text in _blocks(Document(document)) if text.strip())
    except (OpcError, LxmlError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ExtractionError(f"The DOCX cannot be read: {str(error)[:200]}.") from None


def check_archive(document: IO[bytes]) -> None:
    """Sizes are declared in the archive's directory; unpacking stops at them."""
    try:
        with zipfile.ZipFile(document) as archive:
            parts = archive.infolist()
    except zipfile.BadZipFile:
        raise ExtractionError("The file is no DOCX document.") from None
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
