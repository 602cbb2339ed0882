"""The first hour of a researcher: the real model, the console alone, from a topic to a profile whose effect shows."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect

from tests.conftest import LiveSite
from tests.e2e.visitor import RUN_MS, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.slow]
WORDS = frozenset(json.loads(Path("steering/demo/smollm2/words.json").read_text("utf-8"))["sea"])
LABEL = "seas, bays, gulfs and ocean water"
TEXT = "The old captain sailed across the bay, and the waves carried his ship to the open sea."
ENDED = re.compile("tokens, (finished|stopped at the token limit)")
SEEDS = range(8)


@pytest.fixture
def live_site(real_site: LiveSite) -> LiveSite:
    return real_site


def num_words(text: str) -> int:
    return sum(word in WORDS for word in re.findall(r"[a-z]+", text.lower()))


def num_answers_of_the_sea(site: LiveSite, profile: str | None) -> int:
    """The number of seeds whose answers have two or more words of the sea."""
    client = OpenAI(base_url=site.api_url, api_key="none", max_retries=0)

    def answer(seed: int) -> str:
        done = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=50,
            seed=seed,
            extra_body={"profile": profile},
        )
        return done.choices[0].message.content or ""

    with ThreadPoolExecutor(len(SEEDS)) as pool:
        return sum(num_words(text) >= 2 for text in pool.map(answer, SEEDS))


def largest_activation(site: LiveSite, index: int) -> float:
    """What the API reads on the text, without its first token, an attention sink."""
    client = OpenAI(base_url=site.api_url, api_key="none", max_retries=0)
    body = {"model": "smollm2", "input": TEXT, "features": [index]}
    (read,) = client.post("/features/activations", body=body, cast_to=dict)["data"]
    return max(one["value"] for token in read["tokens"][1:] for one in token["features"])


def test_from_a_topic_to_a_published_profile_whose_effect_shows(page: Page, live_site: LiveSite):
    visitor = Visitor(page)
    visitor.go("Features")
    visitor.follow("Features of a text…")
    visitor.fill("Text", TEXT)
    visitor.press("Show features")
    firing = page.locator("#text-features")
    expect(firing).to_contain_text("captain")
    expect(firing.locator("tbody tr")).to_have_count(20)
    expect(firing.get_by_role("link", name=re.compile("sea|ship")).first).to_be_visible()
    strongest = firing.locator("tbody tr").first
    index = int(strongest.get_by_role("link").inner_text().split()[0].removeprefix("#"))
    shown = float(strongest.locator("td").nth(1).inner_text())
    assert shown == pytest.approx(largest_activation(live_site, index), rel=0.02)

    visitor.go("Features")
    page.locator("#searchbar").wait_for()
    page.wait_for_load_state()
    page.locator("#searchbar").press_sequentially("ocean")
    page.wait_for_url("**q=**")
    visitor.content.get_by_role("link", name=LABEL).click()

    visitor.fill("Text", TEXT)
    visitor.press("Show activations")
    tested = page.locator("#test")
    expect(tested.locator(".steering-example")).to_contain_text("captain")
    expect(tested).not_to_contain_text("not active")

    visitor.fill("Name of the new profile", "seaside")
    visitor.fill("Strength:", "1")
    visitor.press("Add to draft")
    visitor.is_told('to draft "seaside"')

    preview = page.locator("#draft-preview")
    preview.get_by_label("Max tokens").fill("40")
    preview.get_by_role("button", name="Run", exact=True).click()
    for side in ("unsteered", "draft"):
        state = preview.locator(f"[data-side={side}] .column-state")
        expect(state).to_contain_text(ENDED, timeout=RUN_MS)
    plain, steered = (
        preview.locator(f"[data-side={side}] .answer-text").inner_text() for side in ("unsteered", "draft")
    )
    assert plain != steered

    visitor.publish("Tell of the sea.", "seaside@1")
    visitor.follow("Open in playground")
    assert len(set(visitor.play())) == 2

    assert num_answers_of_the_sea(live_site, "seaside") >= 5
    assert num_answers_of_the_sea(live_site, None) <= 2
