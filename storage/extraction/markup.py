"""HTML and XML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import IO

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from storage.extraction.errors import ExtractionError
from storage.extraction.plain import read_text

SILENT = {"script", "style", "template", "noscript", "svg", "head"}
BLOCKS = {"p", "div", "br", "li", "tr", "section", "article", "pre", "blockquote", "table", "ul", "ol", "dd", "dt"}
HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}


class _Text(HTMLParser):
    """Headings become Markdown's, so that texts are cut at them."""

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
    """The texts of all elements. Entities, and what is outside of the document, are refused."""
    try:
        root = fromstring(document.read(), forbid_dtd=True)
    except DefusedXmlException:
        raise ExtractionError("The XML defines entities or refers to other documents; that is not read.") from None
    except (ParseError, ValueError) as error:
        raise ExtractionError(f"The file is no valid XML: {error}.") from None
    return "\n".join(text for text in (piece.strip() for piece in root.itertext()) if text)
