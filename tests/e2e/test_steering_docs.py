"""Examples of docs/steering.md that ask a server run as they stand, against one with the demo."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LiveSite, served_site

TEXT = Path("docs/steering.md").read_text("utf-8")
SERVER = "http://127.0.0.1:8000"
PROGRAMS, SHELL = (
    re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL) for language in ("python", "sh")
)
REQUESTS = [text for text in SHELL if text.startswith("curl ")]
MANAGE = ".venv/bin/python manage.py "


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    """Of its own: one of the commands changes a draft."""
    with served_site(tmp_path_factory.mktemp("steering-docs")) as site:
        yield site


def test_there_are_some():
    assert len(REQUESTS) >= 2
    assert any(SERVER in program for program in PROGRAMS)


@pytest.mark.parametrize("program", [program for program in PROGRAMS if SERVER in program])
def test_programs(program, site):
    done = subprocess.run(
        [sys.executable, "-c", program.replace(SERVER, site.url)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", REQUESTS)
def test_requests(command, site):
    told = shlex.split(command.replace("\\\n", " ").replace(SERVER, site.url))
    done = subprocess.run([*told, "--silent", "--show-error", "--fail"], capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"{")


@pytest.mark.parametrize(
    "line", [line for text in SHELL for line in text.replace("\\\n", " ").splitlines() if line.startswith(MANAGE)]
)
def test_commands(line, site, tmp_path):
    """Files that they write go elsewhere."""
    words = [
        str(tmp_path / word) if word.endswith(".html") else word for word in shlex.split(line.removeprefix(MANAGE))
    ]
    site.server.manage(*words)
    for written in tmp_path.iterdir():
        assert written.stat().st_size > 0
