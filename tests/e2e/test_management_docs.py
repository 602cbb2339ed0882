"""The example of docs/management-api.md runs as it stands, against a server with the demo."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import httpx2 as httpx

TEXT = Path("docs/management-api.md").read_text("utf-8")


def wait_until_known(url: str, key: str) -> None:
    """The server hears of a new key from Postgres."""
    deadline = time.monotonic() + 60
    while httpx.get(f"{url}/api/me", headers={"Authorization": f"Bearer {key}"}, timeout=600).status_code != 200:
        assert time.monotonic() < deadline, "the server does not know the key"
        time.sleep(0.1)


def test_the_example_publishes_a_profile_that_requests_can_name(live_site):
    (program,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    key = live_site.server.manage("create_api_key", "manager", "--user", live_site.admin_user, "--scope", "manage")
    key = key.strip().splitlines()[-1]
    wait_until_known(live_site.url, key)
    done = subprocess.run(
        [sys.executable, "-c", f"KEY = {key!r}\n" + program.replace("http://127.0.0.1:8000", live_site.url)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "seaside@1"
    assert "seaside (demo, @1)" in live_site.server.manage("list_profiles")
