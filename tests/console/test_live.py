"""The pages' connection: who may have it, what it sends and when, and what it does not put up with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import User
from django.test import Client

from console.live.connection import BAD_MESSAGE, FAILED, LIVE_PATH, LOGGED_OUT, MAX_TOPICS, TOO_SLOW, LiveConnection
from console.live.topic import TOPICS, Topic, Topics
from inference.models import LanguageModel
from jobs.models import Job
from millm_site.http.asgi_handler import SiteHandler
from openai_api.database import in_database
from tests.console.test_pages import client_of, staff
from tests.database import in_thread

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Shown:
    """Topics of a test's own. ``test`` says ``n`` to who may see jobs."""

    n: int = 1
    topics: Topics = field(default_factory=Topics)

    def __post_init__(self) -> None:
        self.topics.add(Topic("test", lambda user, rest: {"n": self.n, "rest": rest}, ("jobs.view_job",)))


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def browser() -> Client:
    return client_of(staff("view_job"))


@asynccontextmanager
async def connected(client: Client, topics: Topics = TOPICS, **options: Any) -> AsyncIterator[Any]:
    async with opened(client, LiveConnection.as_asgi(topics=topics, period_s=0.02, **options)) as line:
        assert line.is_accepted
        yield line


@asynccontextmanager
async def opened(
    client: Client, application: Any, origin: str = "http://localhost", path: str = LIVE_PATH
) -> AsyncIterator[Any]:
    cookie = client.cookies.output(header="", sep=";").strip().encode()
    headers = [(b"host", b"localhost"), (b"cookie", cookie), (b"origin", origin.encode())]
    line = WebsocketCommunicator(application, path, headers=headers)
    line.is_accepted, _ = await line.connect(timeout=60)
    try:
        yield line
    finally:
        await line.disconnect()


async def hear(line: Any) -> dict[str, Any]:
    message: dict[str, Any] = await line.receive_json_from(timeout=60)
    return message


async def closing(line: Any) -> int:
    output = await line.receive_output(timeout=60)
    assert output["type"] == "websocket.close", output
    return int(output["code"])


async def test_a_topic_is_sent_at_once_and_again_when_it_changes(browser: Client, shown: Shown):
    async with connected(browser, shown.topics) as line:
        await line.send_json_to({"subscribe": "test:a b"})
        assert await hear(line) == {"topic": "test:a b", "data": {"n": 1, "rest": "a b"}}
        await line.send_json_to({"ack": "test:a b"})
        assert await line.receive_nothing(timeout=0.3)
        shown.n = 2
        assert (await hear(line))["data"]["n"] == 2


async def test_a_slow_reader_gets_the_newest_and_not_everything(browser: Client, shown: Shown):
    async with connected(browser, shown.topics) as line:
        await line.send_json_to({"subscribe": "test"})
        await hear(line)
        for n in range(2, 6):
            shown.n = n
            assert await line.receive_nothing(timeout=0.1)
        await line.send_json_to({"ack": "test"})
        assert (await hear(line))["data"]["n"] == 5


async def test_who_never_acknowledges_is_cut(browser: Client, shown: Shown):
    async with connected(browser, shown.topics, max_silence_s=0.1) as line:
        await line.send_json_to({"subscribe": "test"})
        await hear(line)
        assert await closing(line) == TOO_SLOW


async def test_a_permission_that_is_taken_away_empties_the_page(browser: Client, shown: Shown):
    async with connected(browser, shown.topics) as line:
        await line.send_json_to({"subscribe": "test"})
        assert (await hear(line))["data"] is not None
        await line.send_json_to({"ack": "test"})
        await in_thread(lambda: User.objects.get().user_permissions.clear())
        assert await hear(line) == {"topic": "test", "data": None}


@pytest.mark.parametrize("how", ["log out", "deactivate", "no staff", "password"])
async def test_a_session_that_ends_ends_the_connection(browser: Client, shown: Shown, how: str):
    def end() -> None:
        user = User.objects.get()
        if how == "log out":
            browser.logout()
        user.is_active = how != "deactivate"
        user.is_staff = how != "no staff"
        if how == "password":
            user.set_password("another")
        user.save()

    async with connected(browser, shown.topics) as line:
        await line.send_json_to({"subscribe": "test"})
        await hear(line)
        await in_thread(end)
        assert await closing(line) == LOGGED_OUT


async def test_without_a_login_it_closes_at_once():
    async with connected(Client()) as line:
        assert await closing(line) == LOGGED_OUT


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "null", ""])
async def test_pages_of_other_sites_are_refused(browser: Client, origin: str):
    async with opened(browser, SiteHandler(), origin) as line:
        assert not line.is_accepted


@pytest.mark.parametrize("path", ["/", "/admin/live", "/admin/live/x", "/v1/realtime"])
async def test_there_is_no_other_websocket(browser: Client, path: str):
    async with opened(browser, SiteHandler(), path=path) as line:
        assert not line.is_accepted


@pytest.mark.parametrize(
    "text",
    [
        " ",
        "{",
        "[]",
        "null",
        '{"subscribe": 1}',
        '{"subscribe": "' + "x" * 101 + '"}',
        "[" * 1_000,
        "x" * 5_000,
        '{"b": 1}',
    ],
)
async def test_what_no_page_says_ends_the_connection(browser: Client, shown: Shown, text: str):
    async with connected(browser, shown.topics) as line:
        await line.send_to(text_data=text)
        assert await closing(line) == BAD_MESSAGE


