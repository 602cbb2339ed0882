"""The pictures of the README. Written by `make readme-images`, so that they can be taken again when pages change."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import FloatRect, Page, expect

from tests.conftest import LiveSite

FOLDER = os.environ.get("README_IMAGES", "")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(not FOLDER, reason="README_IMAGES names no folder")]
DONE = re.compile(r"tokens, finished")


def picture(page: Page, name: str, height: int = 900) -> None:
    page.set_viewport_size({"width": 1400, "height": height})
    page.screenshot(path=Path(FOLDER) / f"{name}.png")


def test_readme_images(page: Page, live_site: LiveSite):
    page.emulate_media(color_scheme="light")
    page.goto(f"{live_site.url}/admin/playground/")
    page.get_by_label("Prompt", exact=True).fill("Tell me a story.")
    page.get_by_label("Seed").fill("9")
    page.get_by_label("Max tokens").fill("120")
    page.locator(".column").nth(1).get_by_label("Steering of column 2").select_option("profile:gloomy")
    page.get_by_role("button", name="Run all").click()
    for state in page.locator(".column-state").all():
        expect(state).to_contain_text(DONE, timeout=90_000)
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
    page.wait_for_load_state("networkidle")
    first, last = (fieldset(page, name) for name in ("Tokens", "Profile"))
    width, bottom = first["width"], last["y"] + last["height"]
    clip = {"x": first["x"], "y": first["y"], "width": width, "height": bottom - first["y"]}
    page.screenshot(path=Path(FOLDER) / "request.png", full_page=True, clip=clip)


def fieldset(page: Page, name: str) -> FloatRect:
    """Return the place of the fieldset with that heading on the page."""
    box = page.locator("fieldset", has=page.get_by_role("heading", name=name, exact=True)).first.bounding_box()
    assert box is not None
    return box
