"""docs/research.md: its program and its request run as they stand with the real model; links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LiveSite
from tests.live import clean_environment

PAGES = {name: (Path("docs") / name).read_text("utf-8") for name in ("research.md", "evidence.md")}
CLIENT = Path("clients/python").resolve()
SERVER = "http://127.0.0.1:8000"
MAX_PICTURE_BYTES = 150_000


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES["research.md"], re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_program_publishes_a_profile_that_the_request_uses(real_site: LiveSite, tmp_path: Path) -> None:
    (command,) = (line for block in blocks("sh") for line in block.splitlines() if "create_api_key" in line)
    key = real_site.server.manage(*command.removeprefix(".venv/bin/python manage.py ").split()).strip()
    program = "\n".join(blocks("python")).replace(SERVER, real_site.url)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={**clean_environment(), "PYTHONPATH": str(CLIENT), "MILLM_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "seaside@1" in done.stdout
    assert (tmp_path / "graph.json").is_file()
    (request,) = (block for block in blocks("sh") if block.startswith("curl"))
    told = subprocess.run(
        ["/bin/bash", "-ec", request.replace(SERVER, real_site.url)], capture_output=True, timeout=300, check=True
    )
    assert json.loads(told.stdout)["millm"]["profile"] == "seaside@1"


@pytest.mark.parametrize("name", PAGES)
def test_links_and_pictures_exist(name: str) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", PAGES[name])
    assert targets
    assert [target for target in targets if not (Path("docs") / target).exists()] == []
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGES[name]):
        assert (Path("docs") / picture).stat().st_size <= MAX_PICTURE_BYTES
