"""Files are received only with a key that is right: nobody else's first byte is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millm_site.http.asgi_handler import SiteHandler
from openai_api.http.file_uploads import upload_refusal
from tests import database, live
from tests.conftest import site_environment
from tests.database import Content
from tests.platform.wire import answer, ask, connected, head, read_all

LARGE = f"Content-Length: {100 * 2**20}"
FORM = "Content-Type: multipart/form-data; boundary=x"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[live.LiveServer, str]]:
    """A server that wants keys from everybody, and a key."""
    with database.own_database(Content.SCHEMA) as url:
        environment = {**site_environment(url, tmp_path_factory.mktemp("guarded")), "MILLM_AUTH": "required"}
        create = "from django.contrib.auth.models import User; User.objects.create_user('ann')"
        live.manage("shell", "-c", create, environment=environment)
        key = live.manage("create_api_key", "laptop", "--user", "ann", environment=environment).split()[-1]
        with live.serving(environment=environment) as server:
            yield server, key
            assert server.stop() == 0, server.output


@pytest.mark.live
@pytest.mark.parametrize("path", ["/v1/files", "/v1/files/", "/v1/uploads/upload_1/parts"])
def test_a_file_without_a_key_is_refused_before_it_comes(guarded: tuple[live.LiveServer, str], path: str):
    server, _ = guarded
    for lines in ((), ("Authorization: Bearer sk-wrong",), ("x-api-key: none",)):
        got = ask(server.url, head("POST", path, LARGE, FORM, "Expect: 100-continue", *lines))
        assert got.status == 401
        assert got.error["code"] == "invalid_api_key"
        assert got.headers["connection"] == "close"


@pytest.mark.live
def test_a_file_with_a_key_is_asked_for(guarded: tuple[live.LiveServer, str]):
    server, key = guarded
    lines = (f"Authorization: Bearer {key}", "Expect: 100-continue", "Content-Length: 5", FORM, "Connection: close")
    with connected(server.url) as connection:
        connection.sendall(head("POST", "/v1/files", *lines))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"--x--")
        got = answer(read_all(connection))
    assert (got.status, got.error["code"]) == (400, "missing_required_parameter")  # there is no part in it


@pytest.mark.live
def test_other_routes_answer_for_themselves(guarded: tuple[live.LiveServer, str]):
    server, _ = guarded
    got = ask(server.url, head("GET", "/v1/files", "Connection: close"))
    assert (got.status, got.error["code"]) == (401, "invalid_api_key")


async def test_other_servers_ask_too(settings: Any, db: Any):
    settings.MILLM_AUTH = "required"
    received, sent = list[int](), list[Any]()

    async def receive() -> dict[str, Any]:
        received.append(1)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/files",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }
    await SiteHandler()(scope, receive, send)
    assert sent[0]["status"] == 401
    assert received == []


@pytest.mark.parametrize(
    ("headers", "peer", "is_refused"),
    [
        ([], "127.0.0.1", False),
        ([(b"authorization", b"Bearer none")], "127.0.0.1", False),
        ([(b"authorization", b"Bearer sk-wrong")], "127.0.0.1", True),
        ([], "10.0.0.1", True),
        ([], "", True),
        ([(b"X-Forwarded-For", b"10.0.0.1")], "127.0.0.1", True),
        ([(b"x-forwarded-for", b"127.0.0.1"), (b"x-forwarded-for", b"10.0.0.1")], "127.0.0.1", True),
        ([(b"api-key", b"\xff\x00")], "127.0.0.1", True),
    ],
)
@pytest.mark.django_db
def test_the_gate_believes_what_the_view_would(settings: Any, headers: Any, peer: str, is_refused: bool):
    settings.MILLM_AUTH = "loopback"
    assert (upload_refusal(headers, peer) is not None) == is_refused
