"""The steering studio in a real browser: find, edit, compare, undo, share, save, publish."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from openai import OpenAI
from playwright.sync_api import Dialog, Locator, Page, expect

from millm_site.env import DEMO_DIR
from tests.conftest import LiveSite
from tests.e2e.test_console import AXE, RUN_AXE

pytestmark = pytest.mark.browser
ENDED = re.compile(r"tokens, (finished|stopped at the token limit)")


@pytest.fixture
def studio(page: Page, live_site: LiveSite) -> Iterator[Page]:
    """The studio of the demo. Complaints of the browser fail the test; a refused request is not one."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened(page, live_site, "?model=demo")
    yield page
    assert [text for text in complaints if "status of" not in text] == []


def opened(page: Page, site: LiveSite, address: str) -> None:
    page.goto(f"{site.url}/admin/studio/{address}")
    expect(page.locator(".studio-card").first).to_be_visible()


def rows(page: Page) -> Locator:
    return page.locator(".studio-row")


def find(page: Page, words: str) -> Locator:
    """The cards of a search, after it."""
    with page.expect_response("**/studio/features/"):
        page.get_by_label("Search features").fill(words)
    expect(page.locator(".studio-found:not([aria-busy])")).to_be_visible()
    return page.locator(".studio-card")


def add_first(page: Page) -> None:
    before = rows(page).count()
    page.locator(".studio-card [data-act=add]").first.click()
    expect(rows(page)).to_have_count(before + 1)


def answers(page: Page, side: str) -> Locator:
    return page.locator(f"[data-side={side}] .answer-text")


def run(page: Page, button: str = "Run") -> None:
    page.get_by_role("button", name=button, exact=True).click()
    wait_for_end(page)


def wait_for_end(page: Page) -> None:
    for side in ("unsteered", "steered"):
        for state in page.locator(f"[data-side={side}] .column-state").all():
            expect(state).to_contain_text(ENDED, timeout=90_000)


def strength(page: Page) -> Locator:
    return rows(page).first.locator("[name=strength]")


SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.shifted += entry.value; })
  .observe({ type: "layout-shift", buffered: true });
