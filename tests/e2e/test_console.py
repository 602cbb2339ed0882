"""Every page of the console in a real browser: nothing that its policy forbids, no errors, and it fits a telephone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import ConsoleMessage, Page, WebSocketRoute, expect

from tests.conftest import LiveSite
from tests.e2e.visitor import Visitor

pytestmark = pytest.mark.browser

AXE = (Path(__file__).parents[1] / "vendor" / "axe-core" / "axe.min.js").read_text()
RUN_AXE = """async () => (await axe.run(document, {
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'], resultTypes: ['violations'],
})).violations"""
RUN_AXE_ON_COLOURS = """async () => (await axe.run(document, {
    runOnly: {type: 'rule', values: ['color-contrast', 'link-in-text-block']}, resultTypes: ['violations'],
})).violations"""
CLIPPED = """() => [...document.querySelectorAll("fieldset.module, .card")]
    .filter(part => part.clientWidth && part.scrollWidth > part.clientWidth + 1)
    .map(part => part.outerHTML.slice(0, 160))"""
OTHER_PAGES = (
    "/admin/steering/sae/add/",
    "/admin/steering/feature/?q=rain",
    "/admin/password_change/",
    "/docs",
    "/nothing",
)


@pytest.fixture
def paths(page: Page, live_site: LiveSite) -> list[str]:
    """All lists, where each can add one, the first object of each, and pages of other kinds."""
    page.goto(f"{live_site.url}/admin/")
    lists = list(Visitor(page).links().values())
    assert len(lists) > 25
    found = [*lists, *OTHER_PAGES]
    for path in lists:
        page.goto(live_site.url + path)
        for selector in ("#result_list tbody th a", ".object-tools a.addlink"):
            found += page.eval_on_selector_all(selector, "links => links.slice(0, 1).map(l => l.getAttribute('href'))")
    return found


def open_page(page: Page, live_site: LiveSite, path: str) -> None:
    page.goto(live_site.url + path)
    await_content(page)


def await_content(page: Page) -> None:
    expect(page.locator("h1, .swagger-ui .info").first).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def test_every_page_keeps_its_policy_passes_axe_and_fits_a_telephone(page: Page, live_site: LiveSite, paths: list[str]):
    """Each page is opened once, in light, then shown in dark and on a telephone."""
    wrong: list[str] = []
    complaints: list[str] = []  # of the browser, which tells of blocked scripts and styles too

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    page.on("console", note)
    for path in paths:
        complaints.clear()  # axe's own styles are blocked
        page.set_viewport_size({"width": 1400, "height": 900})
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        answer = page.goto(live_site.url + path)
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "script-src 'self';" in policy
        await_content(page)
        if path != "/nothing":  # it is a 404 on purpose
            wrong += [f"{path}: {complaint}" for complaint in complaints]
        if path == "/docs":
            continue  # Swagger UI's own page
        page.evaluate(AXE)
        for scheme, run in (("light", RUN_AXE), ("dark", RUN_AXE_ON_COLOURS)):
            page.emulate_media(color_scheme=scheme)
            for problem in page.evaluate(run):
                wrong += [f"{path} {scheme} {problem['id']}: {node['html'][:160]}" for node in problem["nodes"]]
        page.set_viewport_size({"width": 390, "height": 800})
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            width = page.evaluate("document.documentElement.scrollWidth")
            wrong += [f"{path} {scheme}: {width} wide"] * (width > 390)
            wrong += [f"{path} {scheme} clips {part}" for part in page.evaluate(CLIPPED)]
    assert not wrong, "\n".join(wrong)


def test_the_sidebar_is_a_drawer_on_a_telephone(page: Page, live_site: LiveSite):
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{live_site.url}/admin/")
    drawer = page.locator("#console-nav")
    expect(drawer).to_be_hidden()
    page.get_by_role("button", name="Menu").press("Enter")
    expect(drawer).to_be_visible()
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    drawer.get_by_role("link", name="Features").click()
    expect(page.locator("#content h1")).to_contain_text("Features")


def test_the_theme_goes_round(page: Page, live_site: LiveSite):
    page.emulate_media(color_scheme="light")
    page.goto(f"{live_site.url}/admin/")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    button = page.locator("#user-tools .theme-toggle")
    button.click()
    assert page.evaluate(background) != light
    page.reload()
    assert page.evaluate(background) != light
    button.click()
    assert page.evaluate(background) == light


def test_the_bar_shows_the_engine(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}/admin/steering/sae/")
    expect(page.locator("#engine-state .words")).to_contain_text("Engine ready")
    expect(page.locator("#live-line")).to_be_hidden()


def test_the_dashboard_s_figures_have_a_skeleton_until_they_arrive(page: Page, live_site: LiveSite):
    waiting = page.locator(":is([data-load], [data-running])[aria-busy=true]")
    held: list[WebSocketRoute] = []
    released: list[WebSocketRoute] = []

    def through(line: WebSocketRoute) -> None:
        if released:
            line.connect_to_server()
        else:
            held.append(line)

    page.route_web_socket("**/admin/live/", through)
    page.goto(f"{live_site.url}/admin/")
    expect(waiting.first).to_be_visible()
    released += held
    held[-1].close(code=1012)  # the page connects again
    expect(waiting).to_have_count(0)
    expect(page.locator("[data-load=kv]")).to_have_text(re.compile(r"\d+ %"))


def test_a_lost_connection_is_said_and_tried_again(page: Page, live_site: LiveSite):
    lines = []

    def through(route: WebSocketRoute) -> None:
        lines.append(route)
        route.connect_to_server()

    page.route_web_socket("**/admin/live/", through)
    page.goto(f"{live_site.url}/admin/steering/sae/")
    state = page.locator("#engine-state .words")
    expect(state).to_contain_text("Engine")
    num_before = len(lines)  # more than one where the page after the login had a line of its own
    lines[-1].close(code=1012)
    expect(page.locator("#live-line")).to_contain_text("Disconnected. Reconnecting")
    expect(page.locator("#live-line")).to_be_hidden()
    expect(state).to_contain_text("Engine")
    assert len(lines) > num_before
    lines[-1].close(code=4401)
    expect(page.locator("#live-line")).to_contain_text("You are logged out")


@pytest.mark.skipif("SCREENSHOTS" not in os.environ, reason="SCREENSHOTS names no folder")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots(page: Page, live_site: LiveSite, paths: list[str], scheme: str):
    """Also of pages at work, which others show empty: answers in the playground, the request that one of them was."""
    folder = Path(os.environ["SCREENSHOTS"])
    page.emulate_media(color_scheme=scheme)
    open_page(page, live_site, "/admin/playground/?model=demo&profile=gloomy")
    play(page)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=folder / f"playground-at-work-{scheme}.png")
    page.locator(".column").nth(1).get_by_role("link", name="View in request log").click()
    page.screenshot(path=folder / f"request-at-work-{scheme}.png", full_page=True)
    for path in paths:
        open_page(page, live_site, path)
        name = path.strip("/").replace("/", "-").replace("?", "-") or "home"
        page.screenshot(path=folder / f"{name}-{scheme}.png")


def play(page: Page) -> None:
    """Until each token is coloured, with one that is looked at."""
    page.get_by_role("button", name="Run all").click()
    steered = page.locator(".column").nth(1)
    expect(steered.locator(".answer-kl")).to_contain_text("nats per token", timeout=120_000)
    steered.locator(".token").nth(12).hover()
    expect(steered.locator(".answer-details")).to_contain_text("Strongest features")
