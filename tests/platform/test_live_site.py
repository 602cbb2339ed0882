"""The whole site as `make run` starts it, and under other ASGI servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests import live
from tests.conftest import LiveSite, bare_site, site_environment
from tests.platform.wire import connected, get, head, read_all, read_until

CHAT = {"model": "demo", "max_tokens": 900, "messages": [{"role": "user", "content": "Tell me a story."}]}
PRINTED_CURL = re.compile(r"^  (curl .*)$", re.MULTILINE)


def test_printed_curl_lines_tell_stories(live_site: LiveSite) -> None:
    lines = PRINTED_CURL.findall(live_site.server.output)
    assert len(lines) == 2
    for line in lines:
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=600, check=True)
        story = json.loads(done.stdout)["choices"][0]["message"]["content"]
        assert len(story.split()) > 20, line


def test_site_is_ready_and_its_pages_are_there(live_site: LiveSite) -> None:
    assert json.loads(get(live_site.url, "/health/ready").body)["status"] == "ready"
    for path in ("/admin/login/", "/docs", "/openapi.json", "/v1/models", "/static/admin/css/base.css"):
        assert get(live_site.url, path).status == 200, path


def test_busy_port_is_one_clear_sentence(live_site: LiveSite) -> None:
    port = live_site.url.rsplit(":", 1)[1]
    environment = {**live_site.server.environment, "MILLM_PORT": port}
    with live.running([sys.executable, "manage.py", "serve"], environment) as second:
        assert second.process.wait(live.PATIENCE_S) == 1
        second.wait_for(rf"Port {port} of 127.0.0.1 is already in use")
    assert "Traceback" not in second.output


def test_ollama_has_a_port_of_its_own(tmp_path: Path) -> None:
    """OpenAI's API is there as well, as at Ollama's own; nothing else is, whatever form the path has."""
    with bare_site(tmp_path, MILLM_OLLAMA_PORT="0") as site:
        found = re.search(r"^ +Ollama +(http\S+)$", site.server.output, re.MULTILINE)
        assert found is not None, site.server.output
        own = found.group(1)
        assert get(own, "/").body == b"Ollama is running"
        assert get(own, "/api/version").body == get(site.url, "/ollama/api/version").body
        assert json.loads(get(own, "/api/tags").body) == {"models": []}
        assert json.loads(get(own, "/v1/models").body) == {"object": "list", "data": []}
        hidden = (
            "/admin/",
            "/openai/v1/models",
            "/api/models",
            "/metrics",
            "/health/live",
            "/../admin/",
            "//admin/",
            "/%2e%2e/docs",
        )
        for path in (*hidden, "http://localhost/admin/", "http://localhost/static/admin/css/base.css"):
            answer = get(own, path)
            assert answer.status == 404, path
            assert isinstance(json.loads(answer.body)["error"], str), path
        assert get(own, "http://localhost/api/version").status == 200
        with live.running(
            [sys.executable, "manage.py", "serve"],
            {**site.server.environment, "MILLM_PORT": "0", "MILLM_OLLAMA_PORT": own.rsplit(":", 1)[1]},
        ) as second:
            assert second.process.wait(live.PATIENCE_S) == 1
            second.wait_for(r"already in use, perhaps by Ollama itself\. Stop it, .* MILLM_OLLAMA_PORT=")


def test_database_without_migrations_is_refused(tmp_path: Path, empty_database_url: str) -> None:
    with live.running([sys.executable, "manage.py", "serve"], site_environment(empty_database_url, tmp_path)) as server:
        server.wait_for("manage.py migrate")
        assert server.process.wait(live.PATIENCE_S) == 1


def test_database_of_another_encoding_is_refused(tmp_path: Path) -> None:
    with (
        ascii_database() as url,
        live.running([sys.executable, "manage.py", "serve", "--setup"], site_environment(url, tmp_path)) as server,
    ):
        server.wait_for("has the encoding SQL_ASCII, but miLLM needs UTF8")
        assert server.process.wait(live.PATIENCE_S) == 1
    assert "Traceback" not in server.output


@contextmanager
def ascii_database() -> Iterator[str]:
    name = sql.Identifier(f"ascii_{os.getpid()}")
    with psycopg.connect(live.maintenance_url("postgres"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0").format(name))
        try:
            yield live.maintenance_url(f"ascii_{os.getpid()}")
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def test_database_that_is_away_is_explained(tmp_path: Path) -> None:
    environment = site_environment("postgresql://nobody@127.0.0.1:9/nothing", tmp_path)
    with live.running([sys.executable, "manage.py", "serve"], {**environment, "MILLM_DATABASE_TIMEOUT": "1"}) as server:
        server.wait_for("The database cannot be used")
        assert server.process.wait(live.PATIENCE_S) == 1
    assert "Traceback" not in server.output


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "daphne", "-p", "{port}", "millm_site.asgi:application"],
        ["-m", "uvicorn", "--port", "{port}", "millm_site.asgi:application"],
    ],
    ids=["daphne", "uvicorn"],
)
def test_other_servers_run_the_same_application(tmp_path: Path, migrated_database_url: str, command: list[str]) -> None:
    environment = site_environment(migrated_database_url, tmp_path)
    port = free_port()
    words = [word.format(port=port) for word in command]
    with live.running([sys.executable, *words], environment) as server:
        server.wait_for("(?i)listening|running on")
        url = f"http://127.0.0.1:{port}"
        assert json.loads(get(url, "/health/ready").body)["engine"] == "ok"
        assert get(url, "/v1/models").status == 200
        server.stop(signal.SIGTERM)
    assert "Traceback" not in server.output


def test_embedded_server_comes_and_goes_with_the_site(tmp_path: Path) -> None:
    """As `make run` does it: own home, Ctrl-C, again."""
    environment = {"MILLM_HOME": str(tmp_path / "home"), "MILLM_AUTH": "loopback"}
    with live.serving("--setup", environment=environment) as server:
        shown = re.search(r"Login +admin, password in (\S+) ", server.output)
        assert shown is not None  # nobody watches: what is printed here would be kept in a container's log
        password = Path(shown.group(1)).read_text().strip()
        assert len(password) >= 12
        assert password not in server.output
        assert Path(shown.group(1)).stat().st_mode & 0o777 == 0o600
        pid = int((tmp_path / "home" / "postgres" / "postmaster.pid").read_text().split()[0])
        assert server.stop(signal.SIGINT) == 0
    assert server.output.rstrip().endswith("Stopped.")
    assert live.ended(pid)
    with live.serving("--setup", environment=environment) as server:
        assert password not in server.output
        assert get(server.url, "/v1/models").status == 200
        assert server.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(("drain_s", "ending"), [(60, "[DONE]"), (0.2, "engine_shutdown")])
def test_stream_of_a_stopping_server_ends_well_and_is_logged(
    tmp_path: Path, database_url: str, drain_s: float, ending: str
) -> None:
    """Within the time it finishes; beyond it the client is told, not cut off."""
    environment = {**site_environment(database_url, tmp_path), "MILLM_DRAIN_SECONDS": str(drain_s)}
    with live.serving("--setup", environment=environment) as server:
        with connected(server.url, timeout_s=live.PATIENCE_S) as connection:
            connection.sendall(post("/v1/chat/completions", CHAT | {"max_tokens": 1}))
            read_all(connection)  # the model is loaded now
        with connected(server.url, timeout_s=live.PATIENCE_S) as connection:
            endless = {"n": 8, "temperature": 1.9, "ignore_eos": ending != "[DONE]"}
            connection.sendall(post("/v1/chat/completions", CHAT | {"stream": True} | endless))
            beginning = read_until(connection, b'"content":"')
            server.process.send_signal(signal.SIGTERM)
            events = (beginning + read_all(connection)).decode()
        assert server.process.wait(live.PATIENCE_S) == 0
    assert ending in events
    assert ("[DONE]" in events) == (ending == "[DONE]")
    assert logged_requests(database_url) == 2


def post(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return (
        head("POST", path, "Content-Type: application/json", f"Content-Length: {len(data)}", "Connection: close") + data
    )


def logged_requests(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT count(*) FROM openai_api_requestlog").fetchone()
    assert row is not None
    return int(row[0])


def free_port() -> int:
    from millm_site.server.listener import listen

    with listen("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])
