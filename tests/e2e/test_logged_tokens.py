"""A logged request token by token, in a real browser: looked at by pointer and by keyboard, coloured by a feature."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from openai import OpenAI
from playwright.sync_api import Page, expect

from tests.conftest import LiveSite
from tests.e2e.test_console import AXE, RUN_AXE

pytestmark = pytest.mark.browser


@pytest.fixture
def request_id(client: OpenAI) -> str:
    response = client.chat.completions.with_raw_response.create(
        model="demo",
        messages=[{"role": "user", "content": "Tell me a story."}],
        max_tokens=12,
        seed=1,
        logprobs=True,
        top_logprobs=3,
        extra_body={"return_activations": {"top_k": 4, "special_tokens": True}},
    )
    return response.headers["x-request-id"]


def open_row(page: Page, site: LiveSite, request_id: str) -> None:
    """The log's thread writes the row soon after the answer."""
    url = f"{site.url}/admin/openai_api/requestlog/{quote(request_id)}/change/"
    for _ in range(50):
        page.goto(url)
        if page.locator("#token-by-token").count():
            return
        page.wait_for_timeout(200)
    pytest.fail("the row did not come")


def test_tokens_of_a_logged_request(page: Page, live_site: LiveSite, request_id: str):
    complaints: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error":
            complaints.append(message.text)

    page.on("console", note)
    open_row(page, live_site, request_id)
    prompt, answer = (page.locator(".log-token-view section").nth(place) for place in (0, 1))
    expect(answer.locator("h4")).to_have_text("Answer tokens")
    expect(answer.locator(".token")).to_have_count(12)
    expect(prompt.locator(".answer-text")).to_contain_text("Tell me a story")

    answer.locator(".token").nth(2).hover()
    details = answer.locator(".answer-details")
    expect(details).to_contain_text("Log-probability")
    expect(details).to_contain_text("Top tokens")
    expect(details).to_contain_text(re.compile(r"Strongest features\s*#\d+", re.DOTALL))
    shown = details.inner_text()
    answer.locator(".token").nth(2).focus()
    page.keyboard.press("ArrowRight")
    expect(answer.locator(".token").nth(3)).to_be_focused()
    assert details.inner_text() != shown

    choice = page.get_by_label("Colour tokens by")
    assert choice.input_value().startswith("feature:")
    coloured = ".log-token-view .token:not([style*='/ 0%'])"
    assert page.locator(coloured).count() >= 1
    expect(page.locator(".log-token-view .legend-words")).to_have_text("Feature activation")
    choice.select_option("logprob")
    expect(page.locator(".log-token-view .legend-words")).to_contain_text("Surprisal")
    choice.select_option("none")
    expect(page.locator(".log-token-view .legend")).to_be_hidden()

    assert complaints == []
    page.evaluate(AXE)
    assert [(one["id"], node["html"][:200]) for one in page.evaluate(RUN_AXE) for node in one["nodes"]] == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_id_and_the_command_are_copied(page: Page, live_site: LiveSite, request_id: str):
    open_row(page, live_site, request_id)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy id").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == request_id
    page.get_by_text("curl", exact=True).click()
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.locator(".log-curl").get_by_role("button", name="Copied")).to_be_visible()
    command = page.evaluate("navigator.clipboard.readText()").strip()
    answer = subprocess.run(["sh", "-c", f"{command} -sf"], check=True, timeout=60, capture_output=True)  # noqa: S607
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_a_token_is_explained(page: Page, live_site: LiveSite, request_id: str):
    """Bars of features, the tokens on which each acts, and what layers predict; on a telephone, by axe's rules."""
    open_row(page, live_site, request_id)
    page.set_viewport_size({"width": 390, "height": 800})
    answer = page.locator(".log-token-view section").nth(1)
    token = answer.locator(".token").nth(3)
    token.click()
    answer.get_by_role("button", name="Explain this token").click()
    explained = answer.locator(".explained")
    expect(explained.locator(".explained-lens tbody tr")).to_have_count(5)
    expect(explained.locator("h4").first).to_contain_text((token.text_content() or "").strip())
    rows = explained.locator(".explained-bars tbody tr")
    expect(rows.filter(has_text="SAE error")).to_have_count(1)
    expect(rows.first.locator("a")).to_have_attribute("href", re.compile("/admin/steering/feature/"))
    rows.first.hover()
    colours = explained.locator(".explained-text span").evaluate_all("all => all.map(one => one.style.backgroundColor)")
    places = (rows.first.get_attribute("data-places") or "").split()
    assert 0 < len([colour for colour in colours if not colour.endswith("/ 0%)")]) <= len(places)
    page.evaluate(AXE)
    assert page.evaluate(RUN_AXE) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
