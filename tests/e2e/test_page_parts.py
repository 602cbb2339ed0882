"""Long pages that show one part at a time: chosen by tabs, by addresses, and by what is wrong."""

from __future__ import annotations

from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import LiveSite

pytestmark = pytest.mark.browser


def tab(page: Page, name: str) -> Locator:
    return page.locator("[data-parts]").get_by_role("link", name=name)


def test_an_address_names_a_part_or_an_element_in_it(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}/admin/steering/sae/")
    page.locator("#result_list tbody th a").first.click()
    address = page.url
    expect(page.get_by_role("heading", name="Health")).to_be_visible()
    expect(page.locator("#check")).to_be_hidden()
    tab(page, "Files").click()
    expect(page.locator("#weights")).to_be_visible()
    expect(page.get_by_role("heading", name="Health")).to_be_hidden()
    page.goto("about:blank")
    page.goto(f"{address}#effects")
    expect(page.locator("#effects")).to_be_in_viewport()
    expect(tab(page, "Measure and label")).to_have_attribute("aria-current", "true")
    page.get_by_role("link", name="Measure…").click()
    expect(page.locator("#check")).to_be_in_viewport()
    for odd in ("#%", "#x%22y", "#part-jobs"):
        page.goto("about:blank")
        page.goto(f"{address}{odd}")
        expect(tab(page, "Health")).to_be_visible()


def test_a_field_that_is_wrong_is_shown_where_it_is(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}/admin/openai_api/apikey/add/")
    page.locator("#id_name").fill(f"parts-{uuid4().hex[:6]}")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("link", name="I have saved it").click()
    expect(page.locator(".key-usage")).to_be_visible()
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_hidden()
    tab(page, "Access").click()
    page.locator("#id_name").fill("")
    tab(page, "Limits and log").click()
    page.locator("#id_requests_per_minute").fill("7")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#id_name")).to_be_visible()  # the server wants a name
    expect(tab(page, "Access")).to_have_attribute("aria-current", "true")
    page.locator("#id_name").fill("parts of a page")
    tab(page, "Limits and log").click()
    page.locator("#id_requests_per_minute").fill("7")
    page.locator("#id_log_retention_days").fill("-1")
    tab(page, "Access").click()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".errorlist").first).to_be_visible()
    expect(tab(page, "Limits and log")).to_have_attribute("aria-current", "true")
