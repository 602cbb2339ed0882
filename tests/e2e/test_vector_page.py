"""The page of a steering vector in a real browser: what it writes and resembles, where it acts, how it steers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from millm_site.env import DEMO_DIR
from tests.conftest import LiveSite
from tests.e2e.test_console import AXE, RUN_AXE

pytestmark = pytest.mark.browser
ENDED = re.compile(r"tokens, (finished|stopped at the token limit)")


@pytest.fixture
def vector_page(page: Page, live_site: LiveSite, tmp_path: Path) -> Page:
    """The page of a new set with vectors for two layers."""
    name = f"vector-{uuid4().hex[:8]}"
    width = json.loads((DEMO_DIR / "model" / "config.json").read_text())["hidden_size"]
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "v.npz", **{f"layer_{n}": rng.normal(size=width).astype(np.float32) for n in (0, 1)})
    live_site.server.manage("add_vectors", name, str(tmp_path / "v.npz"), "--model", "demo")
    page.goto(f"{live_site.url}/admin/steering/vectorset/?q={name}")
    page.locator("#result_list").get_by_role("link", name=name).click()
    return page


def test_what_a_vector_writes_and_resembles(vector_page: Page):
    page = vector_page
    expect(page.locator("#content h2").first).to_contain_text("layer 0")
    page.get_by_role("navigation", name="Vectors of this set").get_by_role("link", name="layer 1").click()
    expect(page.locator("#content h2").first).to_contain_text("layer 1")
    lens = page.locator("#lens")
    expect(lens.locator("caption")).to_have_text(["Promoted", "Suppressed"], timeout=90_000)
    assert lens.locator("tbody tr").count() == 20
    near = page.locator("#neighbours table")
    expect(near).to_have_count(2, timeout=90_000)
    expect(near.first.locator("tbody tr")).to_have_count(10)
    expect(near.last.locator("tbody a").filter(has_text="layer 0").first).to_be_visible()


def test_where_it_acts_on_a_text(vector_page: Page):
    page = vector_page
    page.locator("#test textarea").fill("It rained all night.")
    page.get_by_role("button", name="Show projections").click()
    expect(page.locator("#test .steering-example mark").first).to_be_visible(timeout=90_000)
    assert "It rained" in page.locator("#test .steering-example").inner_text()


def test_steers_at_once_and_leads_to_the_studio(vector_page: Page):
    page = vector_page
    panel = page.locator("#try")
    panel.get_by_role("button", name="Run").click()
    for side in ("unsteered", "steered"):
        expect(panel.locator(f"[data-side={side}] .column-state")).to_contain_text(ENDED, timeout=90_000)
    expect(panel.locator("[data-side=steered] .answer-kl")).to_contain_text("nats per token")
    page.evaluate(AXE)
    assert [(one["id"], each["html"][:160]) for one in page.evaluate(RUN_AXE) for each in one["nodes"]] == []
    with page.expect_response("**/studio/chat"):
        panel.locator("[name=strength]").fill("0.02")
    panel.get_by_role("link", name="Open in studio").click()
    row = page.locator(".studio-row")
    expect(row.locator("[name=strength]")).to_have_value("0.02")
    expect(row.locator(".studio-row-name")).to_contain_text("layer 0")


def test_its_text_is_edited_behind_a_button(vector_page: Page):
    page = vector_page
    field = page.locator("#id_description")
    expect(field).to_be_hidden()
    page.locator("#edit summary").click()
    field.fill("Noise, for a test.")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(page.locator(".steering-description")).to_have_text("Noise, for a test.")


def test_the_panel_appears_with_its_whole_edit(vector_page: Page):
    """An edit that grows after the buttons are shown would move them away from a click."""
    held: list[Route] = []
    vector_page.route("**/admin/studio/edits/", lambda route: held.append(route))
    with vector_page.expect_request("**/admin/studio/edits/"):
        vector_page.reload()
    expect(vector_page.locator("#try")).to_be_hidden()
    vector_page.wait_for_function("document.querySelector('#try [name=strength]')")
    held[0].continue_()
    expect(vector_page.locator("#try .studio-words")).to_contain_text("add 1 raw")
    expect(vector_page.locator("#try").get_by_role("button", name="Run")).to_be_visible()
