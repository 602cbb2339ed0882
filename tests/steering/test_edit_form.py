"""The form of a draft's edits in a real browser: explained in place, and whole on a telephone and a desk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from inference.interventions import Site
from steering.models import SAE, FeatureEdit, SteeringProfile
from steering.vectors.services import NewVector, save_vectors
from tests.browser import chromium
from tests.steering.sae_files import D_IN

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
WIDTHS = (390, 1280)


@pytest.fixture
def draft(profile: SteeringProfile) -> SteeringProfile:
    """One plain edit, one with conditions, a vector, and a norm."""
    sae = SAE.objects.get()
    vectors = save_vectors(name="calm", model=profile.model, vectors=[NewVector(Site(2), (1.0,) * D_IN)], origin="x")
    FeatureEdit.objects.create(
        profile=profile, feature=sae.features.get(index=1), operation="at_most", strength=0.25, after=4,
        gate_feature=sae.features.get(index=2), gate_above=0.5,
    )  # fmt: skip
    FeatureEdit.objects.create(profile=profile, plain_vector=vectors.vectors.get(), strength=0.5, unit="raw")
    site = {"layer": 1, "site": "resid_post"}
    FeatureEdit.objects.create(profile=profile, vector=site, operation="norm_preserving", unit="raw")
    return profile


@pytest.fixture
def form(draft: SteeringProfile, live_server: LiveServer) -> Iterator[Page]:
    """The page of the draft, logged in; errors in its scripts fail the test.

    Nothing may ask the database while it is open: the browser's library runs an event loop.
    """
    User.objects.create_superuser("admin", password="secret")
    errors: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_default_timeout(30_000)
        page.goto(f"{live_server.url}/admin/steering/steeringprofile/{draft.pk}/change/")
        page.fill("#id_username", "admin")
        page.fill("#id_password", "secret")
        page.click("[type=submit]")
        yield page
    assert not errors


def test_is_whole_at_every_width(form: Page):
    for width in WIDTHS:
        form.set_viewport_size({"width": width, "height": 900})
        if folder := os.environ.get("MILLM_SCREENSHOTS"):
            form.screenshot(path=Path(folder) / f"draft-{width}.png", full_page=True)
        for field in form.locator(".inline-related:not(.empty-form) :is(input, select, textarea):visible").all():
            box = field.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width


def test_choices_are_explained_and_unused_fields_hidden(form: Page):
    card = form.locator("#edits-0")
    expect(card.locator(".fieldBox.field-operation .steering-explained")).to_contain_text(
        "Adds the feature's or vector's direction"
    )
    expect(card.locator(".fieldBox.field-phase .steering-explained")).to_contain_text("and generated tokens")
    expect(card.locator("[name=edits-0-lower]")).not_to_be_visible()
    card.locator("select[name=edits-0-operation]").select_option("projection_cap")
    expect(card.locator("[name=edits-0-lower]")).to_be_visible()
    card.locator("select[name=edits-0-operation]").select_option("ablate")
    expect(card.locator(".fieldBox.field-operation .steering-explained")).to_contain_text("Sets the feature to 0.")
    expect(card.locator("[name=edits-0-strength]")).not_to_be_visible()


def test_outcome_and_order_are_shown(form: Page):
    cards = form.locator("#edits-group .inline-related:not(.empty-form)")
    expect(cards.nth(0).locator(".fieldBox.field-coefficient .readonly")).to_have_text("+2")
    expect(cards.nth(1).locator(".field-words .readonly")).to_contain_text("keep at most 0.25 × max activation")
    expect(cards.nth(1).locator("[name=edits-1-after]")).to_be_visible()  # set conditions are open
    expect(cards.nth(0).locator("[name=edits-0-after]")).not_to_be_visible()
    vectors = form.locator("#edits-2-group .inline-related:not(.empty-form)")
    expect(vectors.nth(0)).to_contain_text("calm at layer 2 (resid_post)")
    expect(vectors.nth(1).locator("[name=edits-2-1-norm_layer]")).to_have_value("1")
    expect(vectors.nth(1).locator("[name=edits-2-1-strength]")).not_to_be_visible()
    vectors.nth(1).locator("[name=edits-2-1-operation]").select_option("reconstruct")
    expect(vectors.nth(1).locator(".fieldBox.field-operation .steering-explained")).to_contain_text(
        "without the SAE's error"
    )
    expect(vectors.nth(1).locator("[name=edits-2-1-norm_layer]")).not_to_be_visible()
    expect(vectors.nth(1).locator("[name=edits-2-1-norm_site]")).not_to_be_visible()
    vectors.nth(1).locator("[name=edits-2-1-sae]").select_option("tiny-sae")
    expect(vectors.nth(0).locator("[name=edits-2-0-sae]")).not_to_be_visible()
    expect(vectors.nth(0).locator("[name=edits-2-0-norm_site]")).not_to_be_visible()


def test_added_card_works_like_the_others_and_is_saved(form: Page, draft: SteeringProfile):
    form.click("#edits-group .add-row a")
    card = form.locator("#edits-2")
    expect(card.locator(".fieldBox.field-operation .steering-explained")).to_contain_text(
        "Adds the feature's or vector's direction"
    )
    card.locator(".field-feature .select2-selection").click()
    form.locator(".select2-search__field").fill("sea")
    form.locator(".select2-results__option", has_text="the sea").click()
    card.locator("[name=edits-2-strength]").fill("0.125")
    form.click("[name=_continue]")
    words = form.locator("#edits-2 .field-words .readonly")
    expect(words).to_have_text("tiny-sae #2 the sea: add 0.125 × max activation")
