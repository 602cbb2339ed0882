"""What the admin's pages show: no objects of the program, the same proposals, figures as people read them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from inference.models import LanguageModel
from jobs.models import Job
from openai_api.request_log.summary import milliseconds
from steering import services
from steering.models import Feature, SteeringProfile, WatchEvent, WatchRule
from steering.spec.units import DEFAULT_STRENGTH
from tests.console.test_pages import client_of, staff
from tests.steering.conftest import cold_snapshots, feature, model, other_model, profile, sae  # noqa: F401 - fixtures

pytestmark = pytest.mark.django_db
EXTRACT = "steering.extract"


@pytest.fixture
def root() -> Client:
    return client_of(User.objects.create_superuser("root"))


@pytest.mark.parametrize("model_class", list(admin.site._registry), ids=lambda one: one._meta.label)
def test_an_add_form_shows_no_objects_of_the_program(root: Client, model_class: Any):
    """Values that only the database will set are not there yet, and Django shows its placeholder."""
    response = root.get(reverse(f"admin:{model_class._meta.app_label}_{model_class._meta.model_name}_add"))
    assert response.status_code in (200, 403), "403: nobody adds these by hand"
    text = response.content.decode()
    assert "DatabaseDefault" not in text
    assert " object at 0x" not in text


def test_all_pages_propose_the_same_strength(root: Client, feature: Feature, profile: SteeringProfile):  # noqa: F811
    """A new edit in a profile's form, “steer with this”, "try it", the studio and the playground."""
    profile.edits.all().delete()
    pages = {
        "profile": root.get(reverse("admin:steering_steeringprofile_change", args=[profile.pk])),
        "feature": root.get(reverse("admin:steering_feature_change", args=[feature.pk])),
    }
    for name, response in pages.items():
        tags = re.findall(
            r'<input[^>]*name="(?:edits-(?:2-)?(?:0|__prefix__)-)?strength"[^>]*>', response.content.decode()
        )
        assert tags, name
        assert all(f'value="{DEFAULT_STRENGTH}"' in tag for tag in tags if "value=" in tag), (name, tags)
    for response in (
        pages["feature"],
        root.get(reverse("admin:console_studio")),
        root.get(reverse("admin:console_playground")),
    ):
        assert f"&quot;strength&quot;: {DEFAULT_STRENGTH}" in response.content.decode()


class TestFeatureLinks:
    def test_a_feature_is_found_by_its_sae_and_index(self, root: Client, feature: Feature):  # noqa: F811
        url = reverse("admin:steering_feature_change", args=[quote(feature.reference)])
        assert url.endswith(f"/{feature.sae.name}.{feature.index}/change/")
        assert str(feature) in root.get(url).content.decode()
        assert root.get(reverse("admin:steering_feature_change", args=[feature.pk])).status_code == 200, "old links"

    def test_lists_and_neighbours_link_so(self, root: Client, feature: Feature):  # noqa: F811
        listed = root.get(reverse("admin:steering_feature_changelist")).content.decode()
        assert f"/{feature.sae.name}.{feature.index}/change/" in listed
        shown = root.get(reverse("admin:steering_feature_change", args=[quote(feature.reference)])).content.decode()
        assert f'/{feature.sae.name}.{feature.index + 1}/change/" rel="next"' in shown

    @pytest.mark.parametrize(
        "name", ["no-sae.0", "tiny-sae.9999999999999", "tiny-sae.x", "tiny-sae.", ".0", "tiny-sae.41"]
    )
    def test_others_are_not_there(self, root: Client, feature: Feature, name: str):  # noqa: F811
        assert root.get(f"/admin/steering/feature/{quote(name)}/change/").status_code in (302, 404)

    def test_a_name_with_dots_and_slashes(self, root: Client, feature: Feature):  # noqa: F811
        feature.sae.name = "org/sae-1.5"
        feature.sae.save()
        url = reverse("admin:steering_feature_change", args=[quote(feature.reference)])
        assert root.get(url).status_code == 200


def test_ranked_results_have_no_sorted_column(root: Client, feature: Feature):  # noqa: F811
    """The best come first: an arrow on Index would say otherwise. It is back with a click on a column."""
    url = reverse("admin:steering_feature_changelist")

    def is_sorted(**query: str) -> bool:
        return 'class="sortoptions"' in root.get(url, query).content.decode()

    assert is_sorted()
    assert not is_sorted(q=feature.label.split()[0])
    assert is_sorted(q=feature.label.split()[0], o="1")


