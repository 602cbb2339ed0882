"""A model of the Hub from its name to its answer, by the pages alone: preview, register, download and load, try it."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from steering.demo.install import ARTIFACTS
from tests.conftest import LiveSite, bare_site
from tests.e2e.visitor import RUN_MS, Visitor
from tests.steering.fake_hub import FakeHub, running

pytestmark = pytest.mark.browser

ENDED = re.compile(r"Finished|Stopped at the token limit")  # the answer is sampled


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    """It has a model whose largest file comes only to its half until the gate is opened."""
    root = tmp_path / "hub"
    shutil.copytree(ARTIFACTS / "model", root)
    (root / "README.md").write_text("---\nlicense: mit\n---\nTells stories.")
    (root / "notes.txt").write_text("All about it.\n" * 2_000_000)
    with running(FakeHub(root, gate=threading.Event())) as hub:
        yield hub


@pytest.fixture
def live_site(tmp_path_factory: pytest.TempPathFactory, hub: FakeHub) -> Iterator[LiveSite]:
    home = tmp_path_factory.mktemp("hub-site")
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home / "hf")}
    with bare_site(home, **variables) as site:
        yield site


def test_it_is_previewed_registered_downloaded_loaded_and_tried(page: Page, live_site: LiveSite, hub: FakeHub):
    assert hub.gate is not None
    visitor = Visitor(page)
    visitor.go("Models")
    visitor.follow("Preview a model")
    visitor.fill("Source", "org/saes")
    visitor.press("Preview")
    expect(page.locator("#preview")).to_contain_text("LlamaForCausalLM")
    assert hub.fetched() == [("config.json", "")]
    visitor.follow("Add model…")
    visitor.fill("Name:", "teller")
    visitor.press("Save")
    visitor.follow("teller")

    standing = page.get_by_label("Model status")
    bar = standing.get_by_role("progressbar", name="Progress of the load")
    standing.get_by_role("button", name="Load", exact=True).click()
    expect(standing).to_contain_text(re.compile(r"Downloaded [\d.]+\sMB of [\d.]+\sMB"), timeout=RUN_MS)
    expect(bar).to_have_attribute("value", re.compile("^[1-9][0-9]?$"))
    hub.gate.set()
    expect(standing).to_contain_text("Ready since", timeout=RUN_MS)
    expect(bar).to_have_count(0)
    expect(standing.get_by_role("button", name="Unload", exact=True)).to_be_visible()

    attempt = page.get_by_role("region", name="Try it")
    attempt.get_by_label("Prompt").fill("Tell me a story.")
    attempt.get_by_role("button", name="Run").click()
    expect(attempt.get_by_role("status")).to_contain_text(ENDED, timeout=RUN_MS)
    assert len(attempt.get_by_label("Answer").inner_text()) > 20
    standing.get_by_role("button", name="Unload", exact=True).click()
    expect(standing).to_contain_text("The next request loads it")
