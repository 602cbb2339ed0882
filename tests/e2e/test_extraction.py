"""From pairs of prompts to a steered story: a vector is found by a job, published in a profile, and acts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect

from tests.conftest import LiveSite

PAIRS = [
    {"positive": f"Tell me a story about {who} in the rain.", "negative": f"Tell me a story about {who} in the sun."}
    for who in ("a cat", "a dog", "a fox", "an owl")
]
WAIT = """
import time
from jobs.models import Job
deadline = time.monotonic() + 240
mine = {"kind": "steering.extract", "params__name": "rain"}
while not (job := Job.objects.get(**mine)).has_ended and time.monotonic() < deadline:
    time.sleep(0.5)
assert job.state == "succeeded", (job.state, job.error)
print(job.result)
"""
PUBLISH = """
from inference.models import LanguageModel
from steering import services
from steering.models import FeatureEdit, PlainVector
vector = PlainVector.objects.get(vector_set__name="rain", layer=1)
assert vector.reference_norm > 0
profile = services.create_profile(name="rain", model=LanguageModel.objects.get(name="demo"))
FeatureEdit.objects.create(profile=profile, plain_vector=vector, strength=0.5, unit="resid_norm")
print(services.publish_profile(profile=profile))
"""


@pytest.mark.live
def test_vector_from_prompts_steers(live_site: LiveSite, client: OpenAI, tmp_path: Path):
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    arguments = ("rain", str(tmp_path / "pairs.json"), "--model", "demo", "--layer", "1", "--method", "pca")
    assert "Queued job" in live_site.server.manage("extract_vectors", *arguments)
    assert "layers.1.resid_post" in live_site.server.manage("shell", "-c", WAIT)
    assert "rain@1" in live_site.server.manage("shell", "-c", PUBLISH)

    def story(profile: str | None) -> tuple[str | None, str | None]:
        raw = client.chat.completions.with_raw_response.create(
            model="demo", messages=[{"role": "user", "content": "Tell me a story."}], temperature=0, max_tokens=40,
            extra_body={"profile": profile},
        )  # fmt: skip
        return raw.parse().choices[0].message.content, raw.headers.get("x-millm-profile")

    text, applied = story("rain")
    assert applied == "rain@1"
    assert text != story(None)[0]


@pytest.mark.browser
def test_the_list_of_vectors_shows_what_a_job_found_by_itself(page: Page, live_site: LiveSite, tmp_path: Path):
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS[:2]))
    page.goto(f"{live_site.url}/admin/steering/vectorset/extract/")
    page.locator("[name=name]").fill("rain-by-page")
    page.locator("[name=model]").select_option(label="demo")
    page.locator("[name=pairs]").set_input_files(tmp_path / "pairs.json")
    page.locator("[name=layers]").fill("99")
    page.get_by_role("button", name="Extract vectors").click()
    wrong = page.locator(".form-row", has=page.locator("[name=layers]"))
    expect(wrong).to_contain_text("got layer 99")
    page.locator("[name=pairs]").set_input_files(tmp_path / "pairs.json")
    page.locator("[name=layers]").fill("1")
    page.get_by_role("button", name="Extract vectors").click()
    expect(page.get_by_role("link", name="rain-by-page", exact=True)).to_be_visible(timeout=240_000)
    expect(page.locator("[data-extraction]")).to_have_count(0)
