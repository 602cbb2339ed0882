"""The examples of the client's README run one after the other, against a live server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import LiveSite
from tests.live import clean_environment

CLIENT = Path("clients/python").resolve()
TEXT = (CLIENT / "README.md").read_text("utf-8")
SERVER = "http://127.0.0.1:8000"


def test_the_examples_of_the_readme_run(site: LiveSite, key: str, tmp_path: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(programs) >= 4
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(programs).replace(SERVER, site.url)],
        cwd=tmp_path,
        env={**clean_environment(), "PYTHONPATH": str(CLIENT), "MILLM_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "AUC" in done.stdout
