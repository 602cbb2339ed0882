"""The pictures of the README, docs/research.md and docs/console.md. Written by `make readme-images`, again when pages
change.
"""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from tests.conftest import LiveSite
from tests.e2e.test_sharing import blog, share
from tests.e2e.visitor import RUN_MS, Visitor

FOLDER = os.environ.get("README_IMAGES", "")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(not FOLDER, reason="README_IMAGES names no folder")]
DONE = re.compile(r"tokens, (finished|stopped)")
OCEAN = 5579
MARGIN = 8
JOB_MS = 600_000
SMOLLM2 = Path("steering/demo/smollm2")
NUM_TOKENS = "20000"
SWEEP = ("--quick", "--temperature", "0.7", "--control-system-prompt", "Bring everything back to the sea.")


@pytest.fixture(scope="module")
def measured_site(real_site: LiveSite) -> LiveSite:
    """With examples of features, as after the first minutes of `make run`."""
    real_site.server.manage("check_sae", "smollm2-sae", "--tokens", NUM_TOKENS)
    return real_site


@pytest.fixture
def live_site(measured_site: LiveSite) -> LiveSite:
    return measured_site


@pytest.fixture(autouse=True)
def light(page: Page) -> None:
    page.emulate_media(color_scheme="light")


def save(name: str, taken: bytes) -> None:
    """Write a picture with few colours, which is a third as large."""
    picture = Image.open(io.BytesIO(taken)).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        Path(FOLDER) / f"{name}.png", optimize=True
    )


def picture(page: Page, name: str, height: int = 900) -> None:
    page.set_viewport_size({"width": 1400, "height": height})
    save(name, page.screenshot())


def part(page: Page, name: str, first: Locator, last: Locator | None = None, height: int = 900) -> None:
    """Take the page from one element to another, at most ``height`` high; nothing of it is scrolled away."""
    before = page.viewport_size
    assert before is not None
    page.set_viewport_size({"width": before["width"], "height": 3_000})
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_load_state("networkidle")
    start, end = first.bounding_box(), (last or first).bounding_box()
    assert start is not None
    assert end is not None
    x, y = start["x"] - MARGIN, start["y"] - MARGIN
    whole = end["y"] + end["height"] + MARGIN - y
    width = max(start["width"], end["width"]) + 2 * MARGIN
    save(name, page.screenshot(clip={"x": x, "y": y, "width": width, "height": min(whole, height)}))
    page.set_viewport_size(before)


def wait_for_answers(page: Page) -> None:
    for state in page.locator(".column-state").all():
        expect(state).to_contain_text(DONE, timeout=RUN_MS)


def test_studio_image(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}/admin/studio/?model=smollm2")
    expect(page.locator(".studio-card").first).to_be_visible()
    with page.expect_response("**/studio/features/"):
        page.get_by_label("Search features").fill("sea")
    expect(page.locator(".studio-found:not([aria-busy]) .studio-card").first).to_contain_text("seas, bays")
    page.locator(".studio-card [data-act=add]").first.click()
    page.get_by_role("button", name="Run", exact=True).click()
    wait_for_answers(page)
    expect(page.locator("[data-side=steered] .answer-kl")).to_contain_text("nats per token")
    page.locator("[data-side=steered] .token").nth(2).hover()
    picture(page, "studio", 1000)


def test_readme_images(page: Page, live_site: LiveSite):
    page.goto(f"{live_site.url}/admin/playground/")
    page.get_by_label("Prompt", exact=True).fill("Tell me a story.")
    page.get_by_label("Seed").fill("0")
    page.get_by_label("Max tokens").fill("100")
    page.locator(".column").nth(1).get_by_label("Steering of column 2").select_option("profile:gloomy")
    page.get_by_role("button", name="Run all").click()
    wait_for_answers(page)
    steered = page.locator(".column").nth(1)
    expect(steered.locator(".answer-kl")).to_contain_text("nats per token")
    page.get_by_label("Colour tokens by").select_option("kl")
    steered.locator(".token").nth(14).hover()
    picture(page, "playground", 1000)
    logged = steered.get_by_role("link", name="View in request log").get_attribute("href")

    page.goto(f"{live_site.url}/admin/steering/steeringprofile/")
    page.get_by_role("link", name="gloomy", exact=True).click()
    page.wait_for_load_state("networkidle")
    picture(page, "profile", 1000)

    page.goto(f"{live_site.url}{logged}")
    part(page, "request", page.locator("#content"), height=1_000)


