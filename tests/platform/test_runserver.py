"""manage.py runserver: one engine in the serving child, none in its parent, whatever reloads and signals come."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import live
from tests.platform.wire import get

SETTINGS = 'from millm_site.settings import *\nROOT_URLCONF = "tests.platform.thread_urls"\n'


@dataclass
class Development:
    server: live.LiveServer
    settings_file: Path

    @property
    def child(self) -> psutil.Process:
        [child] = psutil.Process(self.server.pid).children()
        return child

    def threads(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(get(self.server.url, "/threads").body)
        return report

    def wait_until_up(self) -> None:
        self.server.url = self.server.wait_for(live.SERVES_ON).group(1)


@pytest.fixture
def development(tmp_path: Path, migrated_database_url: str) -> Iterator[Development]:
    """runserver with autoreload, on settings that a test may touch."""
    settings_file = tmp_path / "reloaded_settings.py"
    settings_file.write_text(SETTINGS)
    environment = {
        "MILLM_HOME": str(tmp_path / "home"),
        "MILLM_DATABASE_URL": migrated_database_url,
        "MILLM_DEBUG": "1",
        "DJANGO_SETTINGS_MODULE": "reloaded_settings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(live.PROJECT_DIR)]),
    }
    with live.running([sys.executable, "manage.py", "runserver", "0"], environment) as server:
        running = Development(server, settings_file)
        running.wait_until_up()
        yield running
        for child in psutil.Process(server.pid).children() if server.process.poll() is None else []:
            child.kill()


def engines(names: list[str]) -> list[str]:
    return [name for name in names if name == "engine"]


def test_one_engine_in_the_child_none_in_the_parent_after_a_reload_too(development: Development) -> None:
    first = development.threads()
    assert first["pid"] == development.child.pid
    assert len(engines(first["names"])) == 1
    parent = psutil.Process(development.server.pid)
    assert not any("torch" in mapping.path for mapping in parent.memory_maps())
    assert parent.num_threads() <= 2

    development.settings_file.write_text(SETTINGS + "# changed\n")
    development.wait_until_up()
    second = development.threads()
    assert second["pid"] == development.child.pid != first["pid"]
    assert live.ended(first["pid"])
    assert len(engines(second["names"])) == 1
    assert_signal_ends_both(development, signal.SIGTERM)


def test_an_interrupt_ends_both_in_order(development: Development) -> None:
    development.child.send_signal(signal.SIGINT)  # a terminal sends it to both
    assert_signal_ends_both(development, signal.SIGINT)


def assert_signal_ends_both(development: Development, number: signal.Signals) -> None:
    child = development.child
    assert development.server.stop(number) == 0
    assert not child.is_running()
    assert "Stopping: 0 request(s)" in development.server.output
    assert "Traceback" not in development.server.output


@pytest.mark.parametrize(
    ("variables", "status", "said"),
    [({}, 200, "not needed for requests from this machine"), ({"MILLM_AUTH": "required"}, 401, "needed for every")],
)
def test_requests_of_this_machine_need_no_key_unless_asked_for(
    tmp_path: Path, migrated_database_url: str, variables: dict[str, str], status: int, said: str
) -> None:
    environment = {"MILLM_HOME": str(tmp_path), "MILLM_DATABASE_URL": migrated_database_url, **variables}
    with live.running([sys.executable, "manage.py", "runserver", "0", "--noreload"], environment) as server:
        server.url = server.wait_for(live.SERVES_ON).group(1)
        server.wait_for(said)
        assert get(server.url, "/v1/models").status == status
        assert server.stop(signal.SIGINT) == 0


def test_without_reloader_there_is_one_process(tmp_path: Path, migrated_database_url: str) -> None:
    environment = {"MILLM_HOME": str(tmp_path), "MILLM_DATABASE_URL": migrated_database_url, "MILLM_DEBUG": "1"}
    with live.running([sys.executable, "manage.py", "runserver", "0", "--noreload"], environment) as server:
        server.url = server.wait_for(live.SERVES_ON).group(1)
        assert psutil.Process(server.pid).children() == []
        assert get(server.url, "/static/admin/css/base.css").status == 200
        assert server.stop(signal.SIGINT) == 0
