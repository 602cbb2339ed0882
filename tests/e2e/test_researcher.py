"""A researcher's whole way, from the admin alone: from an SAE's files to a key's default, and back again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect
from safetensors.numpy import load_file, save_file

from steering.demo.install import ARTIFACTS
from tests.conftest import LiveSite, served_site

pytestmark = pytest.mark.browser
NUM_FEATURES, RAIN = 768, 710
LABEL = "drizzle over meadows"
STATE = re.compile(r"succeeded|failed")
JOB_MS = 240_000


@pytest.fixture
def live_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    with served_site(tmp_path_factory.mktemp("walk")) as site:
        yield site


@pytest.fixture
def sae_folder(tmp_path: Path) -> Path:
    """The demo SAE's first features: an SAE that the server does not have yet."""
    folder = tmp_path / "small-sae"
    folder.mkdir()
    config = json.loads((ARTIFACTS / "sae" / "cfg.json").read_text("utf-8")) | {"d_sae": NUM_FEATURES}
    (folder / "cfg.json").write_text(json.dumps(config), "utf-8")
    tensors = load_file(ARTIFACTS / "sae" / "sae_weights.safetensors")
    sliced = {
        "W_enc": tensors["W_enc"][:, :NUM_FEATURES].copy(),
        "b_enc": tensors["b_enc"][:NUM_FEATURES].copy(),
        "W_dec": tensors["W_dec"][:NUM_FEATURES].copy(),
        "b_dec": tensors["b_dec"],
    }
    save_file(sliced, folder / "sae_weights.safetensors")
    return folder


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.jsonl"
    rows = [{"index": RAIN, "label": LABEL, "source": "rita"}, {"index": 1, "label": "gardens", "source": "rita"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


class Walk:
    """What is clicked, in the words of the pages."""

    def __init__(self, page: Page, site: LiveSite) -> None:
        self.page = page
        self.site = site

    def open(self, path: str) -> None:
        self.page.goto(f"{self.site.url}/admin/{path}")

    def succeed(self) -> None:
        """On a job's page: it shows by itself when the job has ended."""
        expect(self.page.locator("#content")).to_contain_text(STATE, timeout=JOB_MS)
        expect(self.page.locator("#content")).to_contain_text("succeeded")

    def message(self, text: str) -> None:
        expect(self.page.locator(".messagelist")).to_contain_text(text)

    def attach(self, name: str, folder: Path, labels: Path) -> None:
        self.open("steering/sae/add/")
        self.page.select_option("[name=model]", label="demo")
        self.page.fill("[name=source]", str(folder))
        self.page.fill("[name=name]", name)
        self.page.uncheck("[name=measures]")  # on fewer tokens, below
        self.page.get_by_role("button", name="Preview").first.click()
        expect(self.page.locator("#preview")).to_contain_text(f"{NUM_FEATURES} features")
        self.page.get_by_role("button", name="Add", exact=True).click()
        self.message(name)
        self.open("steering/sae/")
        self.page.click(f"#result_list >> text='{name}'")
        self.page.click("text=Import labels…")
        self.page.set_input_files("[name=file]", labels)
        self.page.get_by_role("button", name="Import").click()
        self.message("2 ")
        self.page.get_by_role("link", name="Measure and label").click()
        self.page.fill("#check [name=tokens]", "2000")
        self.page.click("#check button")
        self.succeed()

    def find(self, label: str) -> None:
        self.open("steering/feature/")
        self.page.locator("#searchbar").press_sequentially(label.split()[0])
        row = self.page.locator("#result_list tbody tr").first
        expect(row).to_contain_text(label)
        self.page.wait_for_url("**q=**")
        row.locator("th a").click()
        expect(self.page.locator("#content")).to_contain_text(label)

    def publish(self, note: str, label: str) -> None:
        self.page.click("text=Save and publish")
        self.page.fill("textarea[name=note], input[name=note]", note)
        self.page.get_by_role("button", name="Publish").click()
        self.message(label)

    def evaluate(self, label: str, what: str, **fields: str) -> None:
        """Ends on the report."""
        self.open("steering/profileversion/?q=walked")
        self.page.click(f"#result_list >> text='{label}'")
        self.page.click(f"text={what}…")
        self.page.fill("[name=prompts]", "Tell me a story.\nTell me about a house.")
        self.page.fill("[name=max_tokens]", "16")
        for name, value in fields.items():
            self.page.fill(f"[name={name}]", value)
        if (asks := self.page.locator("[name=off_target]")).count():
            asks.uncheck()  # 512 texts to score
        self.page.get_by_role("button", name=what).click()
        self.succeed()
        self.page.get_by_role("link", name="Open the report").click()

    def make_key(self, name: str, default: str) -> str:
        self.open("openai_api/apikey/add/")
        self.page.fill("[name=name]", name)
        self.page.click(".field-owner .select2-selection")
        self.page.locator(".select2-search__field").press_sequentially(self.site.admin_user)
        self.page.locator(".select2-results__option", has_text=self.site.admin_user).first.click()
        self.page.select_option("[name=default_profile]", value=default)
        self.page.get_by_role("button", name="Save", exact=True).click()
        return self.page.locator("#plain-key").inner_text().strip()

    def look_up(self, request_id: str) -> None:
        self.open("openai_api/requestlog/")
        self.page.fill("#log-text", request_id)
        self.page.get_by_role("button", name="Search", exact=True).click()
        self.page.click("#result_list tbody tr:first-child a")


def ask(site: LiveSite, key: str) -> tuple[str, str]:
    """The profile's version that acted without being named, and the request's id."""
    client = OpenAI(base_url=site.api_url, api_key=key, max_retries=0)
    raw = client.chat.completions.with_raw_response.create(
        model="demo", messages=[{"role": "user", "content": "Tell me a story."}], temperature=0, max_tokens=24
    )
    receipt: Any = raw.parse().to_dict()["millm"]
    assert receipt["steering"]["applied"] == receipt["steering"]["expected"] > 0
    assert receipt["profile"] == raw.headers["x-millm-profile"]
    return raw.headers["x-millm-profile"], raw.headers["x-request-id"]


def test_from_files_to_a_key_s_default_and_back(page: Page, live_site: LiveSite, sae_folder: Path, labels: Path):
    walk = Walk(page, live_site)
    walk.attach("small-sae", sae_folder, labels)
    walk.find(LABEL)
    page.fill("#steer [name=new_name]", "walked")
    page.click("#steer button")
    walk.message('to draft "walked"')

    walk.open("steering/steeringprofile/")
    page.click("#result_list >> text='walked'")
    page.locator("input[name$=-strength]:visible").first.fill("0.3")
    walk.publish("A first guess.", "walked@1")

    walk.evaluate("walked@1", "Calibrate", target="0.2")
    expect(page.locator(".evaluation")).to_contain_text("the strength")
    page.get_by_role("button", name="Apply to draft").click()
    walk.message("Applied to draft")
    walk.publish("As calibrated.", "walked@2")

    walk.evaluate("walked@2", "Sweep", factors="0.5, 1", words="rain, cold", random_directions="1")
    report = page.locator(".evaluation")
    expect(report.locator("svg").first).to_be_visible()
    expect(report.locator("table").first).to_contain_text("0.5")
    expect(report).to_contain_text(LABEL)

    key = walk.make_key("walker", "walked")
    version, request_id = ask(live_site, key)
    assert version == "walked@2"
    walk.look_up(request_id)
    expect(page.locator("#content")).to_contain_text("walked@2")
    expect(page.locator("#content")).to_contain_text("walker")

    walk.open("steering/steeringprofile/")
    page.click("#result_list >> text='walked'")
    page.locator("[data-parts]").get_by_role("link", name="Published versions").click()
    page.locator("#versions tr", has_text="walked@1").get_by_text("Roll back…").click()
    page.fill("textarea[name=note], input[name=note]", "The guess was better.")
    page.get_by_role("button", name="Roll back").click()
    walk.message("Rolled back to walked@1")
    version, _ = ask(live_site, key)
    assert version == "walked@3"
