"""Documents of each format, and documents made to harm."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ExtractionError
from storage.extraction.formats import READERS, check_supported
from storage.extraction.process import Limits, extract_text

pytestmark = pytest.mark.slow


def extracted(folder: Path, name: str, content: bytes, limits: Limits = Limits()) -> str:  # noqa: B008 - frozen
    path = folder / "blob"
    path.write_bytes(content)
    return extract_text(path, name, limits)


def docx_of() -> bytes:
    from docx import Document

    document = Document()
    document.add_heading("Cats", level=2)
    document.add_paragraph("The cat sat by the sea.")
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "owl", "rain"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def pdf_of(text: str) -> bytes:
    """A page with one line, in the fewest objects."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    out, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(out)
    return out + b"xref\n0 5\n0000000000 65535 f \n" + table + trailer


DOCUMENTS: list[tuple[str, bytes, str]] = [
    ("a.txt", "The cät.".encode(), "The cät."),
    ("a.txt", "\ufeffThe cät.".encode(), "The cät."),
    ("a.txt", "The cät.".encode("utf-16"), "The cät."),
    ("README", b"plain", "plain"),
    ("a.md", b"# Cats\n\nThey sit.", "# Cats\n\nThey sit."),
    ("a.py", b"def cat():\n    pass\n", "def cat():\n    pass\n"),
    ("a.json", b'{"cat":["sea",1]}', '{\n "cat": [\n  "sea",\n  1\n ]\n}'),
    ("a.csv", b'name,place\ncat,"the sea, far"\nowl,\n', "name: cat; place: the sea, far\nname: owl"),
    ("a.tsv", b"name\tplace\ncat\tsea\n", "name: cat; place: sea"),
    (
        "a.html",
        b"<html><head><title>x</title></head><h2>Cats &amp; owls</h2><p>They <b>sit</b>.</p><script>evil()</script>",
        "## Cats & owls\n\nThey sit.",
    ),
    ("a.xml", b"<a><b>cat</b> <c>sea</c></a>", "cat\nsea"),
    ("a.pdf", pdf_of("The cat sat by the sea."), "The cat sat by the sea."),
    ("a.docx", docx_of(), "## Cats\n\nThe cat sat by the sea.\n\nowl | rain"),
]


@pytest.mark.parametrize(("name", "content", "text"), DOCUMENTS)
def test_each_format_gives_its_text(tmp_path: Path, name: str, content: bytes, text: str):
    assert extracted(tmp_path, name, content).strip() == text.strip()


def bomb(name: str, size: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(size))
    return out.getvalue()


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
BAD: list[tuple[str, bytes, str]] = [
    ("a.txt", b"\xff\xfe\xff", "UTF-8"),
    ("a.txt", bytes(1_000), "binary"),
    ("a.json", b"{", "JSON"),
    ("a.json", b"[" * 100_000, "JSON"),
    ("a.xml", f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]><a>&l9;</a>'.encode(), "entities"),
    ("a.xml", b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "entities"),
    ("a.xml", b"<a>", "XML"),
    ("a.pdf", b"%PDF-1.4 nothing", "PDF"),
    ("a.pdf", b"", "PDF"),
    ("a.pdf", pdf_of(""), "no text"),
    ("a.docx", b"PK nothing", "DOCX"),
    ("a.docx", bomb("word/document.xml", 300 * 2**20), "too large"),
    ("a.docx", bomb("other.xml", 10), "DOCX"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD)
def test_bad_documents_are_told_from_each_other(tmp_path: Path, name: str, content: bytes, said: str):
    with pytest.raises(ExtractionError, match=said) as caught:
        extracted(tmp_path, name, content)
    assert caught.value.code == "invalid_file"
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("limits", "length"),
    [
        (Limits(memory=300 * 2**20), 30_000_000),
        (Limits(cpu_s=1), 30_000_000),  # more than a second's work on any machine
        (Limits(wall_s=0.05), 30_000_000),
        (Limits(max_text=1_000), 1_000),
    ],
)
def test_a_parser_that_takes_too_much_is_ended(tmp_path: Path, limits: Limits, length: int):
    deep = b'{"a": [' + b"1.5," * length + b"1]}"
    with pytest.raises(ExtractionError, match=r"too much memory|too long|bytes of text|valid JSON"):
        extracted(tmp_path, "a.json", deep, limits)


def test_nul_is_left_out(tmp_path: Path):
    assert extracted(tmp_path, "a.txt", b"a" * 200 + b"\0" + b"b") == "a" * 200 + "b"


@pytest.mark.parametrize("name", ["a.png", "a.zip", "a.doc", "a.exe", "a.xlsx", "a." + "x" * 200])
def test_other_files_are_refused_by_name(name: str):
    with pytest.raises(ExtractionError) as caught:
        check_supported(name)
    assert caught.value.code == "unsupported_file"


def test_the_parser_s_process_imports_no_django(tmp_path: Path):
    import subprocess
    import sys

    program = (
        "import sys, storage.extraction.__main__; sys.exit(any(name.startswith('django') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_reader_is_tried():
    tried: set[Any] = {READERS[Path(name).suffix] for name, _, _ in DOCUMENTS if Path(name).suffix}
    assert tried == set(READERS.values())
