"""A researcher, an auditor and an admin at work, as docs/roles.md has it: invited, signed in, refused the rest."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect

from tests.conftest import LiveSite
from tests.e2e.visitor import Visitor
from tests.management_api.test_roles import TABLE

pytestmark = pytest.mark.browser
LISTS = {
    "see models": "Models",
    "see SAEs": "SAEs",
    "see features": "Features",
    "see profiles": "Profiles",
    "see versions": "Published versions",
    "see evaluations": "Evaluations",
    "see vectors": "Vectors",
    "see policies": "Policies",
    "see keys": "API keys",
    "see the request log": "Request log",
    "see jobs": "Jobs",
}
PLAYERS = ("Researchers", "Admins")  # who have console.use_playground
SECRET = "hidden-plan"
MAKE_SECRET = f"""
from django.contrib.auth.models import User
from steering import services
from steering.models import SteeringProfile
root = User.objects.get(is_superuser=True)
copy = services.duplicate_profile(profile=SteeringProfile.objects.get(name="sea"), name="{SECRET}", user=root)
services.publish_profile(profile=copy, user=root)
"""
CAN_VIEW_REQUESTS = "OpenAI API | request | Can view request"


@pytest.fixture
def visitor(page: Page) -> Visitor:
    return Visitor(page)


@pytest.fixture(scope="module")
def secret(live_site: LiveSite) -> str:
    """A published profile of the superuser's that is shared with nobody."""
    live_site.server.manage("shell", "-c", MAKE_SECRET)
    return SECRET


def ask(site: LiveSite, text: str, key: str = "none", **fields: object) -> str:
    """The version of the profile that acted."""
    client = OpenAI(base_url=site.api_url, api_key=key, max_retries=0)
    messages: Any = [{"role": "user", "content": text}]
    raw = client.chat.completions.with_raw_response.create(
        model="demo",
        messages=messages,
        max_tokens=16,
        seed=5,
        extra_body=fields,
    )
    assert raw.parse().choices[0].message.content
    return raw.headers.get("x-millm-profile", "")


def enter(visitor: Visitor, name: str, role: str) -> None:
    """Invited by the superuser into the role's group. What docs/roles.md does not give is not offered, and refused."""
    everything = visitor.links()
    visitor.invite(name, group=role)
    visitor.sign_out()
    visitor.sign_in(name)
    offered = visitor.links()
    for act, title in LISTS.items():
        assert (title in offered) == TABLE[act][1][role], act
    assert ("Playground" in offered) == (role in PLAYERS)
    assert (offered == everything) == (role == "Admins")
    is_refused(visitor.page, [path for title, path in everything.items() if title not in offered])


def is_refused(page: Page, paths: list[str]) -> None:
    """By a plain page with a way back; the addresses are ones that somebody else sent."""
    site = page.url.partition("/admin/")[0]
    for path in paths:
        assert page.request.get(site + path).status == 403, path
    if paths:
        page.goto(site + paths[-1])
        expect(page.get_by_role("heading", name="403")).to_be_visible()
        expect(page.get_by_text("Your account does not have permission to do this.")).to_be_visible()
        page.get_by_role("link", name="Console").click()


def finds(visitor: Visitor, text: str) -> bool:
    """In the palette, and on the page of the search."""
    palette = visitor.page.get_by_role("dialog", name="Search")
    visitor.page.wait_for_load_state()  # the script that knows the key is there
    visitor.page.keyboard.press("Control+k")
    palette.get_by_role("combobox").fill(text)
    expect(palette.locator("#palette-found")).to_have_attribute("aria-busy", "false")
    is_found = palette.get_by_role("option", name=text).count() > 0
    visitor.page.keyboard.press("Escape")
    visitor.page.goto(f"{visitor.page.url.partition('/admin/')[0]}/admin/search/?q={text}")
    assert (visitor.content.get_by_role("link", name=text).count() > 0) == is_found
    return is_found


