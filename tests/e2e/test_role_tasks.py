"""The main task of each role, from the dashboard on, on a screen and on a telephone; with SCREENSHOTS, in pictures.

Each step is checked with axe in both themes. tests/e2e/test_roles_at_work.py checks what a role may not do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from openai import NotFoundError, OpenAI, PermissionDeniedError
from playwright.sync_api import Browser, Locator, Page, expect

from millm_site.env import DEMO_DIR
from tests.conftest import LiveSite
from tests.e2e.test_console import AXE, RUN_AXE, RUN_AXE_ON_COLOURS
from tests.e2e.visitor import PASSWORD

pytestmark = pytest.mark.browser
WIDTHS = (1440, 390)
ENDED = re.compile("tokens, (finished|stopped)")
STAFF = """
from django.contrib.auth.models import Group, User
for name, group in (("rita", "Researchers"), ("otto", "Auditors"), ("ada", "Admins")):
    user, is_new = User.objects.get_or_create(username=f"{name}-at-work", defaults={"is_staff": True})
    if is_new:
        user.set_password(PASSWORD)
        user.save()
        user.groups.add(Group.objects.get(name=group))
"""
YESTERDAY = """
from datetime import timedelta
from django.utils import timezone
from openai_api.models import RequestLog
assert RequestLog.objects.filter(pk="ID").update(created_at=timezone.now() - timedelta(hours=30)) == 1
"""


class Worker:
    """Somebody at the console, at one width of the window."""

    def __init__(self, page: Page, task: str) -> None:
        self.page = page
        self._task = task
        self._num_steps = 0

    @property
    def content(self) -> Locator:
        return self.page.locator("#content")

    def go(self, entry: str, tab: str = "") -> None:
        """By the sidebar, which is a drawer on a telephone."""
        if not self.page.locator("#console-nav").is_visible():
            self.page.get_by_role("button", name="Menu").click()
        self.page.locator("#console-nav").get_by_role("link", name=entry, exact=True).click()
        if tab:
            self.page.locator("nav.tabs").get_by_role("link", name=tab, exact=True).click()

    def step(self, name: str) -> None:
        """Note that a step is done: axe has no complaint, nothing is wider than the window, and there is a picture."""
        self._num_steps += 1
        self.page.wait_for_load_state()
        expect(self.page.locator("[aria-busy=true]")).to_have_count(0)
        width = self.page.viewport_size["width"] if self.page.viewport_size else 0
        assert self.page.evaluate("document.documentElement.scrollWidth") <= width
        self.page.evaluate(AXE)
        for scheme, run in (("light", RUN_AXE), ("dark", RUN_AXE_ON_COLOURS)):
            self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            self.page.evaluate("Promise.all(document.getAnimations().map((each) => each.finished))")
            problems = [(one["id"], each["html"][:160]) for one in self.page.evaluate(run) for each in one["nodes"]]
            assert problems == [], name
            if folder := os.environ.get("SCREENSHOTS"):
                file = f"task-{self._task}-{self._num_steps}-{name}-{width}-{scheme}.png"
                self.page.screenshot(path=Path(folder) / file, full_page=True)


@pytest.fixture(scope="module")
def staff(live_site: LiveSite) -> None:
    live_site.server.manage("shell", "-c", STAFF.replace("PASSWORD", repr(PASSWORD)))


@pytest.fixture
def work(
    request: pytest.FixtureRequest, live_site: LiveSite, browser: Browser, staff: None
) -> Iterator[tuple[Worker, int]]:
    """A worker of the role that the test is named after, logged in, and the width of the window."""
    name, width = request.param
    errors: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(live_site.url)
    page.fill("#id_username", f"{name}-at-work")
    page.fill("#id_password", PASSWORD)
    page.click("[type=submit]")
    yield Worker(page, name), width
    context.close()
    assert errors == []


@pytest.mark.parametrize("work", [("rita", width) for width in WIDTHS], indirect=True, ids=map(str, WIDTHS))
def test_a_researcher_steers_and_publishes(work: tuple[Worker, int], client: OpenAI):
    worker, _ = work
    page, name = worker.page, f"wet-{uuid4().hex[:6]}"
    worker.step("start")
    worker.go("Studio")
    expect(page.locator(".studio-card").first).to_be_visible()  # the best of all, before the search
    with page.expect_response("**/studio/features/"):
        page.get_by_label("Search features").fill("rain")
    expect(page.locator(".studio-card").first).to_contain_text("rain")
    expect(page.locator(".studio-found:not([aria-busy])")).to_be_visible()
    worker.step("found")
    page.locator(".studio-card").first.get_by_role("button", name="Add").click()
    page.locator(".studio-row [name=strength]").fill("1")
    page.get_by_role("button", name="Run", exact=True).click()
    for side in ("unsteered", "steered"):
        expect(page.locator(f"[data-side={side}] .column-state")).to_contain_text(ENDED, timeout=90_000)
    expect(page.locator("[data-side=steered] .answer-kl")).to_contain_text("nats per token")
    worker.step("compared")
    page.get_by_role("button", name="Save as draft…").click()
    page.get_by_label("Name of the new profile").fill(name)
    page.get_by_role("button", name="Create draft").click()
    page.get_by_role("button", name="Publish…").click()
    page.get_by_label("Note").fill("More rain.")
    worker.step("publish")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".messagelist")).to_contain_text(f"Published {name}@1")
    worker.step("published")
    raw = client.chat.completions.with_raw_response.create(
        model="demo", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, extra_body={"profile": name}
    )
    assert raw.headers["x-millm-profile"] == f"{name}@1"


@pytest.mark.parametrize("work", [("otto", width) for width in WIDTHS], indirect=True, ids=map(str, WIDTHS))
def test_an_auditor_finds_yesterday_s_bad_answer_and_why(work: tuple[Worker, int], live_site: LiveSite, client: OpenAI):
    worker, width = work
    page, word = worker.page, f"lighthouse{width}"
    raw = client.chat.completions.with_raw_response.create(
        model="demo",
        messages=[{"role": "user", "content": f"Tell me a happy story about the {word}."}],
        max_tokens=40,
        seed=0,
        user="laptop-7",
        extra_body={"profile": "gloomy"},
    )
    request_id = raw.headers["x-request-id"]
    worker.step("start")
    worker.go("Request log")
    live_site.server.manage("shell", "-c", YESTERDAY.replace("ID", request_id))
    page.locator("#log-text").fill(word)
    page.locator("#log-search").get_by_role("button", name="Search").click()
    rows = page.locator("#result_list tbody th a")
    expect(rows).to_have_count(1)
    expect(rows.first.locator("mark").first).to_have_text(word)
    worker.step("found")
    rows.first.click()
    expect(worker.content).to_contain_text("gloomy@1")
    expect(worker.content).to_contain_text("steering points")
    expect(page.locator(".log-version")).to_contain_text("demo-sae #")
    page.get_by_placeholder("Why?").fill("Asked for a happy story, steered by gloomy.")
    worker.step("why")
    page.get_by_role("button", name="Bad", exact=True).click()
    expect(page.locator(".messagelist")).to_contain_text("Saved the score.")
    page.locator(".saved summary").click()
    page.get_by_label("List", exact=True).select_option(label="New list")
    page.get_by_label("Name of the new list").fill(f"Bad answers {uuid4().hex[:6]}")
    worker.step("save")
    page.locator(".saved-form").get_by_role("button", name="Save").click()
    expect(page.locator(".messagelist")).to_contain_text('Saved to "Bad answers')
    worker.go("Request log")
    page.locator("summary", has_text="Filters").click()
    page.locator("#log-score").select_option(label="bad (below 0.5)")
    page.get_by_role("button", name="Apply filters").click()
    expect(rows.filter(has_text=word)).to_have_count(1)
    expect(page.locator(".log-score").first).to_have_text("score 0")
    worker.step("scored")


@pytest.mark.parametrize("work", [("ada", width) for width in WIDTHS], indirect=True, ids=map(str, WIDTHS))
def test_an_admin_adds_a_model_and_a_limited_key(work: tuple[Worker, int], live_site: LiveSite):
    worker, width = work
    page, model = worker.page, f"second-{width}"
    worker.step("start")
    worker.go("Models", "Models")
    worker.content.get_by_role("link", name="Preview a model").click()
    page.locator("[name=source]").fill(str(DEMO_DIR / "model"))
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("ForCausalLM")
    worker.step("preview")
    page.get_by_role("link", name="Add model…").click()
    page.locator("#id_name").fill(model)
    worker.step("add")
    page.get_by_role("button", name="Save", exact=True).click()
    worker.content.get_by_role("link", name=model, exact=True).click()
    expect(page.locator("[data-parts]")).to_be_visible()
    worker.step("model")
    worker.go("API keys", "API keys")
    worker.content.get_by_role("link", name="Add API key").click()
    page.get_by_label("Name:").fill(f"limited-{width}")
    page.get_by_label(model, exact=True).check()
    page.locator("[data-parts]").get_by_role("link", name="Limits and log").click()
    page.locator("#id_requests_per_minute").fill("2")
    worker.step("key")
    page.get_by_role("button", name="Save", exact=True).click()
    key = page.get_by_label("The key").inner_text().strip()
    worker.step("secret")
    page.get_by_role("link", name="I have saved it").click()
    worker.step("made")
    limited = OpenAI(base_url=live_site.api_url, api_key=key, max_retries=0)
    assert limited.completions.create(model=model, prompt="Hello", max_tokens=4).choices[0].text
    with pytest.raises((NotFoundError, PermissionDeniedError)):
        limited.completions.create(model="demo", prompt="Hello", max_tokens=4)
