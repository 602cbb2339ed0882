"""Reviews: two persons for each version, and an approval that holds for one effect only."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import IntegrityError
from django.urls import reverse

from audit.models import AuditEvent
from steering import services
from steering.demo.install import install_demo
from steering.errors import InvalidProfileError, NothingToPublishError, ReviewError
from steering.models import ProfileReview, ProfileVersion, SteeringProfile
from steering.profiles import lifecycle, reviews
from tests.steering.pages import login, page, said, staff

REVIEW = "admin:steering_steeringprofile_review"
PUBLISH = "admin:steering_steeringprofile_publish"
CHANGE = "admin:steering_steeringprofile_change"


@pytest.fixture(autouse=True)
def on(settings: Any) -> None:
    settings.MILLM_PROFILE_REVIEW = True


@pytest.fixture
def reviewer(db: None) -> User:
    user = User.objects.create_user("rolf", is_staff=True)
    names = ("review_steeringprofile", "view_steeringprofile")
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    return user


@pytest.fixture
def asked(profile: SteeringProfile, researcher: User) -> ProfileReview:
    return reviews.request_review(profile=profile, user=researcher, note="Sad enough?")


def approve(review: ProfileReview, user: User) -> ProfileReview:
    return reviews.decide_review(review=review, user=user, is_approved=True)


class TestPublishing:
    def test_needs_an_approval(self, profile, asked, reviewer, researcher):
        with pytest.raises(ReviewError, match="the requested review is still open"):
            services.publish_profile(profile=profile, user=researcher)
        approve(asked, reviewer)
        assert str(services.publish_profile(profile=profile, user=researcher)) == "gloomy@1"
        assert [
            event.get_action_display() for event in AuditEvent.objects.filter(action__in=["publish", "review"])
        ] == ["published", "review", "review"]

    def test_without_having_asked(self, profile):
        with pytest.raises(ReviewError, match="no review was requested"):
            services.publish_profile(profile=profile)
        assert not ProfileVersion.objects.exists()

    def test_rejected(self, profile, asked, reviewer):
        reviews.decide_review(review=asked, user=reviewer, is_approved=False, note="Too sad.")
        with pytest.raises(ReviewError, match=r"rejected by rolf: Too sad\."):
            services.publish_profile(profile=profile)

    def test_a_change_of_the_draft_voids_the_approval(self, profile, asked, reviewer):
        approve(asked, reviewer)
        profile.edits.update(strength=0.6)
        with pytest.raises(ReviewError, match="has changed since the review"):
            services.publish_profile(profile=profile)
        assert not ProfileVersion.objects.exists()

    def test_so_does_a_change_of_what_strengths_refer_to(self, profile, asked, reviewer, feature):
        approve(asked, reviewer)
        feature.max_activation = 40.0
        feature.save()
        with pytest.raises(ReviewError, match="has changed since the review"):
            services.publish_profile(profile=profile)

    def test_an_approval_is_used_up(self, profile, asked, reviewer):
        approve(asked, reviewer)
        services.publish_profile(profile=profile)
        profile.edits.update(strength=0.6)
        approve(reviews.request_review(profile=profile, user=asked.requested_by), reviewer)
        services.publish_profile(profile=profile)
        profile.edits.update(strength=0.5)  # as it was approved at first
        with pytest.raises(ReviewError, match="no review was requested"):
            services.publish_profile(profile=profile)

    def test_is_as_before_where_it_is_off(self, profile, settings):
        settings.MILLM_PROFILE_REVIEW = False
        assert services.publish_profile(profile=profile)

    def test_command(self, profile):
        with pytest.raises(CommandError, match="needs a review"):
            call_command("publish_profile", "gloomy", model="tiny")

    def test_going_back_needs_none(self, profile, asked, reviewer):
        approve(asked, reviewer)
        first = services.publish_profile(profile=profile)
        profile.edits.update(strength=0.6)
        approve(reviews.request_review(profile=profile, user=asked.requested_by), reviewer)
        services.publish_profile(profile=profile)
        assert str(lifecycle.roll_back(version=first)) == "gloomy@3"

    def test_the_demo_is_installed_all_the_same(self, db):
        assert install_demo().published


class TestDeciding:
    def test_not_by_who_asked(self, asked, researcher):
        researcher.is_superuser = True
        researcher.save()
        with pytest.raises(ReviewError, match="You can't decide a review that you requested"):
            approve(asked, researcher)

    def test_not_without_the_right(self, asked):
        with pytest.raises(ReviewError, match="does not have permission"):
            approve(asked, User.objects.create_user("someone"))

    def test_not_twice(self, asked, reviewer):
        approve(asked, reviewer)
        with pytest.raises(ReviewError, match="can no longer be decided"):
            reviews.decide_review(review=asked, user=reviewer, is_approved=False, note="No.")

    def test_not_of_what_was_not_shown(self, profile, asked, reviewer):
        profile.edits.update(strength=0.6)
        with pytest.raises(ReviewError, match="request a new one"):
            approve(asked, reviewer)

    def test_rejections_say_why(self, asked, reviewer):
        with pytest.raises(ReviewError, match="needs a note"):
            reviews.decide_review(review=asked, user=reviewer, is_approved=False, note=" ")

    def test_a_new_request_replaces_the_open_one(self, profile, asked, reviewer, researcher):
        again = reviews.request_review(profile=profile, user=researcher)
        with pytest.raises(ReviewError, match="replaced by a later request"):
            approve(asked, reviewer)
        assert approve(again, reviewer).state == "approved"

    def test_one_is_open_at_a_time(self, asked):
        with pytest.raises(IntegrityError):
            ProfileReview.objects.create(profile=asked.profile, fingerprint="x")

    def test_what_cannot_be_published_is_not_reviewed(self, profile, researcher, model):
        empty = services.create_profile(name="empty", model=model)
        with pytest.raises(InvalidProfileError, match="has no edits"):
            reviews.request_review(profile=empty, user=researcher)
        services.publish_profile(profile=profile, needs_review=False)
        with pytest.raises(NothingToPublishError):
            reviews.request_review(profile=profile, user=researcher)


class TestPages:
    def test_from_asking_to_publishing(self, admin, profile, reviewer):
        url, publish = reverse(REVIEW, args=[profile.pk]), reverse(PUBLISH, args=[profile.pk])
        assert url in page(admin, CHANGE, profile.pk)
        assert "no review was requested" in page(admin, PUBLISH, profile.pk)
        assert "Requested a review of gloomy" in said(admin.post(url, {"decision": "request", "note": "<b>Look.</b>"}))
        html = page(admin, REVIEW, profile.pk)
        assert 'value="approve"' not in html  # it is the admin's own
        assert "&lt;b&gt;Look.&lt;/b&gt;" in html
        assert "another user must" in said(admin.post(url, {"decision": "approve"}))
        other = login(reviewer)
        assert 'value="approve"' in page(other, REVIEW, profile.pk)
        assert "is approved" in said(other.post(url, {"decision": "approve", "note": "Good."}))
        assert "approved by rolf: Good." in page(admin, REVIEW, profile.pk)
        assert admin.post(publish, {"note": "First."}).status_code == 302
        assert ProfileVersion.objects.exists()

    def test_looking_decides_nothing(self, asked, reviewer):
        login(reviewer).get(reverse(REVIEW, args=[asked.profile_id]), {"decision": "approve"})
        asked.refresh_from_db()
        assert asked.state == "open"

    def test_onlookers(self, asked):
        client = staff("view_steeringprofile")
        url = reverse(REVIEW, args=[asked.profile_id])
        assert 'name="decision"' not in page(client, REVIEW, asked.profile_id)
        assert client.post(url, {"decision": "request"}).status_code == 403
        assert "does not have permission" in said(client.post(url, {"decision": "approve"}))
        asked.refresh_from_db()
        assert asked.state == "open"

    def test_strangers(self, asked, client):
        url = reverse(REVIEW, args=[asked.profile_id])
        assert client.post(url, {"decision": "approve"})["Location"].startswith("/admin/login/")
        assert staff("change_feature").get(url).status_code == 403

    def test_publishing_without_the_page_is_refused(self, admin, profile):
        admin.post(reverse(PUBLISH, args=[profile.pk]), {"note": "x"})
        assert not ProfileVersion.objects.exists()

    def test_nonsense_in_the_draft_breaks_no_page(self, admin, asked):
        asked.profile.edits.update(strength=float("nan"))
        page(admin, REVIEW, asked.profile_id)
        page(admin, CHANGE, asked.profile_id)