def test_a_researcher_steers_and_sees_nothing_of_others(visitor: Visitor, live_site: LiveSite, secret: str):
    page = visitor.page
    ask(live_site, "Tell me a story.", profile=secret)
    enter(visitor, "rita", "Researchers")
    assert not finds(visitor, secret)
    visitor.go("Profiles")
    rows = page.locator("#result_list tbody tr")
    expect(page.locator(".paginator")).to_contain_text(f"{rows.count()} steering profiles")
    expect(page.locator("#content")).not_to_contain_text(secret)
    visitor.go("Dashboard")
    expect(visitor.content).not_to_contain_text(secret)

    visitor.go("Features")
    visitor.steer_with("rain", "rita-rain")
    page.get_by_label("Strength").first.fill("2")
    visitor.publish("Wet.", "rita-rain@1")
    visitor.follow("Open in playground")
    steering = page.get_by_label("Steering of column 2")
    expect(steering).to_have_value("profile:rita-rain")
    assert secret not in steering.inner_text()
    plain, steered = visitor.play()
    assert plain != steered
    expect(page.locator(".column-state").nth(1)).to_contain_text("rita-rain@1: applied")
    expect(page.get_by_role("link", name="View in request log")).to_have_count(0)

    visitor.go("API keys")
    expect(visitor.content.get_by_role("link", name="Add API key")).to_have_count(0)


def test_an_auditor_finds_a_request_and_leaves_a_trace(visitor: Visitor, live_site: LiveSite, secret: str):
    ask(live_site, "Tell me a story of zebras and lanterns.", profile=secret)
    enter(visitor, "otto", "Auditors")
    visitor.find_request("Words", "zebras lanterns")
    for text in (f"{secret}@1", "Tell me a story of zebras and lanterns.", "steering points"):
        expect(visitor.content).to_contain_text(text)
    expect(visitor.content.get_by_role("link", name="Replay…")).to_have_count(0)
    visitor.content.get_by_role("link", name=f"{secret}@1").first.click()
    expect(visitor.content).to_contain_text("demo-sae #")
    expect(visitor.content.get_by_role("button", name="Save")).to_have_count(0)
    visitor.go("Log access")
    first = visitor.page.locator("#result_list tbody tr").first
    expect(first).to_contain_text("otto")
    assert finds(visitor, secret)


def test_an_admin_makes_a_key_and_replays_what_it_asked(visitor: Visitor, live_site: LiveSite):
    page = visitor.page
    enter(visitor, "ada", "Admins")
    visitor.go("API keys")
    visitor.follow("Add API key")
    visitor.fill("Name:", "ada's laptop")
    page.get_by_label("Default profile").select_option("sea")
    visitor.press("Save")
    key = page.get_by_label("The key").inner_text().strip()
    assert ask(live_site, "Tell me of ada's laptop.", key) == "sea@1"
    visitor.follow("I have saved it")
    expect(visitor.content).not_to_contain_text(key)

    visitor.find_request("API key", "ada's laptop")
    request = page.locator("#content > h1").inner_text()
    expect(visitor.content).to_contain_text("sea@1")
    visitor.replay()
    expect(visitor.content).to_contain_text("Same text.")
    visitor.follow(request)
    visitor.replay("none")
    expect(visitor.content).to_contain_text("Different text: the steering differs.")
    assert page.locator(".replayed del, .replayed ins").count() > 0


def test_who_may_see_the_log_alone_sees_no_texts(visitor: Visitor, live_site: LiveSite):
    ask(live_site, "Tell me a story of quiet umbrellas.", user="no-texts")
    visitor.invite("carl", permission=CAN_VIEW_REQUESTS)
    visitor.sign_out()
    visitor.sign_in("carl")
    assert list(visitor.links()) == ["Dashboard", "Request log"]
    visitor.go("Request log")
    expect(visitor.content.get_by_label("Words")).to_have_count(0)
    visitor.page.locator("#result_list tbody th a").first.click()
    expect(visitor.content).to_contain_text("/v1/chat/completions")
    expect(visitor.content).to_contain_text("Visible to users who can view request texts.")
    for hidden in ("umbrellas", "Token by token", "curl", "Replay…"):
        expect(visitor.content).not_to_contain_text(hidden)
