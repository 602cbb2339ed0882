"""Public pages in a real browser: shared, embedded in another site, read without a login, removed."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from millm_site.env import DEMO_DIR
from tests.conftest import LiveSite
from tests.e2e.test_console import AXE, RUN_AXE

pytestmark = pytest.mark.browser
ARTICLE = (
    '<!doctype html><html lang="en"><title>A blog</title><body style="font: 16px sans-serif; max-width: 660px; '
    'margin: 2em auto"><h1>Notes on features</h1><p>A feature of the model that I found today:</p>'
    "{embed}</body></html>"
)


def share(page: Page, url: str) -> str:
    """Share a feature or a vector on its page; return the HTML that embeds it."""
    page.goto(url)
    page.locator("summary").get_by_text("Share", exact=True).click()
    page.get_by_role("button", name="Create link").click()
    expect(page.locator(".messagelist")).to_contain_text("The page is public.")
    page.locator("summary").get_by_text("Share").click()
    return page.get_by_label("HTML to embed it").input_value()


@contextmanager
def blog(embed: str) -> Iterator[str]:
    """Serve a page of another site with the frame. Its origin differs by the port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = ARTICLE.format(embed=embed).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/blog"
        server.shutdown()


@pytest.fixture
def feature_page(live_site: LiveSite) -> str:
    """The URL of the page of a feature with examples."""
    found = live_site.server.manage("shell", "-c", FIND).split()[-1]
    return f"{live_site.url}/admin/steering/feature/{found}/change/"


@pytest.fixture
def measured_vector(live_site: LiveSite) -> Iterator[str]:
    """The URL of the page of a vector with a measured effect, without any SAE."""
    width = json.loads((DEMO_DIR / "model" / "config.json").read_text())["hidden_size"]
    made = live_site.server.manage("shell", "-c", f"WIDTH = {width}{MAKE_VECTOR}").split()[-1]
    yield f"{live_site.url}/admin/steering/vectorset/{made}/change/"
    live_site.server.manage("shell", "-c", f"{DELETE_VECTOR}.filter(pk={made!r}).delete()")


MAKE_VECTOR = """
from django.utils import timezone
from inference.interventions import Site
from inference.models import LanguageModel
from steering.effects.recipe import EffectResult, Sample
from steering.effects.store import store_vector_effect
from steering.vectors.services import NewVector, save_vectors

model = LanguageModel.objects.get(name="demo")
values = tuple(0.1 * (-1) ** number for number in range(WIDTH))
found = save_vectors(name="shared-vector", model=model, vectors=[NewVector(Site(1), values)], origin="a test")
result = EffectResult(
    index=None, strength=2.0, kl=0.6, push=0.3, is_capped=False, fluency=1.1, curve=((1.0, 0.2), (2.0, 0.6)),
    samples=(Sample("Tell me a story.", "Once there was a cat.", "Once there was a storm."),),
)
store_vector_effect(
    vector=found.vectors.get(), result=result, output_tokens=[(" storm", 0.2)],
    recipe="a test", measured_at=timezone.now(),
)
print(found.pk)
"""
DELETE_VECTOR = "from steering.models import VectorSet; VectorSet.objects"
FIND = """
from steering.models import Feature

feature = Feature.objects.filter(sae__name="demo-sae").search("cat").first()
if not feature.examples:
    feature.examples = [
        {"tokens": ["Once", " there", " was", " a", " cat", " in", " the", " garden", "."],
         "values": [0, 0, 0, 0.25, 4.5, 1, 0, 0, 0]},
        {"tokens": ["The", " kitten", " saw", " a", " bird", "."], "values": [0, 3.5, 0.5, 0, 0, 0]},
    ]
    feature.save(update_fields=["examples"])
print(feature.pk)
"""


@pytest.mark.parametrize(
    ("owner", "headings", "shown"),
    [
        ("feature_page", ("Statistics", "Logit lens", "Top activations"), ".steering-example mark"),
        ("measured_vector", ("Statistics", "Logit lens", "Effect on the output"), ".steering-sample"),
    ],
)
def test_shared_embedded_and_removed(
    page: Page, browser: Browser, request: pytest.FixtureRequest, owner: str, headings: tuple[str, ...], shown: str
):
    owners_page: str = request.getfixturevalue(owner)
    html = share(page, owners_page)
    link = page.get_by_label("Link", exact=True).input_value()
    assert f'src="{link}"' in html
    stranger = browser.new_page()
    complaints: list[str] = []
    stranger.on("console", lambda message: complaints.append(message.text))
    with blog(html) as url:
        stranger.goto(url)
        frame = stranger.frame_locator("iframe")
        for heading in headings:
            expect(frame.get_by_role("heading", name=heading)).to_be_visible()
        expect(frame.locator(shown).first).to_be_visible()
        assert stranger.frames[1].evaluate("document.documentElement.scrollWidth") <= 640
        assert [text for text in complaints if "favicon" not in text] == []
        if folder := os.environ.get("MILLM_SCREENSHOTS"):
            stranger.screenshot(path=Path(folder) / f"embedded-{owner}.png")
    for scheme in ("light", "dark"):
        for width in (1280, 390):
            stranger.goto(link)
            stranger.set_viewport_size({"width": width, "height": 900})
            stranger.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            if folder:
                stranger.screenshot(path=Path(folder) / f"{owner}-{width}-{scheme}.png", full_page=True)
            assert stranger.evaluate("document.documentElement.scrollWidth") <= width
            stranger.evaluate(AXE)
            found = [(one["id"], node["html"][:200]) for one in stranger.evaluate(RUN_AXE) for node in one["nodes"]]
            assert found == []
    with stranger.expect_popup() as opened:
        stranger.get_by_role("link", name="Open in miLLM").click()
    expect(opened.value).to_have_url(re.compile("/admin/login/"))

    page.goto(owners_page)
    page.locator("summary").get_by_text("Share").click()
    page.get_by_role("button", name="Stop sharing").click()
    expect(page.locator(".messagelist")).to_contain_text("The public page was removed.")
    answer = stranger.goto(link)
    assert answer is not None
    assert answer.status == 404
    stranger.close()
