from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import Error as PlaywrightError

from tests import database, live
from tests.browser import chromium
from tests.conftest import ADMIN_PASSWORD, ADMIN_USER, LiveSite, site_environment
from tests.database import Content
from tests.e2e.oracle import Oracle

MAX_SHOWN = 20_000  # characters of the page and of the server in the report of a failure

expect.set_options(timeout=30_000)  # as patient as the page's own acts: machines are slow, shared, or both


@pytest.fixture
def client(live_site: LiveSite) -> OpenAI:
    """The official client on the shared server, without retries: a failure is seen, not smoothed over."""
    return OpenAI(base_url=live_site.api_url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium for the tests of a module. Not for a session: asynchronous tests cannot run beside Playwright's loop."""
    with chromium() as browser:
        yield browser


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the page's text and the server's output to the report of a failed test."""
    report = yield
    if report.when != "call" or not report.failed:
        return report
    arguments = getattr(item, "funcargs", {})
    page, site = arguments.get("page"), arguments.get("live_site")
    if isinstance(page, Page) and not page.is_closed():
        try:
            text = page.evaluate("document.body.innerText")
        except PlaywrightError as error:
            text = str(error)
        report.sections.append((f"Page {page.url}", text[-MAX_SHOWN:]))
    if isinstance(site, LiveSite):
        report.sections.append(("Server output", site.server.output[-MAX_SHOWN:]))
    return report


@pytest.fixture(scope="session")
def login_cookies() -> dict[str, Any]:
    """The cookies of administrators who have logged in, by site."""
    return {}


@pytest.fixture
def page(live_site: LiveSite, browser: Browser, login_cookies: dict[str, Any]) -> Iterator[Page]:
    """A new browser window, logged in to the admin; errors in the page's scripts fail the test."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.add_cookies(login_cookies.get(live_site.url, []))
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(30_000)
    page.goto(live_site.url)
    if page.locator("#id_username").count():
        page.fill("#id_username", live_site.admin_user)
        page.fill("#id_password", live_site.admin_password)
        page.click("[type=submit]")
        login_cookies[live_site.url] = context.cookies()
    yield page
    context.close()
    assert not errors


@pytest.fixture(scope="module")
def real_site(tmp_path_factory: pytest.TempPathFactory, smollm2_directory: Path) -> Iterator[LiveSite]:
    """A server as a plain `make run` starts it, whose model was converted before."""
    home = tmp_path_factory.mktemp("real-site")
    (home / "models").symlink_to(smollm2_directory.parent)
    with database.own_database(Content.NOTHING) as url:
        environment = site_environment(url, home) | {"MILLM_DEMO": "smollm2"}
        with live.serving("--setup", environment=environment) as server:
            yield LiveSite(server.url, ADMIN_USER, ADMIN_PASSWORD, server)
            assert server.stop() == 0, server.output


@pytest.fixture(scope="session")
def float32_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own whose demo runs in float32, where greedy output does not depend on the batch."""
    with database.own_database() as url:
        environment = site_environment(url, tmp_path_factory.mktemp("float32-site"))
        live.manage("shell", "-c", USE_FLOAT32, environment=environment)
        with live.serving(environment=environment) as server:
            yield f"{server.url}/v1"
            assert server.stop() == 0, server.output


@pytest.fixture
def exact_client(float32_url: str) -> OpenAI:
    """The official client on the server of that address."""
    return OpenAI(base_url=float32_url, api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()


USE_FLOAT32 = "from inference.models import LanguageModel as M; assert M.objects.update(dtype='float32') == 1"
