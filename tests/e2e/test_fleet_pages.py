"""Models, keys and the trail in the browser: load and try a model, make a key and use it, see who did it."""

from __future__ import annotations

import re

import pytest
from openai import AuthenticationError, OpenAI
from playwright.sync_api import Page, expect

from millm_site.env import DEMO_DIR
from tests.conftest import LiveSite

pytestmark = pytest.mark.browser
MODELS = "/admin/inference/languagemodel/"
KEYS = "/admin/openai_api/apikey/"
TRAIL = "/admin/audit/auditevent/"


def open_model(page: Page, site: LiveSite) -> None:
    page.goto(f"{site.url}{MODELS}")
    page.click("#result_list tbody th a")


def test_a_model_is_unloaded_loaded_and_tried(page: Page, live_site: LiveSite):
    open_model(page, live_site)
    badge = page.locator(".model-badge")
    if badge.inner_text() != "loaded":
        page.click(".model-acts button:has-text('Load')")
    expect(badge).to_have_text("loaded", timeout=120_000)  # the page says so by itself
    page.click(".model-acts button:has-text('Unload')")
    expect(page.locator(".model-badge")).to_have_text("unloaded", timeout=60_000)

    page.fill("#try-prompt", "Tell me a story.")
    page.click("#try-form button[type=submit]")
    expect(page.locator("#try-state a")).to_be_visible(timeout=120_000)
    assert len(page.inner_text("#try-answer")) > 20
    page.click("#try-state a")
    expect(page.locator("#content")).to_contain_text(live_site.admin_user)

    page.goto(f"{live_site.url}{TRAIL}?action=unload")
    expect(page.locator("#trail tbody tr").first).to_contain_text(live_site.admin_user)


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_page_says_by_itself_how_its_model_stands(page: Page, live_site: LiveSite, is_connected: bool):
    """Told over the page's connection, or asking by itself where there is none."""
    said: list[str] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: said.append(str(frame))))
    if not is_connected:
        page.route_web_socket(re.compile("/admin/live/"), lambda socket: socket.close())
    open_model(page, live_site)
    expect(page.locator("#live-line")).to_be_visible(visible=not is_connected)
    act = "unload" if page.locator(".model-badge").inner_text() == "loaded" else "load"
    pk = re.search(r"/(\d+)/change/", page.url)
    assert pk is not None
    token = page.locator("[name=csrfmiddlewaretoken]").first.input_value()
    answer = page.request.post(f"{live_site.url}/api/models/{pk[1]}/{act}", headers={"X-CSRFToken": token}, data={})
    assert answer.ok, answer.text()
    expect(page.locator(".model-badge")).to_have_text(f"{act}ed", timeout=120_000)
    assert told(page, said, f'"model:{pk[1]}"', tries=50 if is_connected else 1) == is_connected


def told(page: Page, said: list[str], topic: str, *, tries: int) -> bool:
    """Frames come while the page is waited for, some after what it fetched by itself on the way to its connection."""
    for _ in range(tries):
        if any(topic in text for text in said):
            return True
        page.wait_for_timeout(200)
    return False


def test_a_source_is_previewed_before_it_is_registered(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}{MODELS}preview/")
    page.fill("[name=source]", str(DEMO_DIR / "model"))
    page.click("input[type=submit]")
    expect(page.locator("#preview")).to_contain_text("ForCausalLM")
    page.click("#preview a.button")
    expect(page.locator("#id_source")).to_have_value(str(DEMO_DIR / "model"))


def test_a_key_is_made_used_rotated_and_revoked(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}{KEYS}add/")
    page.fill("#id_name", "from the browser")
    page.click("#id_owner + .select2 .select2-selection")
    page.click(".select2-results__option:has-text('admin')")
    page.check("#id_scopes_0")
    page.click("[name=_save]")
    first = page.inner_text("#plain-key").strip()

    def models(key: str) -> int:
        return len(OpenAI(base_url=live_site.api_url, api_key=key, max_retries=0).models.list().data)

    assert models(first) > 0
    page.click("text=I have saved it")
    expect(page.locator(".key-usage svg").first).to_be_visible()
    page.click("#key-acts a:has-text('Rotate')")
    page.click("input[type=submit]")
    second = page.inner_text("#plain-key").strip()
    assert second != first
    assert models(first) == models(second)

    page.click("text=I have saved it")
    page.click("#key-acts a:has-text('Revoke')")
    page.fill("[name=reason]", "the test is over")
    page.click("input[type=submit]")
    expect(page.locator(".messagelist")).to_contain_text("Revoked ")
    for key in (first, second):
        with pytest.raises(AuthenticationError):
            models(key)
    page.goto(f"{live_site.url}{TRAIL}?kind=openai_api.apikey&action=revoke")
    expect(page.locator("#trail tbody tr").first).to_contain_text("the test is over")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_telephone(page: Page, live_site: LiveSite, scheme):
    """Nothing is wider than the window, so that nobody has to scroll sideways."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 800})
    paths = [f"{MODELS}preview/", f"{KEYS}add/", TRAIL, "/admin/jobs/job/"]
    for path in paths:
        page.goto(f"{live_site.url}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    open_model(page, live_site)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(f"{live_site.url}{TRAIL}")
    page.click("#trail tbody td a")
    assert re.search(r"/auditevent/\d+/change/", page.url)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
