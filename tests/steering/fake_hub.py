"""A Hugging Face Hub on the loopback interface, with the few answers that listing and downloading need."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.http_server import QuietHandler, serving_http

COMMIT = "c" * 40
LARGE = 10_000_000
HELD_S = 300


@dataclass
class FakeHub:
    """Serves the files below ``root`` as the repository ``org/saes``.

    ``token`` is asked for where it is set. ``cut_after`` ends each answer after so many bytes, as a broken line would.
    ``gate`` holds the second half of large files back until it is set.
    """

    root: Path
    token: str = ""
    cut_after: int | None = None
    gate: threading.Event | None = None
    url: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range

    def fetched(self) -> list[tuple[str, str]]:
        """Path in the repository and range of each file that was asked for."""
        gets = [(path, ranges) for method, path, ranges in self.requests if method == "GET" and "/resolve/" in path]
        return [(re.sub(r".*/resolve/[^/]+/", "", path), ranges) for path, ranges in gets]

    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub answers while this is open."""
    with serving_http(type("Handler", (_Handler,), {"hub": hub})) as url:
        hub.url = url
        yield hub


class _Handler(QuietHandler):
    hub: FakeHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if not path.startswith(("/api/models/org/saes", "/org/saes/")):
            return self._error(404, "RepoNotFound")
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._error(403, "GatedRepo")
        if match := re.fullmatch(r"/api/models/org/saes/tree/[^/]+(?:/(.*))?", path):
            return self._tree(match[1] or "")
        if path.startswith("/api/models/org/saes"):
            siblings = [{"rfilename": self.hub.name(f), "size": f.stat().st_size} for f in self.hub.files()]
            return self._json({"id": "org/saes", "sha": COMMIT, "siblings": siblings})
        return self._file(self.hub.root / re.sub(r"^/org/saes/resolve/[^/]+/", "", path))

    def _tree(self, folder: str) -> None:
        files = [file for file in self.hub.files() if not folder or self.hub.name(file).startswith(f"{folder}/")]
        if not files:
            return self._error(404, "EntryNotFound")
        entries = [{"type": "file", "path": self.hub.name(f), "size": f.stat().st_size, "oid": _oid(f)} for f in files]
        return self._json(entries)

    def _file(self, file: Path) -> None:
        if not file.is_file():
            return self._error(404, "EntryNotFound")
        data = file.read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(match[1]), int(match[2] or len(data) - 1)) if match else (0, len(data) - 1)
        part = data[first : last + 1]
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{_oid(file)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "GET":
            self._send(part if self.hub.cut_after is None else part[: self.hub.cut_after])
        return None

    def _send(self, part: bytes) -> None:
        if self.hub.gate is not None and len(part) > LARGE:
            half = len(part) // 2
            self.wfile.write(part[:half])
            self.wfile.flush()
            self.hub.gate.wait(HELD_S)
            part = part[half:]
        self.wfile.write(part)

    def _json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _oid(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()  # noqa: S324 - git's name for a blob
