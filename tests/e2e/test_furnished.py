"""The console of a site on which people have worked: every page that there is, in light, in dark and on a telephone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import RequestFactory
from playwright.sync_api import Page, expect

from millm_site.env import DEMO_DIR
from tests.conftest import LiveSite, served_site
from tests.e2e.console_pages import admin_names, follow
from tests.e2e.furnished_site import furnish
from tests.e2e.test_console import AXE, CLIPPED, RUN_AXE, open_page
from tests.e2e.visitor import Visitor

pytestmark = pytest.mark.browser

NO_PAGES = {
    # asked for by scripts
    *("autocomplete", "jsi18n", "view_on_site", "inference_languagemodel_live", "steering_feature_lens"),
    *("steering_feature_neighbours", "steering_feature_test"),
    *("steering_vectorset_lens", "steering_vectorset_neighbours", "steering_vectorset_test"),
    *("console_playground_features", "console_playground_labels", "console_playground_draft", "console_palette"),
    *("console_studio_profile", "console_studio_features", "console_studio_text", "console_studio_vectors"),
    *("console_studio_edits", "console_studio_save"),
    *("console_playground_feature", "console_sharedpage_change"),  # lead on to the feature's own page
    # what forms are sent to
    *(
        "console_install_demo",
        "console_hide_first_steps",
        "inference_languagemodel_act",
        "jobs_job_cancel",
        "jobs_job_retry",
    ),
    *("openai_api_requestlog_export", "openai_api_requestlog_save_search", "openai_api_requestlog_delete_search"),
    *("openai_api_requestlog_score", "console_comment", "console_delete_comment", "console_save", "console_unsave"),
    "console_share",
    *("steering_evaluation_use", "steering_feature_steer", "steering_steeringprofile_outcomes"),
    "steering_feature_explanations",
    "steering_steeringprofile_measure",
    *("steering_sae_check", "steering_sae_load", "steering_sae_unload", "steering_sae_embed", "steering_sae_effects"),
    *("steering_sae_interpret", "steering_vectorset_effects"),
    *("steering_steeringprofile_archive", "steering_steeringprofile_unarchive", "steering_steeringprofile_restore"),
    "steering_steeringprofile_confirm_import",
    *("webhooks_webhookendpoint_test", "webhooks_webhookdelivery_redeliver"),
    # files
    "media_voice_recording",
    *("steering_evaluation_file", "steering_steeringprofile_export", "steering_steeringprofile_export_version"),
    # for those who are not logged in
    *("login", "logout"),
    "index",  # the dashboard's other name
}


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    with served_site(tmp_path_factory.mktemp("furnished-site")) as site:
        furnish(site, tmp_path_factory.mktemp("furniture"))
        yield site


@pytest.fixture
def live_site(furnished: LiveSite) -> LiveSite:
    """That which ``page`` logs in to."""
    return furnished


@pytest.fixture(scope="module")
def followed() -> dict[str, list[str]]:
    """What ``pages`` found for the first test of the module."""
    return {}


@pytest.fixture
def pages(page: Page, live_site: LiveSite, followed: dict[str, list[str]]) -> dict[str, list[str]]:
    if not followed:
        found = follow(page.request, live_site.url)
        followed.update((name, paths) for name, paths in found.items() if name not in NO_PAGES)
    return followed


def test_every_page_is_reached_by_links(pages: dict[str, list[str]], rf: RequestFactory):
    request = rf.get("/admin/")
    request.user = User(username="root", is_staff=True, is_superuser=True)
    assert admin_names(request) - NO_PAGES - set(pages) == set()


def test_pages_at_work_pass_axe_and_fit_a_telephone(page: Page, live_site: LiveSite, pages: dict[str, list[str]]):
    wrong = []
    page.set_viewport_size({"width": 390, "height": 800})
    for path in (path for paths in pages.values() for path in paths):
        open_page(page, live_site, path)
        page.evaluate(AXE)
        for problem in page.evaluate(RUN_AXE):
            wrong += [f"{path} {problem['id']}: {node['html'][:160]} {node['target']}" for node in problem["nodes"]]
        width = page.evaluate("document.documentElement.scrollWidth")
        wrong += [f"{path}: {width} wide"] * (width > 390)
        wrong += [f"{path} clips {part}" for part in page.evaluate(CLIPPED)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif("SCREENSHOTS" not in os.environ, reason="SCREENSHOTS names no folder")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_screenshots(page: Page, live_site: LiveSite, pages: dict[str, list[str]], scheme: str, width: int):
    """Also of what no address leads to: answers to forms, a lost connection, and the way in and out."""
    folder = Path(os.environ["SCREENSHOTS"]) / f"at-work-{scheme}-{width}"
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})

    def picture(name: str) -> None:
        page.screenshot(path=folder / f"{name}.png", full_page=True)

    for name, paths in pages.items():
        for number, path in enumerate(paths, 1):
            open_page(page, live_site, path)
            picture(f"{name}-{number}")
    for name in answer_forms(page, live_site):
        picture(name)


def answer_forms(page: Page, site: LiveSite) -> Iterator[str]:
    """Names of what the page shows one after the other; ends logged out."""
    visitor = Visitor(page)
    open_page(page, site, "/admin/openai_api/apikey/add/")
    visitor.press("Save")
    yield "form-refused"
    visitor.fill("Name:", "picture")
    visitor.press("Save")
    yield "key-shown-once"
    open_page(page, site, "/admin/inference/languagemodel/preview/")
    page.fill("[name=source]", str(DEMO_DIR / "model"))
    page.click("#content input[type=submit]")
    yield "model-preview"
    open_page(page, site, "/admin/steering/sae/add/")
    page.select_option("[name=model]", label="demo")
    page.fill("[name=source]", str(DEMO_DIR))
    page.click("text=List SAEs")
    expect(page.locator("#found")).to_be_visible()
    yield "sae-list"
    page.locator("#found tr", has_text="saelens").get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_be_visible()
    yield "sae-preview"
    for action in ("delete_selected", "publish_selected"):
        open_page(page, site, "/admin/steering/steeringprofile/")
        page.check("#result_list tbody tr:nth-child(2) .action-select")
        page.select_option("[name=action]", value=action)
        page.locator("#changelist .actions button").click()
        page.wait_for_load_state()
        yield action
    open_page(page, site, "/admin/jobs/job/?q=nothing-is-called-this")
    yield "nothing-found"
    page.route_web_socket("**/admin/live/", lambda socket: socket.close())
    open_page(page, site, "/admin/jobs/job/")
    expect(page.locator("#live-line")).to_be_visible()
    yield "disconnected"
    page.goto(f"{site.url}/nothing")
    yield "404"
    open_page(page, site, "/admin/")
    page.locator(".user-menu summary").click()
    page.get_by_role("button", name="Log out").click()
    yield "logged-out"
    page.goto(f"{site.url}/admin/")
    page.fill("#id_username", "nora")
    page.fill("#id_password", "wrong")
    page.click("[type=submit]")
    yield "login-refused"
    page.fill("#id_password", "correct horse 7 battery")
    page.click("[type=submit]")
    yield "nothing-open"
    page.goto(f"{site.url}/admin/jobs/job/")
    yield "403"
