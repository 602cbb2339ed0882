"""A researcher's way in the browser: measure an SAE, find a feature while typing, look at it, steer with it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from millm_site.env import DEMO_DIR
from tests.conftest import LiveSite

pytestmark = pytest.mark.browser
SAES = "/admin/steering/sae/"


def test_measure_find_look_and_steer(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}{SAES}")
    page.click("#result_list tbody th a")
    page.get_by_role("link", name="Measure and label").click()
    page.fill("#check [name=tokens]", "8000")
    page.click("#check button")
    state = page.locator("#content")
    for _ in range(120):
        if re.search(r"succeeded|failed", state.inner_text()):
            break
        page.wait_for_timeout(500)
        page.reload()
    expect(state).to_contain_text("succeeded")

    page.goto(f"{live_site.url}{SAES}")
    page.click("#result_list tbody th a")
    expect(page.locator(".field-verdict")).to_contain_text("tokens of default")

    page.goto(f"{live_site.url}/admin/steering/feature/")
    page.locator("#searchbar").press_sequentially("rain")
    expect(page.locator("#result_list tbody tr").first).to_contain_text("rain")
    page.wait_for_url("**q=rain**")
    page.click("#result_list tbody tr:first-child th a")
    expect(page.locator("svg.steering-histogram")).to_be_visible()
    expect(page.locator("#lens table").first).to_be_visible()
    expect(page.locator("#examples mark").first).to_be_visible()
    page.locator("#bands summary").first.click()
    expect(page.locator("#bands mark").first).to_be_visible()
    expect(page.locator("#cofiring table a").first).to_be_visible()
    expect(page.locator("#facts")).to_contain_text("activations above 0, corpus default")

    page.fill("#steer [name=new_name]", "from-the-page")
    page.select_option("#steer [name=unit]", "p99")
    page.click("#steer button")
    expect(page.locator(".messagelist")).to_contain_text('to draft "from-the-page"')


def test_a_source_is_listed_and_previewed(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}{SAES}add/")
    page.select_option("[name=model]", label="demo")
    page.fill("[name=source]", str(DEMO_DIR))
    page.click("text=List SAEs")
    page.locator("#found tr", has_text="saelens").get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("topk with 2048 features of width 256")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_telephone(page: Page, live_site: LiveSite, scheme):
    """Nothing is wider than the window, so that nobody has to scroll sideways."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{live_site.url}/admin/steering/feature/?q=rain")
    page.click("#result_list tbody tr:first-child th a")
    expect(page.locator("#lens table, #lens .steering-note").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(f"{live_site.url}{SAES}add/")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
