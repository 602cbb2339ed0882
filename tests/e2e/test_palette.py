"""The palette, the keys for lists and the filter of the settings, in a browser, in both themes, on a telephone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from openai_api.keys.record import PREFIX_LENGTH, new_key
from tests.conftest import LiveSite
from tests.e2e.test_console import AXE, RUN_AXE

pytestmark = pytest.mark.browser
EVIL = '<img src=x onerror="document.title = 1">'
LISTS = "/admin/steering/steeringprofile/"
RENAME = f"""
from steering.models import SteeringProfile
SteeringProfile.objects.filter(name="cats").update(description={EVIL!r})
"""


@pytest.fixture
def palette(page: Page, live_site: LiveSite) -> Locator:
    """Open on the dashboard, with its pages."""
    page.goto(f"{live_site.url}/admin/")
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Search")
    expect(palette.get_by_role("option").first).to_be_visible()
    return palette


def type_in(palette: Locator, text: str) -> None:
    palette.get_by_role("combobox").fill(text)
    expect(palette.locator("#palette-found")).to_have_attribute("aria-busy", "false")


def chosen(palette: Locator) -> Locator:
    return palette.locator("[role=option][aria-selected=true]")


def test_the_keyboard_is_enough(page: Page, palette: Locator):
    field = palette.get_by_role("combobox", name="Search pages, objects and ids")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-expanded", "true")
    expect(chosen(palette)).to_have_count(0)
    page.keyboard.press("Enter")  # opens nothing, as nothing is chosen
    page.keyboard.press("ArrowDown")
    expect(chosen(palette)).to_contain_text("Dashboard")
    page.keyboard.press("ArrowUp")
    expect(chosen(palette)).to_contain_text("Change password")
    type_in(palette, "gloomy")
    expect(chosen(palette)).to_contain_text("gloomy")
    expect(field).to_have_attribute("aria-activedescendant", chosen(palette).get_attribute("id") or "none")
    expect(field).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content h1")).to_have_text("gloomy")


def test_enter_waits_for_the_results(page: Page, palette: Locator):
    page.keyboard.type("vector stores")
    page.keyboard.press("Enter")
    expect(page.locator("#content h1")).to_have_text("Vector stores")


def test_escape_closes_and_gives_the_focus_back(page: Page, live_site: LiveSite):
    page.goto(live_site.url + LISTS)
    palette = page.get_by_role("dialog", name="Search")
    search = page.locator("#searchbar")
    search.fill("cats")
    for press in ("Control+k", "Meta+k"):
        page.keyboard.press(press)
        expect(palette.get_by_role("combobox")).to_be_focused()
        page.keyboard.press("Escape")
        expect(palette).to_be_hidden()
        expect(search).to_be_focused()
    expect(search).to_have_value("cats")
    button = page.get_by_role("link", name="Search")
    button.focus()
    page.keyboard.press("Enter")
    expect(palette).to_be_visible()
    palette.get_by_role("button", name="Close").click()
    expect(button).to_be_focused()


def test_a_request_is_found_by_the_beginning_of_its_id(page: Page, palette: Locator, client, live_site: LiveSite):
    raw = client.chat.completions.with_raw_response.create(
        model="demo", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=4
    )
    name = raw.headers["x-request-id"]
    option = palette.get_by_role("option", name=name)
    for _ in range(60):  # rows are written within a second or so
        type_in(palette, name[:12])
        if option.count():
            break
        type_in(palette, "")
    option.click()
    expect(page.locator("#content h1")).to_contain_text(name)


def test_texts_of_others_are_texts(page: Page, palette: Locator, live_site: LiveSite):
    live_site.server.manage("shell", "-c", RENAME)
    type_in(palette, "onerror")
    expect(palette.get_by_role("option", name=EVIL)).to_have_count(1)
    assert palette.locator("img").count() == 0
    type_in(palette, f"{EVIL} nowhere")
    expect(palette.get_by_role("status")).to_have_text(f'No results for "{EVIL} nowhere".')
    expect(palette.get_by_role("combobox")).to_have_attribute("aria-expanded", "false")
    assert palette.locator("img").count() == 0


def test_what_fails_is_said(page: Page, palette: Locator):
    page.route("**/search/palette/**", lambda route: route.abort())
    type_in(palette, "a")
    expect(palette.get_by_role("status")).to_have_text("The server cannot be reached. Try again.")
    page.unroute("**/search/palette/**")

    def fail(route: Route) -> None:
        route.fulfill(status=503, body="")

    page.route("**/search/palette/**", fail)
    type_in(palette, "ab")
    expect(palette.get_by_role("status")).to_have_text("The search failed with status 503. Try again.")
    page.unroute("**/search/palette/**")
    type_in(palette, "gloomy")
    expect(chosen(palette)).to_contain_text("gloomy")
    page.context.clear_cookies()
    type_in(palette, "gloom")
    expect(palette.get_by_role("status")).to_have_text("You are logged out. Reload the page to log in.")


def test_a_pasted_key_stays_in_the_browser_but_for_its_prefix(page: Page, palette: Locator):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    key = new_key()
    type_in(palette, f" {key} ")
    (url,) = [url for url in asked if "/search/palette/" in url]
    assert url.endswith(f"?q={key[:PREFIX_LENGTH]}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_it_passes_axe_and_fits(page: Page, live_site: LiveSite, width: int, scheme: str):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(f"{live_site.url}/admin/")
    page.evaluate(AXE)
    page.get_by_role("link", name="Search").click()
    palette = page.get_by_role("dialog", name="Search")
    expect(palette.get_by_role("option").first).to_be_visible()
    for text in ("rain", "nothing is called this"):
        type_in(palette, text)
        problems = page.evaluate(RUN_AXE)
        assert not problems, [(each["id"], node["html"][:160]) for each in problems for node in each["nodes"]]
        box = palette.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert palette.evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")


def test_j_and_k_move_in_lists_and_enter_opens(page: Page, live_site: LiveSite):
    page.goto(live_site.url + LISTS)
    links = page.locator("#result_list tbody th a")
    page.keyboard.press("j")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("k")  # is already the first
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(links.nth(1)).to_be_focused()
    name = links.nth(1).inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#content h1")).to_have_text(name)
    page.goto(live_site.url + LISTS)
    page.keyboard.press("k")
    expect(links.last).to_be_focused()


def test_slash_goes_to_the_search_of_the_page(page: Page, live_site: LiveSite):
    page.goto(live_site.url + LISTS)
    page.keyboard.press("/")
    search = page.locator("#searchbar")
    expect(search).to_be_focused()
    page.keyboard.type("j/k")
    expect(search).to_have_value("j/k")  # keys are text where one types
    page.goto(f"{live_site.url}/admin/openai_api/requestlog/")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.closest('#log-search') !== null")
    page.goto(f"{live_site.url}/admin/")
    page.keyboard.press("j")  # no list
    page.keyboard.press("/")
    expect(page.get_by_role("dialog", name="Search").get_by_role("combobox")).to_have_value("")


def test_without_scripts_the_button_leads_to_a_page(page: Page, live_site: LiveSite):
    href = page.get_by_role("link", name="Search").get_attribute("href")
    page.goto(f"{live_site.url}{href}")
    field = page.get_by_role("searchbox", name="Search pages, objects and ids")
    field.fill("gloomy")
    field.press("Enter")
    expect(page).to_have_title(re.compile("^Search"))
    expect(page.locator("#content").get_by_role("link", name="gloomy").first).to_be_visible()


def test_settings_are_filtered_as_one_types(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}/admin/settings/")
    rows = page.locator("#settings-list tbody tr")
    expect(page.get_by_role("status").filter(has_text="settings")).to_have_text(f"{rows.count()} settings")
    page.keyboard.press("/")
    field = page.get_by_role("searchbox", name="Filter settings")
    expect(field).to_be_focused()
    page.keyboard.type("retention LOG text")
    expect(rows.locator("visible=true")).to_have_count(1)
    expect(rows.locator("visible=true")).to_contain_text("MILLM_LOG_TEXT_RETENTION_DAYS")
    field.fill("nothing is called this")
    expect(page.get_by_text("No matching settings.")).to_be_visible()
    field.fill("")
    page.get_by_label("Only changed").check()
    changed = rows.locator("visible=true")
    expect(page.get_by_role("row", name=re.compile("^MILLM_HOME "))).to_contain_text("environment")
    expect(page.get_by_role("row", name=re.compile("^MILLM_ADMIN_PASSWORD "))).to_contain_text("secret, set")
    expect(page.locator("#content")).not_to_contain_text(live_site.admin_password)
    assert 0 < changed.count() < 15
