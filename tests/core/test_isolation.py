"""What a parser that was taken over can still do: each attempt runs in a process isolated as parsers are."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from core.isolation import NEEDED, code_folders, is_public
from storage.chunking import Chunking
from storage.errors import ExtractionError
from storage.extraction.process import Limits, extract_pieces, extract_text, read_bounded
from tests.live import PROJECT_DIR
from tests.openai_api.fakes import tokenizer_of_bytes

PROGRAM = """
import os, socket, ctypes, sys, json
from core import isolation
names = isolation.enter()
def attempt():
{attempt}
try:
    attempt()
    outcome = "done"
except OSError as error:
    outcome = "refused"
print(json.dumps([names, outcome]))
"""
ATTEMPTS = {
    "read a file": "open({file!r}).read()",
    "read the server's memory and environment": "open({environ!r}, 'rb').read()",
    "write a file": "open({folder!r} + '/new', 'w')",
    "list a folder": "os.listdir({folder!r})",
    "connect to the database's socket": "s = socket.socket(socket.AF_UNIX); s.connect({socket!r})",
    "open a network connection": "socket.create_connection(('127.0.0.1', {port}), 1)",
    "make a pair of sockets": "socket.socketpair()",
    "start a program": "os.execv('/bin/true', ['true'])",
    "start a process": "os.fork()",
    "end the server": "os.kill({pid}, 0)",
    "raise its limits": "import resource; resource.prlimit({pid}, resource.RLIMIT_CPU, (1, 1))",
}


def isolated(attempt: str) -> tuple[list[str], str]:
    code = PROGRAM.format(attempt=f"    {attempt}")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT_DIR, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    names, outcome = json.loads(done.stdout)
    return names, outcome


def can_isolate() -> bool:
    return set(isolated("pass")[0]) >= NEEDED


pytestmark = pytest.mark.skipif(not can_isolate(), reason="this kernel or container has no Landlock or no seccomp")


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_nothing_outside_can_be_reached(tmp_path: Path, attempt: str):
    tmp_path.chmod(0o777)
    file = tmp_path / "secret"
    file.write_text("secret")
    place = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as database, socket.create_server(("127.0.0.1", 0)) as listener:
        database.bind(place)
        database.listen()
        os.chmod(place, 0o777)  # noqa: S103 - everybody may connect
        values: dict[str, Any] = {
            "file": str(file),
            "folder": str(tmp_path),
            "socket": place,
            "environ": f"/proc/{os.getpid()}/environ",
            "port": listener.getsockname()[1],
            "pid": os.getpid(),
        }
        assert isolated(attempt.format(**values))[1] == "refused"


def test_code_of_ours_can_still_be_read():
    assert isolated("import storage.extraction.formats, xmlrpc.client")[1] == "done"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_root_becomes_nobody_where_nobody_may_read_python():
    can_change = all(map(is_public, code_folders()))
    names = isolated("pass")[0]
    assert ("uid" in names) == can_change
    assert {"uid", "namespaces"} & set(names)  # either way root's rights are gone


def test_a_document_that_only_its_owner_may_read_is_read(tmp_path: Path):
    document = tmp_path / "blob"
    document.write_text("The cat.")
    document.chmod(0o600)
    tmp_path.chmod(0o700)
    assert extract_text(document, "a.txt") == "The cat."


def test_output_without_end_is_cut():
    endless = "import sys\nwhile True: sys.stdout.buffer.write(bytes(2**20))"
    process = subprocess.Popen([sys.executable, "-c", endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        with pytest.raises(ExtractionError, match="too much text"):
            read_bounded(process, 60, 2**22, lambda: None)
        process.kill()


def test_warnings_without_end_are_forgotten():
    noisy = "import sys\nfor _ in range(300): sys.stderr.write('x' * 2**16)\nsys.stderr.write('last')"
    process = subprocess.Popen([sys.executable, "-c", noisy], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        out, err = read_bounded(process, 60, 2**10, lambda: None)
    assert (out, len(err), err[-4:]) == (b"", 2**16, b"last")


def test_who_may_stop_the_work_stops_it(tmp_path: Path):
    class Stop(BaseException):
        pass

    def stop() -> None:
        raise Stop

    document = tmp_path / "blob"
    document.write_text("word " * 4_000_000)
    began = time.monotonic()
    with pytest.raises(Stop):
        extract_pieces(document, "a.txt", tokenizer=tokenizer_of_bytes(), chunking=Chunking(), check=stop)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("limits", [Limits(max_pieces=10), Limits(max_text=1_000), Limits(wall_s=0.05)])
def test_too_many_pieces_are_refused(tmp_path: Path, limits: Limits):
    document = tmp_path / "blob"
    document.write_text("word " * 10_000)
    with pytest.raises(ExtractionError, match=r"more than 10 chunks|at most 1000 bytes|too long"):
        extract_pieces(document, "a.txt", tokenizer=tokenizer_of_bytes(), chunking=Chunking(100, 0), limits=limits)


def test_pieces_are_those_of_the_text(tmp_path: Path):
    document = tmp_path / "blob"
    document.write_bytes("# Cats\n\nThe c\0ät <s> sat.".encode() + b" x" * 200)
    pieces = extract_pieces(document, "a.md", tokenizer=tokenizer_of_bytes(), chunking=Chunking(100, 0))
    assert " ".join(pieces).startswith("# Cats\n\nThe cät <s> sat. x")
    assert max(len(piece.encode()) for piece in pieces) <= 100
    document.write_bytes(b" \n ")
    assert extract_pieces(document, "a.md", tokenizer=tokenizer_of_bytes(), chunking=Chunking(100, 0)) == []