class TestExtractions:
    def job(self, owner: User, state: str = Job.State.QUEUED) -> Job:
        return Job.objects.create(kind=EXTRACT, title="Vectors calm of tiny", state=state, owner=owner)

    def test_the_list_of_vectors_follows_the_jobs_that_find_some(self):
        owner = User.objects.create_superuser("root")
        job, done = self.job(owner), self.job(owner, Job.State.SUCCEEDED)
        text = client_of(owner).get(reverse("admin:steering_vectorset_changelist")).content.decode()
        assert f'data-live-topic="job:{job.pk}"' in text
        assert "steering/vectors.js" in text
        assert str(done.pk) not in text

    def test_others_jobs_are_not_shown(self):
        job = self.job(User.objects.create_superuser("root"))
        visitor = staff("view_vectorset", "view_job")
        text = client_of(visitor).get(reverse("admin:steering_vectorset_changelist")).content.decode()
        assert str(job.pk) not in text
        assert "vectors.js" not in text


def test_figures_of_watch_rules_are_rounded(root: Client, feature: Feature):  # noqa: F811
    rule = WatchRule.objects.create(name="rain", feature=feature, threshold=0.1, raw_threshold=0.1 + 0.2, reason="x")
    common: dict[str, Any] = {
        "rule": "rain",
        "model": "tiny",
        "sae": "tiny-sae",
        "feature": 0,
        "request_id": "req_1",
        "at": timezone.now(),
        "in_prompt": False,
    }
    event = WatchEvent.objects.create(
        **common, action="event", threshold=0.1 + 0.2, value=1.0 / 3, num_tokens=1, place=0
    )
    for name, pk in (("watchrule", rule.pk), ("watchevent", event.pk)):
        for page in ("change", "changelist"):
            args = [pk] if page == "change" else []
            text = root.get(reverse(f"admin:steering_{name}_{page}", args=args)).content.decode()
            assert "0.30000000000000004" not in text
            assert "0.3333333333333333" not in text


def test_two_durations_of_one_line_have_one_unit():
    assert [milliseconds(240.0, beside=2400.0), milliseconds(2400.0)] == ["0.24 s", "2.40 s"]
    assert [milliseconds(240.0, beside=900.0), milliseconds(900.0)] == ["240 ms", "900 ms"]


@pytest.mark.parametrize(("group", "is_offered"), [("Auditors", False), ("Researchers", True)])
def test_try_it_is_offered_to_those_who_may_generate(group: str, is_offered: bool, model: LanguageModel):  # noqa: F811
    visitor = User.objects.create_user("rita", is_staff=True)
    visitor.groups.add(Group.objects.get(name=group))
    text = client_of(visitor).get(reverse("admin:inference_languagemodel_change", args=[model.pk])).content.decode()
    assert ('id="try-form"' in text) == is_offered


class TestDeleting:
    def test_a_published_profile_offers_its_archive(self, root: Client, profile: SteeringProfile):  # noqa: F811
        services.publish_profile(profile=profile)
        url = reverse("admin:steering_steeringprofile_delete", args=[profile.pk])
        text = root.get(url).content.decode()
        assert "permission" not in text.split('id="content"')[1]
        assert "gloomy@1: published profiles can" in text
        assert f'action="{reverse("admin:steering_steeringprofile_archive", args=[profile.pk])}"' in text
        assert root.post(url, {"post": "yes"}).status_code == 200
        assert SteeringProfile.objects.filter(pk=profile.pk).exists()
        root.post(reverse("admin:steering_steeringprofile_archive", args=[profile.pk]))
        profile.refresh_from_db()
        assert profile.archived_at is not None
        assert "steeringprofile/archive" not in root.get(url).content.decode()

    def test_a_draft_can_be_deleted(self, root: Client, profile: SteeringProfile):  # noqa: F811
        url = reverse("admin:steering_steeringprofile_delete", args=[profile.pk])
        assert "steering profile gloomy" in root.get(url).content.decode()
        root.post(url, {"post": "yes"})
        assert not SteeringProfile.objects.exists()
