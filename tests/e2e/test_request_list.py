"""The list of the request log in a real browser: chips, chart and excerpts, by axe's rules and on a telephone."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.utils import quote
from openai import OpenAI
from playwright.sync_api import Page, expect

from tests.conftest import LiveSite
from tests.e2e.test_console import AXE, RUN_AXE, RUN_AXE_ON_COLOURS

pytestmark = pytest.mark.browser
LOG = "/admin/openai_api/requestlog/"


def open_list(page: Page, site: LiveSite, query: str = "") -> None:
    """Rows are written soon after the answer."""
    for _ in range(50):
        page.goto(site.url + LOG + query)
        if page.locator("#result_list mark").count():
            return
        page.wait_for_timeout(200)
    pytest.fail("the row did not come")


def test_a_search_its_chart_and_the_way_to_a_request_and_back(page: Page, live_site: LiveSite, client: OpenAI):
    for temperature in (0, 1):
        client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Tell me of the lighthouse keeper."}],
            temperature=temperature,
            max_tokens=12,
        )
    open_list(page, live_site, "?text=lighthouse&last=hour")
    first = page.locator("#result_list tbody tr").first
    expect(first.locator("mark").first).to_have_text("lighthouse")
    expect(first.locator("time")).to_have_text(re.compile("ago|just now"))

    page.evaluate(AXE)
    for scheme, run in (("light", RUN_AXE), ("dark", RUN_AXE_ON_COLOURS)):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert [(one["id"], node["html"][:200]) for one in page.evaluate(run) for node in one["nodes"]] == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1400, "height": 900})

    page.get_by_label("Remove the filter Words").click()
    expect(page.locator(".log-chips li")).to_have_count(3)  # time, console, clear
    page.get_by_text("Show as table").click()
    page.locator("#log-histogram tbody a").last.click()
    expect(page).to_have_url(re.compile("since="))
    expect(page.locator("#result_list tbody tr").first).to_contain_text("chat/completions")
    page.get_by_label("Remove the filter Hidden").click()
    expect(page.locator(".log-chips")).to_contain_text("Source: all")

    page.locator("#result_list tbody th a").first.click()
    expect(page.get_by_role("heading", name="Conversation")).to_be_visible()
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("heading", name="Conversation")).to_be_visible()
    page.get_by_role("link", name="Back to results").click()
    expect(page.locator(".log-chips")).to_contain_text("Source: all")


def test_a_bar_of_the_chart_leads_to_its_requests(page: Page, live_site: LiveSite, client: OpenAI):
    client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Of lighthouses"}], max_tokens=2, temperature=0
    )
    open_list(page, live_site, "?text=lighthouses&last=hour")
    page.locator("#log-histogram svg a:has(.log-requests)").last.click()
    expect(page).to_have_url(re.compile("text=lighthouses.*since="))
    expect(page.locator("#result_list mark").first).to_have_text("lighthouses")


def test_a_response_has_the_turns_before_it(page: Page, live_site: LiveSite, client: OpenAI):
    first = client.responses.create(model="demo", input="Who keeps the light?", max_output_tokens=4)
    second = client.responses.with_raw_response.create(
        model="demo", input="And who keeps the keeper?", previous_response_id=first.id, max_output_tokens=4
    )
    page.goto(f"{live_site.url}{LOG}{quote(second.headers['x-request-id'])}/change/")
    earlier = page.locator(".log-turns")
    expect(earlier.get_by_text("Who keeps the light?")).to_be_hidden()
    earlier.get_by_text("1 earlier turn").click()
    expect(earlier.get_by_text("Who keeps the light?")).to_be_visible()
    page.evaluate(AXE)
    assert page.evaluate(RUN_AXE) == []
    earlier.get_by_role("link").click()
    expect(page.get_by_text("Who keeps the light?")).to_be_visible()