async def test_bytes_and_too_many_topics_end_the_connection(browser: Client, shown: Shown):
    async with connected(browser, shown.topics) as line:
        await line.send_to(bytes_data=b"{}")
        assert await closing(line) == BAD_MESSAGE
    async with connected(browser, shown.topics) as line:
        for number in range(MAX_TOPICS + 1):
            await line.send_json_to({"subscribe": f"no:{number}"})
        codes: list[int] = []
        while not codes:
            output = await line.receive_output(timeout=60)
            codes = [output["code"]] if output["type"] == "websocket.close" else []
        assert codes == [BAD_MESSAGE]


async def test_unknown_and_forbidden_look_alike(browser: Client, shown: Shown):
    shown.topics.add(Topic("secret", lambda user, rest: {"n": 1}, ("auth.view_user",)))
    async with connected(browser, shown.topics) as line:
        for name in ("secret", "nothing"):
            await line.send_json_to({"subscribe": name})
            assert await hear(line) == {"topic": name, "data": None}


@pytest.mark.parametrize("rest", ["", "x", "00000000-0000-0000-0000-000000000000", "' or 1=1"])
async def test_a_job_that_is_not_there_is_nothing(browser: Client, rest: str):
    async with connected(browser) as line:
        await line.send_json_to({"subscribe": f"job:{rest}"})
        assert (await hear(line))["data"] is None


async def test_jobs_are_told_to_their_owners_and_to_who_manages_all(browser: Client):
    owner = await User.objects.aget()
    own = await Job.objects.acreate(kind="x", title="Own", owner=owner, message="<b>half</b>", done=1, total=2)
    other = await Job.objects.acreate(kind="x", title="Other")
    boss = await in_thread(lambda: client_of(staff("view_job", "manage_all_jobs")))
    async with connected(browser) as line:
        await line.send_json_to({"subscribe": "jobs"})
        assert (await hear(line))["data"] == {"open": 1}
        await line.send_json_to({"subscribe": f"job:{own.pk}"})
        data = (await hear(line))["data"]
        assert (data["state"], data["done"], data["total"], data["message"]) == ("queued", 1, 2, "<b>half</b>")
        await line.send_json_to({"subscribe": f"job:{other.pk}"})
        assert (await hear(line))["data"] is None
    async with connected(boss) as line:
        await line.send_json_to({"subscribe": "jobs"})
        assert (await hear(line))["data"] == {"open": 2}


@pytest.mark.parametrize("rest", ["", "x", "-1", "1.0", "٣", "9" * 30, "0", "1 or 1=1"])
async def test_a_model_that_is_not_there_is_nothing(rest: str):
    looker = await in_thread(lambda: client_of(staff("view_languagemodel")))
    async with connected(looker) as line:
        await line.send_json_to({"subscribe": f"model:{rest}"})
        assert (await hear(line))["data"] is None


async def test_how_a_model_stands_is_told_when_it_changes_and_to_who_may_see_models(browser: Client):
    model = await LanguageModel.objects.acreate(name="tiny", source="/nowhere")
    looker = await in_thread(lambda: client_of(staff("view_languagemodel")))
    topic = f"model:{model.pk}"
    async with connected(looker) as line:
        await line.send_json_to({"subscribe": topic})
        data = (await hear(line))["data"]
        assert (data["state"], data["is_moving"]) == ("unloaded", False)
        await line.send_json_to({"ack": topic})
        await LanguageModel.objects.filter(pk=model.pk).aupdate(state="failed", error="<b>no file</b>")
        data = (await hear(line))["data"]
        assert (data["state"], data["error"]) == ("failed", "<b>no file</b>")
    async with connected(browser) as line:
        await line.send_json_to({"subscribe": topic})
        assert (await hear(line))["data"] is None


async def test_a_failure_of_a_topic_ends_the_connection_and_is_logged(
    browser: Client, shown: Shown, caplog: pytest.LogCaptureFixture
):
    shown.topics.add(Topic("broken", lambda user, rest: {"n": 1 / 0}))
    async with connected(browser, shown.topics) as line:
        await line.send_json_to({"subscribe": "broken"})
        assert await closing(line) == FAILED
    assert "A live connection failed." in caplog.text


async def test_the_site_answers_pages_of_its_own(browser: Client):
    async with opened(browser, SiteHandler()) as line:
        await line.send_json_to({"subscribe": "jobs"})
        assert await hear(line) == {"topic": "jobs", "data": {"open": 0}}


async def test_open_pages_take_no_thread_from_requests(browser: Client, settings: Any):
    """Pages whose topics hang keep only each other waiting."""
    settings.MILLM_DATABASE_TIMEOUT = 30.0
    goes_on, reading = threading.Event(), threading.Semaphore(0)
    topics = Topics()

    def hang(user: Any, rest: str) -> dict[str, Any]:
        reading.release()
        goes_on.wait(60)
        return {}

    topics.add(Topic("test", hang, ("jobs.view_job",)))
    try:
        async with AsyncExitStack() as stack:
            for _ in range(8):
                line = await stack.enter_async_context(connected(browser, topics))
                await line.send_json_to({"subscribe": "test"})
            assert await asyncio.to_thread(reading.acquire, timeout=60)
            assert await asyncio.wait_for(in_database(Job.objects.count), 25) == 0
            goes_on.set()
    finally:
        goes_on.set()
