"""Policies, archive, rollback and the trail of who did it; what requests bring along."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db.models import ProtectedError
from django.test import Client
from django.urls import reverse

from audit.models import AuditEvent
from inference.interventions import ReaderEdit
from inference.models import LanguageModel
from inference.registry.records import model_table
from steering import services
from steering.errors import (
    InlineSteeringError,
    InUseError,
    InvalidProfileError,
    NothingToPublishError,
    ProfileArchivedError,
    SAEUnavailableError,
)
from steering.models import FeatureEdit, ProfileVersion, SteeringPolicy, SteeringProfile
from steering.profiles import lifecycle
from steering.profiles import resolver as profile_resolver
from steering.profiles.resolver import ResolvedProfile, SteeringSelection
from tests.steering.resolving import intervention_of, local_resolver

pytestmark = pytest.mark.django_db(transaction=True)  # requests read in threads of their own


@pytest.fixture
def versions(profile: SteeringProfile) -> list[ProfileVersion]:
    first = services.publish_profile(profile=profile, note="First.")
    profile.edits.update(strength=0.25)
    return [first, services.publish_profile(profile=profile, note="Second.")]


@pytest.fixture
def cap(model: LanguageModel, feature: Any) -> ProfileVersion:
    """At most 0.1 maximal activations of the feature that the profile adds."""
    profile = services.create_profile(name="cap", model=model)
    FeatureEdit.objects.create(profile=profile, feature=feature, operation="at_most", strength=0.1)
    return services.publish_profile(profile=profile)


def steer(selection: SteeringSelection) -> ResolvedProfile | None:
    resolver = local_resolver()
    return async_to_sync(resolver.steer)("tiny", selection, special_token_ids=frozenset())


def steered(selection: SteeringSelection) -> ResolvedProfile:
    resolved = steer(selection)
    assert resolved is not None
    return resolved


def trail() -> list[tuple[str, str, str]]:
    """But for what became of drafts, models and users on the way."""
    found = AuditEvent.objects.exclude(action__in=["add", "change"])
    return list(found.order_by("pk").values_list("action", "subject", "user"))


class TestRollback:
    def test_publishes_the_old_content_again(self, versions, researcher):
        again = lifecycle.roll_back(version=versions[0], user=researcher, note="It was better.")
        assert (again.number, again.edits, again.fingerprint) == (3, versions[0].edits, versions[0].fingerprint)
        assert list(again.saes.all()) == list(versions[0].saes.all())
        assert steered(SteeringSelection("gloomy")).label == "gloomy@3"
        assert trail()[-1] == ("roll_back", "gloomy@3", "rita")

    def test_takes_the_draft_back_too(self, versions, profile):
        """Else the next publishing brings back what was rolled back."""
        assert profile.edits.get().strength != versions[0].edits[0]["strength"]
        lifecycle.roll_back(version=versions[0])
        assert profile.edits.get().strength == versions[0].edits[0]["strength"]
        with pytest.raises(NothingToPublishError):
            services.publish_profile(profile=profile)

    def test_keeps_changes_that_were_never_published(self, versions, profile):
        profile.edits.update(strength=0.75)
        lifecycle.roll_back(version=versions[0])
        assert profile.edits.get().strength == 0.75

    @pytest.mark.parametrize("replaces_draft", [True, False])
    def test_does_with_the_draft_what_it_is_told(self, replaces_draft, versions, profile):
        profile.edits.update(strength=0.75)
        lifecycle.roll_back(version=versions[0], replaces_draft=replaces_draft)
        assert (profile.edits.get().strength == 0.75) != replaces_draft

    @pytest.mark.parametrize("has_changes", [True, False])
    def test_page_proposes_it_where_nothing_is_lost(self, has_changes, versions, profile, admin):
        if has_changes:
            profile.edits.update(strength=0.75)
        url = reverse("admin:steering_steeringprofile_roll_back", args=[profile.pk, 1])
        text = admin.get(url).content.decode()
        assert ("checked" in text.split('name="replaces_draft"')[1].split(">")[0]) != has_changes
        assert ("Replacing it discards them" in text) == has_changes
        admin.post(url, {"note": "Back.", "replaces_draft": "on"})
        assert profile.edits.get().strength == versions[0].edits[0]["strength"]

    def test_to_what_requests_get_already(self, versions):
        with pytest.raises(NothingToPublishError, match="nothing to roll back"):
            lifecycle.roll_back(version=versions[1])

    def test_without_its_weights(self, versions, sae):
        type(sae).objects.filter(pk=sae.pk).update(source="/nowhere")
        with pytest.raises(SAEUnavailableError):
            lifecycle.roll_back(version=versions[0])
        assert ProfileVersion.objects.count() == 2


class TestArchive:
    def test_requests_are_refused_until_it_is_taken_back(self, versions, profile, researcher):
        lifecycle.archive_profile(profile=profile, user=researcher)
        for reference in ("gloomy", "gloomy@1"):
            with pytest.raises(ProfileArchivedError, match="archived"):
                steer(SteeringSelection(reference))
        assert async_to_sync(profile_resolver.list_published)("tiny") == []
        lifecycle.unarchive_profile(profile=profile, user=researcher)
        assert steered(SteeringSelection("gloomy@1")).label == "gloomy@1"
        assert [event[0] for event in trail()[-2:]] == ["archive", "unarchive"]

    def test_twice_is_once(self, versions, profile):
        lifecycle.archive_profile(profile=profile)
        lifecycle.archive_profile(profile=profile)
        assert [event[0] for event in trail()].count("archive") == 1

    def test_a_models_default_is_kept(self, versions, profile, model):
        lifecycle.set_default_profile(model=model, reference="gloomy@1")
        with pytest.raises(InUseError, match="default"):
            lifecycle.archive_profile(profile=SteeringProfile.objects.get(pk=profile.pk))

    def test_a_policy_is_kept(self, cap):
        lifecycle.save_policy(policy=SteeringPolicy(version=cap, reason="Safety."))
        with pytest.raises(InUseError, match="policy"):
            lifecycle.archive_profile(profile=cap.profile)


class TestPolicy:
    def test_follows_what_the_request_wants(self, versions, cap):
        alone = steered(SteeringSelection("gloomy"))
        lifecycle.save_policy(policy=SteeringPolicy(version=cap, reason="Safety."))
        both = steered(SteeringSelection("gloomy"))
        assert (both.label, both.policies) == ("gloomy@2", ("cap@1",))
        assert both.fingerprint == intervention_of(both).fingerprint not in {alone.fingerprint, cap.fingerprint}
        only = steered(SteeringSelection())
        assert (only.label, only.policies) == ("", ("cap@1",))
        applied = intervention_of(only)
        assert all(edit.norm_limit == float("inf") for edit in applied.edits), "a policy knows no norm limit"
        assert only.fingerprint == applied.fingerprint
        own = intervention_of(steered(SteeringSelection("cap@1")))
        assert any(edit.norm_limit < float("inf") for edit in own.edits)

    def test_is_not_scaled(self, versions, cap):
        lifecycle.save_policy(policy=SteeringPolicy(version=cap, reason="Safety."))
        off = steered(SteeringSelection("gloomy", 0.0))
        (edit,) = intervention_of(off).edits
        assert isinstance(edit, ReaderEdit)
        assert [rule.upper for rule in edit.rules] == [pytest.approx(0.4)]

    def test_inactive_and_removed_ones_do_not_act(self, cap, researcher):
        policy = lifecycle.save_policy(policy=SteeringPolicy(version=cap, reason="Safety."), user=researcher)
        policy.is_active = False
        lifecycle.save_policy(policy=policy, user=researcher)
        assert steer(SteeringSelection()) is None
        lifecycle.remove_policy(policy=policy, user=researcher)
        assert [event for event in trail() if event[0] == "policy"] == [("policy", "cap@1", "rita")] * 3

    def test_order(self, versions, cap):
        lifecycle.save_policy(policy=SteeringPolicy(version=cap, position=2, reason="Safety."))
        lifecycle.save_policy(policy=SteeringPolicy(version=versions[0], position=1, reason="Mood."))
        assert steered(SteeringSelection()).policies == ("gloomy@1", "cap@1")

    def test_missing_weights_stop_the_traffic(self, cap, sae):
        lifecycle.save_policy(policy=SteeringPolicy(version=cap, reason="Safety."))
        type(sae).objects.filter(pk=sae.pk).update(source="/nowhere")
        services.published_profiles.refresh()
        with pytest.raises(SAEUnavailableError):
            steer(SteeringSelection())

    def test_other_models_are_left_alone(self, cap, other_model):
        lifecycle.save_policy(policy=SteeringPolicy(version=cap, reason="Safety."))
        resolver = local_resolver()
        model_table.refresh()
        assert async_to_sync(resolver.steer)("other", SteeringSelection(), special_token_ids=frozenset()) is None

    def test_special_tokens_are_refused(self, profile):
        profile.edits.update(special_tokens=True)
        version = services.publish_profile(profile=profile)
        with pytest.raises(InvalidProfileError, match="special tokens"):
            lifecycle.save_policy(policy=SteeringPolicy(version=version, reason="Safety."))

    def test_normalising_saes_are_refused(self, cap, sae):
        type(sae).objects.filter(pk=sae.pk).update(normalization="layer_norm")
        with pytest.raises(InvalidProfileError, match="normalises"):
            lifecycle.save_policy(policy=SteeringPolicy(version=cap, reason="Safety."))

    def test_its_profile_cannot_be_deleted(self, cap):
        with pytest.raises(ProtectedError):
            cap.profile.delete()


class TestDefault:
    def test_is_recorded(self, versions, model, researcher):
        lifecycle.set_default_profile(model=model, reference="gloomy", user=researcher)
        event = AuditEvent.objects.get(action="default")
        assert (event.user, event.model, event.detail) == ("rita", "tiny", "none → gloomy")

    @pytest.mark.parametrize("reference", ["nope", "gloomy@9", "gloomy@x"])
    def test_must_exist(self, reference, versions, model):
        with pytest.raises(ValidationError, match="no published profile"):
            lifecycle.set_default_profile(model=model, reference=reference)

    def test_is_chosen_in_the_admin(self, admin, versions, model, profile):
        url = reverse("admin:inference_languagemodel_change", args=[model.pk])
        html = admin.get(url).content.decode()
        assert '<option value="gloomy">gloomy: the latest version</option>' in html
        assert '<option value="gloomy@1">gloomy@1: always this version</option>' in html
        LanguageModel.objects.update(default_profile="gone")
        assert '<option value="gone" selected>gone: no longer available</option>' in admin.get(url).content.decode()

    def test_command(self, versions, model, capsys):
        call_command("set_default_profile", "tiny", "gloomy@1")
        model.refresh_from_db()
        assert model.default_profile == "gloomy@1"
        with pytest.raises(CommandError, match="is the default of the model tiny"):
            call_command("archive_profile", "gloomy", model="tiny")
        call_command("set_default_profile", "tiny")
        call_command("archive_profile", "gloomy", model="tiny")
        with pytest.raises(CommandError, match="no published profile gloomy that is not archived"):
            call_command("set_default_profile", "tiny", "gloomy")
        call_command("archive_profile", "gloomy", model="tiny", undo=True)
        call_command("roll_back_profile", "gloomy@1", model="tiny", note="Too dry.")
        assert ProfileVersion.objects.latest("number").note == "Too dry."
        for name, message in (("gloomy", "as name@version"), ("gloomy@9", "no published version 9")):
            with pytest.raises(CommandError, match=message):
                call_command("roll_back_profile", name, model="tiny")
        with pytest.raises(CommandError, match="nothing to roll back"):
            call_command("roll_back_profile", "gloomy@3", model="tiny")
        with pytest.raises(CommandError, match="The model none does not exist"):
            call_command("set_default_profile", "none")


class TestInline:
    def test_equals_the_published_profile(self, profile, sae):
        version = services.publish_profile(profile=profile)
        inline = steered(SteeringSelection(inline={"features": [{"index": 0, "strength": 0.5}]}))
        assert (inline.label, inline.fingerprint) == ("inline", version.fingerprint)

    @pytest.mark.parametrize(
        ("features", "param", "code"),
        [
            ([], "steering.features", "invalid_value"),
            ("x", "steering.features", "invalid_value"),
            ([{"index": 40}], "steering.features[0].index", "invalid_feature"),
            ([{"index": True}], "steering.features[0].index", "invalid_feature"),
            ([{"index": 0, "sae": "nope"}], "steering.features[0].sae", "sae_not_found"),
            ([{"index": 0, "strength": float("nan")}], "steering.features[0].strength", "invalid_value"),
            ([{"index": 0, "strength": 900}], "steering.features[0].strength", "invalid_value"),
            ([{"index": 9}], "steering.features[0].unit", "invalid_value"),
            ([{"index": 0, "operation": "explode"}], "steering.features[0].operation", "invalid_value"),
            ([{"index": 0}, {"index": 0}], "steering.features[1]", "contradictory_edits"),
            ([{"index": 0}] * 65, "steering.features", "invalid_value"),
        ],
    )
    def test_problems_name_the_field(self, features, param, code, sae):
        with pytest.raises(InlineSteeringError) as caught:
            steer(SteeringSelection(inline={"features": features}))
        assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


class TestTrail:
    def test_publishing_is_in_it(self, versions):
        assert [event[:2] for event in trail()] == [("publish", "gloomy@1"), ("publish", "gloomy@2")]

    def test_cannot_be_changed(self, versions):
        event = AuditEvent.objects.first()
        assert event is not None
        for change in (event.save, event.delete, AuditEvent.objects.all().delete):
            with pytest.raises(ValidationError, match="never changed"):
                change()


class TestAdmin:
    def url(self, page: str, profile: SteeringProfile, *more: object) -> str:
        return reverse(f"admin:steering_steeringprofile_{page}", args=[profile.pk, *more])

    def test_rollback(self, admin, profile, versions):
        url = self.url("roll_back", profile, 1)
        assert "0.25 × max activation → add 0.5 × max activation" in admin.get(url).content.decode()
        admin.post(url, {"note": "Back."})
        assert profile.latest_version.number == 3
        assert trail()[-1] == ("roll_back", "gloomy@3", "admin")
        assert admin.get(self.url("roll_back", profile, 9)).status_code == 404

    def test_archive_is_a_post_with_its_permission(self, admin, profile, versions):
        assert admin.get(self.url("archive", profile)).status_code == 405
        admin.post(self.url("archive", profile))
        assert "Archived. Requests can" in admin.get(self.url("change", profile)).content.decode()
        admin.post(self.url("unarchive", profile))
        profile.refresh_from_db()
        assert profile.archived_at is None
        client = Client()
        client.force_login(User.objects.create_user("staff", is_staff=True))
        for page in ("archive", "compare"):
            assert client.post(self.url(page, profile)).status_code == 403

    def test_compare(self, admin, profile, versions):
        url = self.url("compare", profile)
        assert "From gloomy@1 to gloomy@2" in admin.get(url).content.decode()
        swapped = {"before": versions[1].pk, "after": versions[0].pk}
        assert "From gloomy@2 to gloomy@1" in admin.get(url, swapped).content.decode()

    def test_policy(self, admin, cap):
        add = reverse("admin:steering_steeringpolicy_add")
        data = {"version": cap.pk, "position": 0, "is_active": "on", "reason": "Safety."}
        assert admin.post(add, data).status_code == 302
        policy = SteeringPolicy.objects.get()
        assert str(policy.created_by) == "admin"
        admin.post(reverse("admin:steering_steeringpolicy_delete", args=[policy.pk]), {"post": "yes"})
        assert not SteeringPolicy.objects.exists()
        assert [event[2] for event in trail() if event[0] == "policy"] == ["admin", "admin"]

    def test_trail_is_read_only(self, admin, versions):
        event = AuditEvent.objects.latest("pk")
        assert admin.get(reverse("admin:audit_auditevent_changelist")).status_code == 200
        assert admin.post(reverse("admin:audit_auditevent_delete", args=[event.pk]), {"post": "yes"}).status_code == 403


def test_crowd_under_a_policy_gets_the_same(versions, cap):
    lifecycle.save_policy(policy=SteeringPolicy(version=cap, reason="Safety."))
    resolver = local_resolver()

    async def crowd() -> list[ResolvedProfile | None]:
        selection = SteeringSelection("gloomy", 0.5)
        return await asyncio.gather(
            *(resolver.steer("tiny", selection, special_token_ids=frozenset()) for _ in range(8))
        )

    assert len({one.fingerprint for one in async_to_sync(crowd)() if one}) == 1
