"""An empty install, and somebody who has never seen it: the dashboard leads to a model, a key, an answer, a profile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import LiveSite, bare_site
from tests.e2e.visitor import Visitor

pytestmark = pytest.mark.browser
ASK = """
from openai import OpenAI
answer = OpenAI().chat.completions.with_raw_response.create(
    model="demo", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=24,
    extra_body={"profile": "wet"},
)
print(answer.headers["x-millm-profile"], answer.parse().choices[0].message.content)
"""


@pytest.fixture
def live_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    with bare_site(tmp_path_factory.mktemp("bare-site"), MILLM_AUTH="required") as site:
        yield site


def step(page: Page, title: str) -> Locator:
    return page.locator(".steps li", has=page.get_by_role("heading", name=title))


def shell(script: str) -> str:
    done = subprocess.run(["/bin/bash", "-ec", script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_from_an_empty_install_to_a_profile_of_one_s_own(page: Page, live_site: LiveSite):
    visitor = Visitor(page)
    titles = ("Add a model", "Create an API key", "Send a request", "Publish a profile")
    for title in titles:
        expect(step(page, title)).to_contain_text("to do")

    step(page, "Add a model").get_by_role("button", name="Install the demo").click()
    visitor.is_told("Installed the demo: model demo, SAE demo-sae, profiles joyful@1, gloomy@1, cats@1, sea@1.")
    expect(step(page, "Add a model")).to_contain_text("done")

    step(page, "Create an API key").get_by_role("link", name="Create API key").click()
    visitor.fill("Name:", "laptop")
    visitor.press("Save")
    exports = page.get_by_label("Environment variables").inner_text()
    key = page.get_by_label("The key").inner_text().strip()
    visitor.follow("I have saved it")

    visitor.go("Dashboard")
    expect(step(page, "Create an API key")).to_contain_text("done")
    command = step(page, "Send a request").locator(".command").inner_text()
    told = shell(f"export MILLM_API_KEY={key}\n{command}")
    assert json.loads(told)["choices"][0]["message"]["content"]
    assert '"profile":"gloomy@1"' in told

    step(page, "Publish a profile").get_by_role("link", name="Open studio").click()
    visitor.go("Features")
    visitor.steer_with("rain", "wet")
    visitor.publish("A first one.", "wet@1")
    assert shell(f"{exports}\n{sys.executable} -c '{ASK}'").startswith("wet@1 ")

    visitor.go("Dashboard")
    expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
    expect(page.locator(".steps")).to_have_count(0)
    visitor.find_request("Profile", "wet")
    expect(visitor.content).to_contain_text("laptop")
    expect(visitor.content).to_contain_text("Tell me a story.")