"""


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_moves_while_the_studio_opens(page: Page, live_site: LiveSite, width: int):
    page.set_viewport_size({"width": width, "height": 900})
    page.add_init_script(SHIFTS)
    opened(page, live_site, "?model=demo&sae=demo-sae&index=0")
    expect(rows(page).locator(".strength-slider output")).to_contain_text("relative size")
    expect(page.locator("#studio[aria-busy]")).to_have_count(0)
    assert page.evaluate("window.shifted") < 0.02  # web.dev counts less than 0.1 as good; it was 0.34 at 390 px


def test_a_feature_is_found_added_and_felt(studio: Page):
    find(studio, "rain")
    add_first(studio)
    row = rows(studio).first
    expect(row.locator(".strength-slider output")).to_contain_text("relative size")
    strength(studio).fill("1.5")
    run(studio)
    expect(studio.locator("[data-side=steered] .answer-kl")).to_contain_text("nats per token")
    assert answers(studio, "unsteered").inner_text() != answers(studio, "steered").inner_text()
    assert studio.locator("[data-side=steered] .token[style*='rgb']").count() > 0


def test_answers_follow_the_edits(studio: Page):
    find(studio, "rain")
    add_first(studio)
    strength(studio).fill("1.5")
    run(studio)
    studio.get_by_label("Run as I edit").uncheck()
    strength(studio).fill("0.1")
    expect(studio.locator(".answer-stale")).to_be_visible()
    before = answers(studio, "steered").inner_text()
    with studio.expect_response("**/studio/chat"):
        studio.get_by_label("Run as I edit").check()
        strength(studio).fill("0.2")
    wait_for_end(studio)
    expect(studio.locator(".answer-stale")).to_be_hidden()
    assert answers(studio, "steered").inner_text() != before


def test_a_conversation_has_turns_on_both_sides(studio: Page):
    find(studio, "rain")
    add_first(studio)
    studio.locator("summary", has_text="Options").click()
    studio.get_by_label("Max tokens").fill("8")
    run(studio)
    studio.locator("#studio-prompt").fill("And then?")
    with studio.expect_request("**/studio/chat") as sent:
        studio.get_by_role("button", name="Send").click()
    wait_for_end(studio)
    messages = sent.value.post_data_json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == answers(studio, "steered").first.inner_text()
    expect(studio.locator("[data-side=unsteered] .turn")).to_have_count(2)
    studio.get_by_role("button", name="New conversation").click()
    expect(studio.locator(".turn")).to_have_count(0)


def test_changes_are_undone_and_done_again(studio: Page):
    find(studio, "rain")
    add_first(studio)
    strength(studio).fill("0.7")
    strength(studio).blur()
    rows(studio).first.get_by_label(re.compile("^Steer with")).uncheck()
    studio.keyboard.press("Control+z")
    expect(rows(studio).first.get_by_label(re.compile("^Steer with"))).to_be_checked()
    studio.get_by_role("button", name="Undo").click()
    expect(strength(studio)).not_to_have_value("0.7")
    studio.get_by_role("button", name="Undo").click()
    expect(rows(studio)).to_have_count(0)
    expect(studio.get_by_role("button", name="Undo")).to_be_disabled()
    for _ in range(2):
        studio.get_by_role("button", name="Redo").click()
    expect(strength(studio)).to_have_value("0.7")


def test_the_address_is_the_state(studio: Page, live_site: LiveSite):
    find(studio, "rain")
    add_first(studio)
    strength(studio).fill("0.7")
    studio.locator("summary", has_text="Options").click()
    studio.get_by_label("System prompt").fill("Rhyme. \u202e<b>")
    studio.get_by_label("Max tokens").fill("8")
    run(studio)
    told = answers(studio, "steered").inner_text()
    address = studio.url
    assert "#" in address
    studio.goto("about:blank")
    studio.goto(address)
    expect(rows(studio)).to_have_count(1)
    expect(strength(studio)).to_have_value("0.7")
    assert studio.locator("[name=system]").input_value() == "Rhyme. \u202e<b>"
    expect(studio.locator("[data-side=steered] .turn-prompt")).to_have_text("Tell me a story.")
    run(studio, "Run again")
    assert answers(studio, "steered").inner_text() == told


def address_of(state: object) -> str:
    return "#" + base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "address",
    [
        "#",
        "#x",
        address_of({"x": 1}),
        address_of(None),
        address_of({"edits": [None, 5]}),
        address_of({"edits": [], "profile": 5}),
        address_of({"edits": [], "profile": "none", "model": "none", "kind": "x", "seed": {}, "prompts": 5}),
        "?model=none&profile=none",
        "?index=99999999&sae=x",
    ],
)
def test_addresses_that_are_no_state_open_an_empty_studio(studio: Page, live_site: LiveSite, address: str):
    studio.goto("about:blank")
    opened(studio, live_site, address)
    if "index" in address:
        expect(rows(studio).first.locator(".studio-problem")).to_be_visible()
    else:
        expect(rows(studio)).to_have_count(0)


def test_edits_are_saved_loaded_and_published(studio: Page, live_site: LiveSite):
    name = f"studio-{uuid4().hex[:8]}"
    find(studio, "rain")
    add_first(studio)
    strength(studio).fill("0.7")
    expect(studio.locator(".studio-unsaved")).to_be_visible()
    studio.get_by_role("button", name="Save as draft…").click()
    studio.get_by_label("Name of the new profile").fill(name)
    studio.get_by_role("button", name="Create draft").click()
    expect(studio.locator(".studio-said")).to_contain_text(f"Saved the draft of {name}")
    expect(studio.locator(".studio-unsaved")).to_be_hidden()
    strength(studio).fill("0.8")
    studio.get_by_role("button", name="Save and publish…").click()
    studio.get_by_label("Note").fill("first")
    studio.get_by_role("button", name="Publish").click()
    expect(studio.locator(".messagelist")).to_contain_text(f"Published {name}@1")
    studio.get_by_role("link", name="Open in studio").click()
    expect(strength(studio)).to_have_value("0.8")
    strength(studio).fill("0.9")
    studio.get_by_text("Versions", exact=True).click()
    studio.get_by_role("button", name=f"{name}@1").click()
    expect(strength(studio)).to_have_value("0.8")
    expect(studio.locator(".studio-unsaved")).to_be_hidden()


def test_a_draft_that_someone_else_changed_is_not_overwritten(studio: Page, live_site: LiveSite):
    name = f"studio-{uuid4().hex[:8]}"
    add_first(studio)
    studio.get_by_role("button", name="Save as draft…").click()
    studio.get_by_label("Name of the new profile").fill(name)
    studio.get_by_role("button", name="Create draft").click()
    expect(studio.locator(".studio-said")).to_contain_text("Saved")
    other = studio.context.new_page()
    opened(other, live_site, f"?model=demo&profile={name}")
    strength(other).fill("0.3")
    other.get_by_role("button", name="Save draft").click()
    expect(other.locator(".studio-said")).to_contain_text("Saved")
    strength(studio).fill("0.4")
    studio.get_by_role("button", name="Save draft").click()
    expect(studio.locator(".studio-said")).to_contain_text("changed by someone else")
    expect(strength(studio)).to_have_value("0.4")


def test_unsaved_edits_are_not_left_without_a_question(studio: Page):
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    add_first(studio)
    strength(studio).fill("0.5")
    studio.on("dialog", stay)
    studio.locator("#console-nav a", has_text="Dashboard").click()
    expect(studio).to_have_url(re.compile("/studio/"))
    assert asked == ["beforeunload"]
    studio.remove_listener("dialog", stay)
    studio.on("dialog", lambda dialog: dialog.accept())


def test_features_of_a_text_are_shown_on_it(studio: Page):
    studio.get_by_label("active on a text").check()
    studio.locator("#studio-text").fill("It rained all night.")
    with studio.expect_response("**/studio/text/", timeout=90_000):
        studio.get_by_role("button", name="Show features").click()
    expect(studio.locator(".studio-found:not([aria-busy])")).to_be_visible()
    expect(studio.locator(".studio-card mark").first).to_be_visible()
    assert "It rained" in studio.locator(".studio-card-examples").first.inner_text()


def test_a_feature_s_page_steers_with_it_and_leads_to_the_studio(studio: Page, live_site: LiveSite):
    find(studio, "rain")
    studio.goto(f"{live_site.url}{studio.locator('.studio-card-name').first.get_attribute('href')}")
    panel = studio.locator("#try")
    panel.get_by_role("button", name="Run").click()
    for side in ("unsteered", "steered"):
        expect(panel.locator(f"[data-side={side}] .column-state")).to_contain_text(ENDED, timeout=90_000)
    expect(panel.locator("[data-side=steered] .answer-kl")).to_contain_text("nats per token")
    before = answers(studio, "steered").inner_text()
    with studio.expect_response("**/studio/chat"):
        panel.locator("[name=strength]").fill("0.1")
    wait_for_end(studio)
    assert answers(studio, "steered").inner_text() != before
    panel.get_by_role("link", name="Open in studio").click()
    expect(strength(studio)).to_have_value("0.1")
    expect(studio.locator("[data-side=steered] .turn-prompt")).to_have_text("Tell me a story.")


def test_registered_vectors_steer(studio: Page, live_site: LiveSite, tmp_path: Path):
    name = f"studio-{uuid4().hex[:8]}"
    width = json.loads((DEMO_DIR / "model" / "config.json").read_text())["hidden_size"]
    np.savez(tmp_path / "vector.npz", vector=np.random.default_rng(0).normal(size=width).astype(np.float32))
    live_site.server.manage("add_vectors", name, str(tmp_path / "vector.npz"), "--model", "demo", "--layer", "1")
    studio.goto(f"{live_site.url}/admin/steering/vectorset/?q={name}")
    studio.locator("#result_list").get_by_role("link", name=name).click()
    studio.get_by_role("link", name="Try in studio").click()
    studio.locator(".studio-card", has_text=name).get_by_role("button").click()
    expect(rows(studio)).to_have_count(1)
    expect(rows(studio).first.locator(".studio-row-name")).to_contain_text("vector")
    run(studio)
    expect(studio.locator("[data-side=steered] .answer-kl")).to_contain_text("nats per token")


def test_a_logged_request_is_opened_with_its_profile(studio: Page, live_site: LiveSite, client: OpenAI):
    raw = client.chat.completions.with_raw_response.create(
        model="demo",
        messages=[{"role": "user", "content": "Tell me a story of a lantern."}],
        seed=7,
        max_tokens=9,
        extra_body={"profile": "sea"},
    )
    studio.goto(f"{live_site.url}/admin/openai_api/requestlog/{raw.headers['x-request-id']}/change/")
    studio.get_by_role("link", name="Open in studio").click()
    expect(studio.locator("[name=profile]")).to_have_value("sea")
    expect(rows(studio).first).to_be_visible()
    expect(studio.locator("[data-side=steered] .turn-prompt")).to_have_text("Tell me a story of a lantern.")
    run(studio, "Run again")
    assert studio.locator("[name=seed]").input_value() == "7"
    assert studio.locator("[name=max_tokens]").input_value() == "9"


def test_refusals_are_shown_and_nothing_is_lost(studio: Page):
    add_first(studio)
    strength(studio).fill("1e9")
    expect(studio.locator(".studio-problem, .strength-value").first).to_be_visible()
    studio.get_by_role("button", name="Run", exact=True).click()
    expect(studio.locator("[data-side=steered] .column-state")).to_have_class(re.compile("state-failed"))
    expect(studio.locator("[data-side=unsteered] .column-state")).to_contain_text(ENDED, timeout=90_000)
    expect(strength(studio)).to_have_value("1e9")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_axe_has_no_complaint_of_a_studio_in_use(studio: Page, scheme: str, width: int):
    studio.emulate_media(color_scheme=scheme)
    studio.set_viewport_size({"width": width, "height": 900})
    find(studio, "rain")
    add_first(studio)
    rows(studio).first.locator("summary").click()
    run(studio)
    expect(studio.locator("[data-side=steered] .answer-kl")).not_to_be_empty()
    expect(studio.get_by_role("button", name="Send")).to_be_enabled()
    studio.evaluate("Promise.all(document.getAnimations().map((each) => each.finished))")  # colours in between
    studio.evaluate(AXE)
    assert [(one["id"], node["html"][:200]) for one in studio.evaluate(RUN_AXE) for node in one["nodes"]] == []
    assert studio.evaluate("document.documentElement.scrollWidth") <= width


def test_penalties_are_sent_and_kept_in_the_address(studio: Page):
    add_first(studio)
    studio.locator("summary", has_text="Options").click()
    studio.get_by_label("Frequency penalty").fill("0.5")
    studio.get_by_label("Presence penalty").fill("-0.25")
    with studio.expect_request("**/studio/chat") as asked:
        studio.get_by_role("button", name="Run", exact=True).click()
    body = asked.value.post_data_json
    assert (body["frequency_penalty"], body["presence_penalty"]) == (0.5, -0.25)
    wait_for_end(studio)
    studio.reload()
    expect(studio.locator("[name=frequency_penalty]")).to_have_value("0.5")
    expect(studio.locator("[name=presence_penalty]")).to_have_value("-0.25")