def test_console_images(page: Page, live_site: LiveSite):
    html = share(page, f"{live_site.url}/admin/steering/feature/smollm2-sae.{OCEAN}/change/")
    with blog(html) as url:
        page.set_viewport_size({"width": 760, "height": 640})
        page.goto(url)
        expect(page.frame_locator("iframe").get_by_role("heading", name="Top activations")).to_be_visible()
        page.wait_for_load_state("networkidle")
        save("embedded-feature", page.screenshot())


def test_research_images(page: Page, live_site: LiveSite):
    """In the order of docs/research.md."""
    visitor = Visitor(page)
    page.set_viewport_size({"width": 1200, "height": 900})
    page.goto(f"{live_site.url}/admin/playground/")
    page.get_by_label("Seed").fill("1")
    page.get_by_label("Max tokens").fill("60")
    page.locator(".column").nth(1).get_by_role("button", name="Remove").click()
    visitor.press("Run all")
    wait_for_answers(page)
    column = page.locator(".column").first
    column.locator(".token").nth(9).click()
    expect(column.locator(".answer-details")).to_contain_text("Strongest features")
    column.get_by_role("button", name="Explain this token").click()
    explained = column.locator(".explained")
    expect(explained.locator("tr[data-places]").first).to_be_visible(timeout=RUN_MS)
    part(page, "research-attribution", column.locator(".answer-text"), explained)

    visitor.go("Features")
    visitor.follow("Features of a text…")
    visitor.fill("Text", "The old captain sailed across the bay, and the waves carried his ship to the island.")
    visitor.press("Show features")
    part(page, "research-text", page.locator("#content"), height=800)

    visitor.go("Features")
    page.locator("#searchbar").press_sequentially("ocean")
    page.wait_for_url("**q=**")
    part(page, "research-search", page.locator("#changelist"), height=560)
    page.goto(f"{live_site.url}/admin/steering/feature/smollm2-sae.{OCEAN}/change/")
    part(page, "research-feature", page.locator("#content"), height=1_100)

    visitor.fill("Name of the new profile", "seaside")
    visitor.fill("Strength:", "1")
    visitor.press("Add to draft")
    preview = page.locator("#draft-preview")
    preview.get_by_label("Seed").fill("0")
    preview.get_by_role("button", name="Run", exact=True).click()
    wait_for_answers(page)
    expect(preview.locator(".answer-kl")).to_contain_text("nats per token")
    part(page, "research-preview", preview)
    visitor.publish("Tell of the sea.", "seaside@1")

    page.goto(f"{live_site.url}/admin/steering/vectorset/extract/")
    page.locator("[name=name]").fill("gloomier")
    page.locator("[name=model]").select_option(label="smollm2")
    page.locator("[name=pairs]").set_input_files(SMOLLM2 / "pairs" / "gloomy.json")
    page.locator("[name=layers]").fill("12")
    part(page, "research-vectors", page.locator("#content"))

    words = ",".join(json.loads((SMOLLM2 / "words.json").read_text("utf-8"))["sea"])
    live_site.server.manage("evaluate_profile", "sweep", "seaside@1", "--model", "smollm2", "--words", words, *SWEEP)
    page.goto(f"{live_site.url}/admin/steering/evaluation/")
    page.locator("#result_list tbody th a").first.click()
    part(page, "research-sweep", page.locator(".evaluation"), height=1_000)
    page.goto(f"{live_site.url}/admin/steering/steeringprofile/")
    page.get_by_role("link", name="seaside", exact=True).click()
    page.locator("[data-parts]").get_by_role("link", name="Published versions").click()
    part(page, "research-published", page.locator("#evidence"), page.locator("#versions"))
