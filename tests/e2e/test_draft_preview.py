"""A profile's form in a real browser: sliders that know what they do, and the draft tried before it is saved."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import LiveSite
from tests.e2e.test_console import AXE, RUN_AXE

pytestmark = pytest.mark.browser
NAME = f"tried-{os.getpid()}"
MAKE = f"""
from inference.models import LanguageModel
from steering.models import Feature, FeatureEdit
from steering.services import create_profile

profile = create_profile(name="{NAME}", model=LanguageModel.objects.get(name="demo"))
feature = Feature.objects.filter(sae__model=profile.model).search("cat").first()
FeatureEdit.objects.create(profile=profile, feature=feature, strength=0.5)
print("pk", profile.pk)
"""
READ = f"""
from steering.models import FeatureEdit

print("kept", *FeatureEdit.objects.filter(profile__name="{NAME}").values_list("strength", flat=True))
"""
NOT_OURS = re.compile("status of")  # refused requests
ENDED = re.compile("tokens, (finished|stopped at the token limit)")


@pytest.fixture(scope="module")
def pk(live_site: LiveSite) -> str:
    """A profile with one edit."""
    return live_site.server.manage("shell", "-c", MAKE).split()[-1]


def open_form(page: Page, site: LiveSite, pk: str) -> None:
    page.goto(f"{site.url}/admin/steering/steeringprofile/{pk}/change/")
    expect(slider(page)).to_be_visible()


@pytest.fixture
def form(page: Page, live_site: LiveSite, pk: str) -> Iterator[Page]:
    """Its page; complaints of the policy and errors fail the test, refused requests do not."""
    complaints: list[str] = []

    def note(message: object) -> None:
        if getattr(message, "type", "") == "error" and not NOT_OURS.search(getattr(message, "text", "")):
            complaints.append(getattr(message, "text", ""))

    page.on("console", note)
    open_form(page, live_site, pk)
    yield page
    assert complaints == []


def slider(page: Page) -> Locator:
    return page.locator("#edits-0").get_by_label("Strength, as a slider")


def strength(page: Page) -> Locator:
    return page.locator("[name=edits-0-strength]")


def side(page: Page, name: str) -> Locator:
    return page.locator(f"#draft-preview [data-side={name}]")


def answer(page: Page, name: str) -> str:
    return side(page, name).locator(".answer-text").inner_text()


def run(page: Page, num_tokens: int = 16) -> None:
    page.locator("#preview-tokens").fill(str(num_tokens))
    page.locator("#preview-temperature").fill("0")
    page.get_by_role("button", name="Run", exact=True).click()
    for name in ("unsteered", "draft"):
        expect(side(page, name).locator(".column-state")).to_contain_text(ENDED, timeout=90_000)


def wait_for_row(page: Page, site: LiveSite, url: str) -> None:
    """Wait until the request has a row in the log."""
    deadline = time.monotonic() + 60
    while (answer := page.request.get(f"{site.url}{url}", max_redirects=0)).status != 200:
        text = f"{url}: {answer.status} {answer.headers.get('location', '')}"
        assert time.monotonic() < deadline, f"{text}\n{site.server.output[-4000:]}"
        time.sleep(0.2)


def test_slider_and_number_are_one(form: Page):
    card = form.locator("#edits-0")
    expect(slider(form)).to_have_value("0.5")
    strength(form).fill("1")
    expect(slider(form)).to_have_value("1")
    expect(card.locator(".field-words .readonly")).to_contain_text("add 1 × max activation")
    slider(form).focus()
    form.keyboard.press("ArrowRight")
    moved = float(strength(form).input_value())
    assert moved > 1
    expect(card.locator(".field-words .readonly")).to_contain_text(f"add {moved:g} × max activation")
    expect(slider(form)).to_have_attribute(
        "aria-valuetext", re.compile(rf"{moved:g} × max activation, raw .*, relative size ")
    )
    before = slider(form).get_attribute("max")
    strength(form).fill("30")  # beyond its end: the slider goes further
    expect(slider(form)).not_to_have_attribute("max", before or "")
    expect(slider(form)).to_have_value("30")


def test_ranges_say_what_to_expect(form: Page):
    badge = form.locator("#edits-0 .strength-slider .badge")
    push = form.locator("#edits-0 .fieldBox.field-push .readonly")
    seen = {}
    for value in ("0", "0.5", "1", "2", "4", "8"):
        strength(form).fill(value)
        expect(form.locator("#edits-0 .field-words .readonly")).to_contain_text(f"add {value} ×")
        seen[float(push.inner_text().split()[0])] = badge.inner_text()
        shown = form.locator("#edits-0 .strength-slider output").inner_text()
        assert shown.endswith(f"relative size {push.inner_text().split()[0]}")  # the script's is the server's
    for size, words in seen.items():
        assert words == ("mild" if size < 0.2 else "strong" if size <= 0.6 else "likely to break")
    assert set(seen.values()) >= {"mild", "likely to break"}


def test_operations_without_a_strength_have_no_slider(form: Page):
    form.locator("[name=edits-0-operation]").select_option("ablate")
    expect(slider(form)).to_be_hidden()
    form.locator("[name=edits-0-operation]").select_option("scale")
    expect(slider(form)).to_be_visible()
    expect(form.locator("#edits-0 .strength-slider output")).to_contain_text("0.5 ×, raw 0.5")


def test_a_draft_is_tried_beside_no_steering_and_nothing_is_saved(form: Page, live_site: LiveSite):
    strength(form).fill("1.5")
    run(form)
    assert answer(form, "unsteered") != answer(form, "draft")
    state = side(form, "draft").locator(".column-state")
    expect(state).to_contain_text(re.compile(rf"{NAME}@draft: applied at all \d+ steering points"))
    expect(side(form, "draft").locator(".answer-kl")).to_contain_text("nats per token")
    assert "kept 0.5" in live_site.server.manage("shell", "-c", READ)
    side(form, "draft").locator(".token").nth(2).hover()
    expect(side(form, "draft").locator(".answer-details")).to_contain_text("KL(steered‖base)")
    row = state.get_by_role("link", name="View in request log").get_attribute("href")
    wait_for_row(form, live_site, row or "")
    form.goto(f"{live_site.url}{row}")
    expect(form.locator("#content")).to_contain_text("Preview of a draft")
    expect(form.locator("#content")).to_contain_text("add 1.5 × max activation")


def test_it_runs_again_while_one_edits(form: Page):
    run(form)
    before, base = answer(form, "draft"), answer(form, "unsteered")
    with form.expect_request("**/preview/chat"):
        form.get_by_label("Run again as I edit").check()
    expect(side(form, "draft").locator(".column-state")).to_contain_text(ENDED, timeout=60_000)
    with form.expect_request(lambda asked: '"edits-0-strength"\r\n\r\n2\r\n' in (asked.post_data or "")):
        strength(form).fill("0")
        strength(form).fill("2")
    expect(side(form, "draft").locator(".column-state")).to_contain_text(ENDED, timeout=60_000)
    expect(side(form, "draft").locator(".answer-text")).not_to_have_text(before, use_inner_text=True)
    assert answer(form, "unsteered") == base
    with form.expect_request("**/preview/chat"):  # the slider too
        slider(form).focus()
        form.keyboard.press("Home")
    expect(form.locator("#draft-preview")).to_have_class(re.compile("preview-docked"))


def test_a_bad_draft_is_told_by_field_and_the_server_goes_on(form: Page):
    strength(form).fill("1000")
    form.get_by_role("button", name="Run", exact=True).click()
    problem = form.locator(".preview-problems button")
    expect(problem).to_have_text("feature edit 1, strength")
    expect(form.locator(".preview-problems")).to_contain_text("the limit is 10")
    problem.click()
    expect(strength(form)).to_be_focused()
    strength(form).fill("1")
    run(form, 4)
    expect(form.locator(".preview-problems")).to_be_hidden()


def test_a_prompt_that_is_too_long_and_a_lost_server_are_said(form: Page):
    form.locator("#preview-prompt").fill("x " * 9_000)
    form.get_by_role("button", name="Run", exact=True).click()
    for name in ("unsteered", "draft"):
        expect(side(form, name).locator(".state-failed")).to_contain_text("Shorten")
    form.locator("#preview-prompt").fill("Hello")
    form.route("**/preview/chat", lambda route: route.fulfill(content_type="text/event-stream", body=": \n\n"))
    form.get_by_role("button", name="Run", exact=True).click()
    expect(side(form, "draft").locator(".state-failed")).to_contain_text("The connection closed before")


def test_a_card_that_is_added_has_its_slider(form: Page):
    form.click("#edits-group .add-row a")
    card = form.locator("#edits-1")
    card.locator(".field-feature .select2-selection").click()
    form.locator(".select2-search__field").fill("rain")
    form.locator(".select2-results__option").first.click()
    expect(card.get_by_label("Strength, as a slider")).to_be_visible()
    expect(card.locator(".field-words .readonly")).to_contain_text("add 0.5 × max activation")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_has_no_complaint_and_it_fits(page: Page, live_site: LiveSite, pk: str, scheme: str, width: int):
    open_form(page, live_site, pk)  # axe and pictures write styles of their own, of which the policy complains
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    run(page)
    expect(side(page, "draft").locator(".answer-kl")).to_contain_text("nats per token")
    side(page, "draft").locator(".token").nth(1).focus()
    if folder := os.environ.get("MILLM_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"preview-{width}-{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_label("Run again as I edit").check()
    if folder:
        page.screenshot(path=Path(folder) / f"docked-{width}-{scheme}.png")
    page.evaluate(AXE)
    found = [(one["id"], node["html"][:200]) for one in page.evaluate(RUN_AXE) for node in one["nodes"]]
    assert found == []
