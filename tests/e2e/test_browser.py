"""The path of a new user: edit and publish a profile in a real browser, see the change, find the request."""

from __future__ import annotations

import re

import pytest
from openai import OpenAI
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def ask(client: OpenAI, **fields) -> tuple[str, str, str]:
    """Text, profile version and request id of a greedy answer steered by ``cats``."""
    raw = client.chat.completions.with_raw_response.create(
        model="demo",
        messages=[{"role": "user", "content": "Tell me a story."}],
        temperature=0,
        max_tokens=40,
        extra_body={"profile": "cats"},
    )
    text = raw.parse().choices[0].message.content or ""
    return text, raw.headers["x-millm-profile"], raw.headers["x-request-id"]


def test_edit_publish_see_the_change_and_find_the_request(page, client, live_site):
    before, version, _ = ask(client)
    assert version == "cats@1"

    page.get_by_role("link", name="Profiles", exact=True).click()
    page.click("#result_list >> text=cats")
    strengths = page.locator("input[name$=-strength]:visible")
    expect(strengths.first).to_be_visible()
    for i in range(strengths.count()):
        strengths.nth(i).fill("-0.9")
    page.click("text=Save and publish")
    page.fill("textarea[name=note], input[name=note]", "Fewer cats, to see what happens.")
    page.click("main [type=submit], #content [type=submit]")
    expect(page.locator(".messagelist")).to_contain_text("cats@2")

    after, version, request_id = ask(client)
    assert version == "cats@2"
    assert after != before

    page.goto(f"{live_site.url}/admin/")
    page.locator("#console-nav").get_by_role("link", name="Request log").click()
    page.get_by_label("Words").fill(request_id)
    page.get_by_role("button", name="Search", exact=True).click()
    page.click("#result_list tbody tr:first-child a")
    content = page.locator("#content")
    expect(content).to_contain_text("cats@2")
    expect(content).to_contain_text(after[:20])
    assert re.search(r"\d+ ms|\d+(\.\d+)? s", content.inner_text())


def test_nothing_on_the_main_pages_is_broken(page, live_site):
    """Each page answers, and loads nothing that is not there or elsewhere."""
    failed: list[str] = []

    def note(response) -> None:
        if response.status >= 400 or not response.url.startswith((live_site.url, "data:")):
            failed.append(f"{response.status} {response.url}")

    page.on("response", note)
    paths = ["inference/languagemodel", "steering/sae", "steering/feature", "steering/steeringprofile"]
    paths += ["steering/profileversion", "openai_api/apikey", "openai_api/requestlog", "auth/group"]
    for path in paths:
        page.goto(f"{live_site.url}/admin/{path}/")
        expect(page.locator("#content h1")).to_be_visible()
    page.goto(f"{live_site.url}/docs")
    expect(page.get_by_text("/v1/chat/completions").first).to_be_visible()
    assert failed == []
