"""The playground in a real browser: columns side by side, tokens looked at, requests copied, drafts kept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.conftest import LiveSite
from tests.e2e.test_console import AXE, RUN_AXE

pytestmark = pytest.mark.browser
ENDED = re.compile(r"tokens, (finished|stopped at the token limit)")

NASTY = (
    '<script>document.title="owned"</script><svg onload="document.title=1">'
    " \u202egnirts \u2066x \U0001f600 'q' \"d\" \\ "
)


@pytest.fixture
def playground(page: Page, live_site: LiveSite) -> Iterator[Page]:
    """Its policy's complaints and the browser's errors fail the test; a refused request is one of the latter."""
    complaints: list[str] = []

    def note(message: object) -> None:
        if getattr(message, "type", "") == "error" and "status of" not in getattr(message, "text", ""):
            complaints.append(getattr(message, "text", ""))

    page.on("console", note)
    page.goto(f"{live_site.url}/admin/playground/")
    yield page
    assert [text for text in complaints if "ERR_FAILED" not in text] == []


def column(page: Page, place: int) -> Locator:
    return page.locator(".column").nth(place)


def answer(page: Page, place: int) -> str:
    return column(page, place).locator(".answer-text").inner_text()


def run_all(page: Page, num_tokens: int = 24) -> None:
    page.get_by_label("Max tokens").fill(str(num_tokens))
    page.get_by_role("button", name="Run all").click()
    wait_for_end(page)


def wait_for_end(page: Page) -> None:
    for state in page.locator(".column-state").all():
        expect(state).to_contain_text(ENDED, timeout=90_000)


def test_columns_with_one_seed_stream_side_by_side(playground: Page):
    playground.get_by_role("button", name="Add column").click()
    column(playground, 2).get_by_label("Steering of column 3").select_option("")
    column(playground, 1).get_by_label("Steering of column 2").select_option("profile:cats@1")
    run_all(playground)
    assert answer(playground, 0) == answer(playground, 2) != answer(playground, 1)
    expect(column(playground, 1).locator(".column-state")).to_contain_text(
        re.compile(r"cats@1: applied at all \d+ steering points")
    )
    expect(column(playground, 1).locator(".answer-kl")).to_contain_text("nats per token")
    expect(column(playground, 0).locator(".answer-kl")).to_be_empty()


def test_each_token_shows_what_it_is(playground: Page):
    run_all(playground)
    steered = column(playground, 1)
    expect(steered.locator(".answer-kl")).to_contain_text("nats per token")
    steered.locator(".token").nth(3).hover()
    details = steered.locator(".answer-details")
    expect(details).to_contain_text("Log-probability")
    expect(details).to_contain_text("KL(steered‖base)")
    expect(details).to_contain_text(re.compile(r"Strongest features.*#\d+", re.DOTALL))
    shown = details.inner_text()
    steered.locator(".token").nth(3).focus()
    playground.keyboard.press("ArrowRight")
    expect(steered.locator(".token").nth(4)).to_be_focused()
    assert details.inner_text() != shown


def test_a_feature_of_a_token_leads_to_its_page_and_colours_the_answers(playground: Page):
    run_all(playground)
    plain = column(playground, 0)
    plain.locator(".token").nth(3).click()
    details = plain.locator(".answer-details")
    link = details.get_by_role("link", name=re.compile(r"^#\d+ \S")).first  # with its label, which comes later
    name = link.inner_text()
    plain.locator(".token").nth(5).hover()  # on the way to what the held token says
    expect(link).to_have_text(name)
    with playground.expect_response("**/admin/playground/inspect"):
        details.get_by_role("button", name=f"Colour by {name}", exact=True).click()
    expect(playground.get_by_label("Feature (label or index)")).to_have_value(name)
    expect(playground.locator(".legend-words")).to_have_text("Feature activation")
    expect(playground.locator(".legend-most")).not_to_have_text("0.00")
    with playground.expect_popup() as opened:
        link.click()
    expect(opened.value.locator("#content h1")).to_contain_text(name.split()[0])


def choose_feature(page: Page, label: str) -> None:
    page.get_by_label("Feature (label or index)").fill(label)
    page.locator(".colours .found button", has_text=label).first.click()


def test_a_feature_that_is_silent_is_said_to_be(playground: Page):
    run_all(playground)
    playground.get_by_label("Colour tokens by").select_option("feature")
    choose_feature(playground, "goat stories: bleated")  # the rarest of the demo's features
    expect(playground.locator(".legend-words")).to_have_text("The feature is not active on these tokens.")


def test_values_of_a_feature_that_come_late_do_not_replace_those_of_a_newer_choice(playground: Page):
    run_all(playground)
    held: list[Route] = []

    def hold_first_two(route: Route) -> None:
        held.append(route) if len(held) < 2 else route.continue_()

    playground.route("**/admin/playground/inspect", hold_first_two)
    playground.get_by_label("Colour tokens by").select_option("feature")
    choose_feature(playground, "kitten")  # column 2 writes about one
    for _ in range(100):
        if len(held) == 2:  # one of each column
            break
        playground.wait_for_timeout(50)
    assert len(held) == 2
    choose_feature(playground, "goat stories: bleated")
    legend = playground.locator(".legend-words")
    expect(legend).to_have_text("The feature is not active on these tokens.")
    for route in held:
        with playground.expect_response("**/admin/playground/inspect"):
            route.continue_()
    playground.wait_for_timeout(300)
    expect(legend).to_have_text("The feature is not active on these tokens.")


def test_what_was_copied_goes_when_something_else_is_chosen(playground: Page):
    run_all(playground, 4)
    steered = column(playground, 1)
    copied = steered.get_by_label("Copied request of column 2")
    steered.get_by_role("button", name="Copy as curl").click()
    expect(copied).to_be_visible()
    expect(steered.locator(".column-state")).to_contain_text(ENDED)  # it still says how the answer ended
    steered.get_by_label("Strength of column 2").fill("0.5")
    expect(copied).to_be_hidden()
    wait_for_end(playground)
    steered.get_by_role("button", name="Copy as curl").click()
    expect(copied).to_have_value(re.compile('"steering_intensity":0.5'))
    playground.get_by_label("Seed").fill("2")
    expect(copied).to_be_hidden()


def test_tokens_are_coloured_by_a_feature_that_one_searches(playground: Page):
    run_all(playground)
    playground.get_by_label("Colour tokens by").select_option("feature")
    box = playground.get_by_label("Feature (label or index)")
    box.fill("cat")
    first = playground.locator(".colours .found button").first
    expect(first).to_be_visible()
    with playground.expect_response("**/admin/playground/inspect") as found:
        box.press("ArrowDown")
        playground.keyboard.press("Enter")
    values = found.value.json()["values"]
    assert len(values) == len(found.value.json()["logprobs"])
    assert all(value is not None for value in values[:-1])
    expect(playground.locator(".legend-words")).to_contain_text("activation")


def test_the_strength_runs_again(playground: Page):
    run_all(playground)
    before = answer(playground, 1)
    steered = column(playground, 1)
    slider = steered.get_by_label("Strength of column 2")
    with playground.expect_request("**/admin/playground/chat") as asked:
        slider.fill("0")
    assert json.loads(asked.value.post_data or "")["steering_intensity"] == 0
    expect(steered.locator(".column-state")).to_contain_text(ENDED, timeout=60_000)
    expect(steered.locator(".answer-text")).to_have_text(answer(playground, 0), use_inner_text=True)
    assert answer(playground, 1) != before


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_what_is_copied_runs(playground: Page, kind: str):
    playground.locator(f"[name=kind][value={kind}]").check()
    playground.get_by_label("Prompt", exact=True).fill(f"Once upon a time {NASTY}")
    playground.get_by_label("Temperature").fill("0")
    run_all(playground, 8)
    wanted = answer(playground, 1)
    steered = column(playground, 1)
    steered.get_by_role("button", name="Copy as Python").click()
    text = steered.get_by_label("Copied request of column 2").input_value()
    assert text.isascii()
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == wanted.strip()
    steered.get_by_role("button", name="Copy as curl").click()
    text = steered.get_by_label("Copied request of column 2").input_value()
    ran = subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, check=False)
    chunks = [json.loads(line[6:]) for line in ran.stdout.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    streamed = "".join(one["text"] if kind == "completion" else one["delta"].get("content") or "" for one in choices)
    assert streamed.strip() == wanted.strip()


def test_edits_of_one_s_own_run_and_become_a_draft(playground: Page):
    own = column(playground, 1)
    own.get_by_label("Steering of column 2").select_option("draft")
    box = own.get_by_label("Feature to add of column 2")
    box.fill("rain")
    own.locator(".found button").first.click()
    strength = own.get_by_label(re.compile("^strength of #"))
    strength.fill("1.5")
    own.get_by_role("button", name="Run", exact=True).click()
    expect(own.locator(".column-state")).to_contain_text("inline: applied", timeout=60_000)
    own.get_by_label("Name of the draft of column 2").fill(f"played-{os.getpid()}")
    own.get_by_role("button", name="Save as draft").click()
    own.locator(".draft-state a").click()
    expect(playground.locator("#content h1")).to_be_visible()
    assert "1.5" in [box.input_value() for box in playground.locator("input[name$=-strength]").all()]


def test_nothing_that_is_said_becomes_markup(playground: Page):
    token = {"token": NASTY, "logprob": -1.0, "bytes": list(NASTY.encode())}
    logprobs = {"content": [{**token, "top_logprobs": [token]}]}
    chunk = {"choices": [{"delta": {"content": NASTY}, "logprobs": logprobs, "finish_reason": "stop"}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"

    def reply(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=body)

    playground.route("**/admin/playground/chat", reply)
    run_all(playground)
    text = column(playground, 0).locator(".answer-text")
    assert text.evaluate("element => element.textContent") == NASTY
    column(playground, 0).locator(".token").first.hover()
    expect(column(playground, 0).locator(".answer-details")).to_contain_text("<script>")
    assert playground.locator(".column script, .column svg").count() == 0
    assert playground.title().startswith("Playground")


def test_a_refusal_a_cut_and_a_lost_server_are_said(playground: Page):
    playground.get_by_label("Prompt", exact=True).fill("x " * 9_000)
    playground.get_by_role("button", name="Run all").click()
    expect(column(playground, 0).locator(".state-failed")).to_contain_text("Shorten")
    playground.get_by_label("Prompt", exact=True).fill("Hello")
    playground.route(
        "**/admin/playground/chat", lambda route: route.fulfill(content_type="text/event-stream", body=": \n\n")
    )
    playground.get_by_role("button", name="Run all").click()
    expect(column(playground, 0).locator(".state-failed")).to_contain_text("The connection closed before")
    playground.unroute("**/admin/playground/chat")
    playground.route("**/admin/playground/chat", lambda route: route.abort())
    playground.get_by_role("button", name="Run all").click()
    expect(column(playground, 0).locator(".state-failed")).to_contain_text("reach the server")


HOLD_ANSWERS = """() => {
    const send = window.fetch;
    window.fetch = async (url, options) => {
        const answer = await send(url, options);
        if (!String(url).includes("/completions")) return answer;
        const reader = answer.body.getReader(), aborted = new Promise((_, fail) =>
            options.signal.addEventListener("abort", () => fail(options.signal.reason)));
        let left = 6; // events that are passed on; the others are held until the page aborts the request
        return new Response(new ReadableStream({ async pull(controller) {
            const { value } = await (left > 0 ? reader.read() : aborted);
            let end = 0;
            while (left > 0 && end < value.length) if (value[end++] === 10 && value[end] === 10) left -= 1;
            controller.enqueue(value.slice(0, end + 1));
        } }), answer);
    };
}"""


def test_stop_stops(playground: Page):
    """The answers are held after a few tokens: they cannot end before the button is pressed."""
    playground.evaluate(HOLD_ANSWERS)
    playground.get_by_label("Max tokens").fill("1000")
    playground.get_by_role("button", name="Run all").click()
    for place in (0, 1):
        expect(column(playground, place).locator(".token").nth(2)).to_be_visible(timeout=60_000)
    playground.get_by_role("button", name="Stop all").click()
    expect(playground.locator(".playground-acts [data-act=stop]")).to_be_hidden()
    for place in (0, 1):
        expect(column(playground, place).locator(".column-state")).to_have_text("Stopped.")


def test_a_profile_edited_and_published_is_felt(playground: Page):
    name = f"felt-{os.getpid()}"
    own = column(playground, 1)
    own.get_by_label("Steering of column 2").select_option("draft")
    own.get_by_label("Feature to add of column 2").fill("rain")
    own.locator(".found button").first.click()
    own.get_by_label("Name of the draft of column 2").fill(name)
    own.get_by_role("button", name="Save as draft").click()
    own.locator(".draft-state a").click()
    playground.locator("input[name$=-strength]:visible").first.fill("2")
    playground.click("text=Save and publish")
    playground.fill("textarea[name=note], input[name=note]", "To feel it.")
    playground.click("#content [type=submit]")
    expect(playground.locator(".messagelist")).to_contain_text(f"{name}@1")
    playground.get_by_role("link", name="Open in playground").click()
    expect(column(playground, 1).get_by_label("Steering of column 2")).to_have_value(f"profile:{name}")
    run_all(playground)
    assert answer(playground, 0) != answer(playground, 1)
    expect(column(playground, 1).locator(".column-state")).to_contain_text(f"{name}@1: applied")


def test_it_fits_a_telephone_with_answers_in_it(playground: Page):
    playground.set_viewport_size({"width": 390, "height": 800})
    run_all(playground)
    column(playground, 1).locator(".token").nth(1).focus()
    assert playground.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_complaint_of_a_page_in_use(playground: Page, scheme: str):
    playground.emulate_media(color_scheme=scheme)
    own = column(playground, 0)
    own.get_by_label("Steering of column 1").select_option("draft")
    own.get_by_label("Feature to add of column 1").fill("rain")
    own.locator(".found button").first.click()
    run_all(playground)
    column(playground, 1).locator(".token").nth(1).focus()
    column(playground, 1).get_by_role("button", name="Copy as curl").click()
    playground.get_by_label("Colour tokens by").select_option("logprob")
    playground.evaluate(AXE)
    found = [(one["id"], node["html"][:200]) for one in playground.evaluate(RUN_AXE) for node in one["nodes"]]
    assert found == []


def test_somebody_without_the_permission_is_refused(page: Page, live_site: LiveSite):
    code = (
        "from django.contrib.auth.models import Group, User;"
        "u = User.objects.create_user('play-auditor', password='long enough 1', is_staff=True);"
        "u.groups.add(Group.objects.get(name='Auditors'))"
    )
    live_site.server.manage("shell", "-c", code)
    page.context.clear_cookies()
    page.goto(f"{live_site.url}/admin/")
    page.fill("#id_username", "play-auditor")
    page.fill("#id_password", "long enough 1")
    page.click("[type=submit]")
    expect(page.locator("#console-nav")).to_be_attached()
    assert page.locator("#console-nav").get_by_role("link", name="Playground").count() == 0
    answer = page.goto(f"{live_site.url}/admin/playground/")
    assert answer is not None
    assert answer.status == 403


def test_an_answer_says_when_it_is_not_for_the_current_settings(playground: Page):
    steered = column(playground, 1)
    notice = steered.get_by_text("Settings have changed since this answer.")
    steered.get_by_label("Steering of column 2").select_option("profile:cats@1")
    expect(notice).to_be_hidden()  # nothing was asked yet
    run_all(playground, 8)
    expect(notice).to_be_hidden()
    steered.get_by_label("Steering of column 2").select_option("")
    expect(notice).to_be_visible()
    expect(column(playground, 0).get_by_text("Settings have changed since")).to_be_hidden()
    steered.get_by_label("Steering of column 2").select_option("profile:cats@1")
    expect(notice).to_be_hidden()  # as it was asked
    playground.get_by_label("Prompt", exact=True).fill("Another prompt.")
    expect(notice).to_be_visible()
    expect(column(playground, 0).get_by_text("Settings have changed since")).to_be_visible()
    steered.get_by_role("button", name="Run", exact=True).click()
    expect(notice).to_be_hidden()
    expect(steered.locator(".column-state")).to_contain_text(ENDED, timeout=90_000)


def test_own_edits_without_any_are_not_sent(playground: Page):
    own = column(playground, 0)
    own.get_by_label("Steering of column 1").select_option("draft")
    sent: list[str] = []
    playground.on("request", lambda request: sent.append(request.url))
    own.get_by_role("button", name="Run", exact=True).click()
    expect(own.locator(".column-state")).to_have_text("Add a feature to steer with first.")
    own.get_by_role("button", name="Copy as curl").click()
    expect(own.locator(".snippet-state")).to_have_text("Add a feature to steer with first.")
    own.get_by_label("Name of the draft of column 1").fill("nothing-in-it")
    own.get_by_role("button", name="Save as draft").click()
    expect(own.locator(".draft-state")).to_contain_text("the draft has no edits")
    assert [url for url in sent if "/playground/" in url] == []
