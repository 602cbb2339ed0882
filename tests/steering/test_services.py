"""Drafts become immutable versions, and versions become drafts again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction
from django.db.models import ProtectedError

from inference.interventions import Site, Window
from steering import services
from steering.errors import InUseError, InvalidProfileError, SAEUnavailableError
from steering.models import Feature, FeatureEdit, ProfileVersion, SteeringProfile, VersionSAE
from steering.profiles.drafts import draft_edits, edit_of, feature_target
from steering.spec.edit import EditSpec, FeatureTarget, GateSpec, VectorTarget
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edits_to_json
from tests.steering.edits import keep_norm, vector_edit
from tests.steering.sae_files import random_weights, write_sae


def add_edit(profile: SteeringProfile, index: int = 1, **fields: object) -> FeatureEdit:
    feature = Feature.objects.get(sae__name="tiny-sae", index=index)
    return FeatureEdit.objects.create(profile=profile, feature=feature, **fields)


def refused(profile: SteeringProfile) -> str:
    with pytest.raises(InvalidProfileError) as caught:
        services.publish_profile(profile=profile)
    assert not ProfileVersion.objects.exists()
    return caught.value.message


class TestPublishing:
    def test_version_is_numbered_and_signed(self, profile, researcher):
        version = services.publish_profile(profile=profile, user=researcher, note="First.")
        assert (str(version), version.note, version.published_by) == ("gloomy@1", "First.", researcher)
        add_edit(profile)
        assert services.publish_profile(profile=profile).number == 2

    def test_version_holds_the_numbers_that_were_used(self, profile, sae):
        (edit,) = parse_edits(services.publish_profile(profile=profile).edits)
        assert isinstance(edit.target, FeatureTarget)
        assert edit.target.sae.checksum == sae.checksum
        assert edit.target.site == Site(1)
        assert (edit.strength, edit.unit, edit.raw) == (0.5, "max_act", 2.0)
        assert edit.push == pytest.approx(2.0 * profile.edits.get().feature.decoder_norm / 20.0)

    def test_later_changes_of_the_draft_and_the_statistics_do_not_touch_it(self, profile, feature):
        version = services.publish_profile(profile=profile)
        before = ProfileVersion.objects.get().edits
        profile.edits.update(strength=3.0)
        Feature.objects.filter(pk=feature.pk).update(max_activation=100.0, label="other")
        assert ProfileVersion.objects.get().edits == before
        assert version.fingerprint == ProfileVersion.objects.get().fingerprint

    def test_empty_draft(self, model):
        profile = services.create_profile(name="empty", model=model)
        assert refused(profile) == "The draft of empty has no edits; add at least one."

    def test_nothing_new(self, profile):
        services.publish_profile(profile=profile)
        with pytest.raises(InvalidProfileError, match="same as gloomy@1; there is nothing to publish"):
            services.publish_profile(profile=profile)

    @pytest.mark.parametrize("strength", [float("nan"), float("inf"), -float("inf"), 1e30])
    def test_strengths_without_meaning(self, strength, profile):
        profile.edits.update(strength=strength)
        assert "edits[0].strength: Expected a finite number" in refused(profile)

    def test_push_beyond_reason(self, profile):
        profile.edits.update(strength=500.0)
        assert "would change the residual by" in refused(profile)

    def test_unit_without_its_number(self, profile):
        add_edit(profile, 7)  # has no maximal activation
        assert refused(profile).startswith("edits[1].unit: The unit `max_act` needs the feature's max activation")

    def test_contradiction(self, profile):
        add_edit(profile, 1, operation="clamp")
        add_edit(profile, 1, operation="ablate", phase="prompt")
        assert "`clamp` and `ablate` contradict each other" in refused(profile)

    def test_feature_of_another_model(self, profile, other_sae):
        FeatureEdit.objects.create(profile=profile, feature=other_sae.features.get(index=0), unit="raw")
        assert refused(profile) == "The SAE other-sae does not belong to the model tiny."

    def test_missing_sae(self, profile, sae):
        shutil.rmtree(sae.source)
        with pytest.raises(
            SAEUnavailableError, match=r"The SAE tiny-sae cannot be used: The directory .* does not exist"
        ):
            services.publish_profile(profile=profile)
        assert not ProfileVersion.objects.exists()

    def test_sae_whose_files_were_exchanged(self, profile, sae):
        write_sae(Path(sae.source), weights=random_weights(3))
        with pytest.raises(SAEUnavailableError, match="have changed since it was registered"):
            services.publish_profile(profile=profile)

    def test_vector(self, model, sae):
        profile = services.create_profile(
            name="v", model=model, edits=[vector_edit([1.0] * 12, 0.5, unit="resid_norm")]
        )
        (edit,) = parse_edits(services.publish_profile(profile=profile).edits)
        assert isinstance(edit.target, VectorTarget)
        assert edit.push == pytest.approx(0.5)

    def test_vector_takes_the_norm_measured_at_its_site(self, profile, sae):
        profile.edits.all().delete()
        vector = {"layer": 1, "site": "resid_post", "values": [3.0, 4.0, *[0.0] * 10]}
        FeatureEdit.objects.create(profile=profile, vector=vector, unit="resid_norm", strength=0.25)
        assert edit_of(profile.edits.get()).raw == pytest.approx(0.25 * 20 / 5)

    @pytest.mark.parametrize("vector", [[], 3, {"layer": [1]}, {"layer": 1, "values": ["x"]}, {"layer": 1, "site": {}}])
    def test_vector_of_nonsense(self, vector, profile):
        FeatureEdit.objects.create(profile=profile, vector=vector, unit="raw")
        assert "edits[1].vector" in refused(profile)


class TestImmutability:
    @pytest.fixture
    def version(self, profile):
        return services.publish_profile(profile=profile, note="As it was.")

    def test_model_refuses_changes(self, version):
        version.note = "Different."
        with pytest.raises(ValidationError, match="never changed"):
            version.save()
        with pytest.raises(ValidationError, match="never changed"):
            version.delete()

    def test_query_set_refuses_changes(self, version):
        for change in (
            lambda: ProfileVersion.objects.update(note="Different."),
            lambda: ProfileVersion.objects.all().delete(),
            lambda: ProfileVersion.objects.bulk_update([version], ["note"]),
        ):
            with pytest.raises(ValidationError, match="never changed"):
                change()

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE steering_profileversion SET note = 'x'",
            "UPDATE steering_profileversion SET edits = '[]'",
            "UPDATE steering_profileversion SET number = 7",
            "UPDATE steering_profileversion SET published_by_id = published_by_id, fingerprint = ''",
            "DELETE FROM steering_profileversion",
        ],
    )
    def test_database_refuses_changes(self, statement, version):
        with pytest.raises(DatabaseError, match="never changed"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)

    @pytest.mark.parametrize("statement", ["TRUNCATE {} CASCADE", "TRUNCATE steering_steeringprofile CASCADE"])
    def test_database_refuses_to_empty_the_table(self, statement, version):
        table = "steering_profileversion"
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
                cursor.execute(statement.format(table))
        assert ProfileVersion.objects.get() == version

    def test_published_profile_cannot_be_deleted(self, version, profile):
        with pytest.raises(ProtectedError):
            profile.delete()

    def test_deleting_its_publisher_leaves_the_version(self, profile, researcher):
        services.publish_profile(profile=profile, user=researcher)
        researcher.delete()
        assert ProfileVersion.objects.get().published_by is None

    def test_its_saes_cannot_be_deleted(self, version, sae):
        FeatureEdit.objects.all().delete()
        with pytest.raises(ProtectedError):
            sae.delete()
        assert VersionSAE.objects.get().sae == sae


class TestNewDraft:
    def test_is_what_the_version_was(self, profile):
        version = services.publish_profile(profile=profile)
        profile.edits.update(strength=2.0, operation="clamp")
        add_edit(profile)
        services.new_draft_from(version=version)
        edit = profile.edits.get()
        assert (edit.feature.index, edit.operation, edit.strength, edit.unit) == (0, "add", 0.5, "max_act")

    def test_publishing_it_again_gives_the_old_effect(self, profile):
        first = services.publish_profile(profile=profile)
        profile.edits.update(strength=2.0)
        services.publish_profile(profile=profile)
        services.new_draft_from(version=first)
        third = services.publish_profile(profile=profile)
        assert (third.number, third.fingerprint) == (3, first.fingerprint)

    def test_keeps_the_effect_when_statistics_have_changed(self, profile, feature):
        version = services.publish_profile(profile=profile)
        Feature.objects.filter(pk=feature.pk).update(max_activation=100.0)
        services.new_draft_from(version=version)
        edit = profile.edits.get()
        assert (edit.strength, edit.unit) == (2.0, "raw")

    def test_every_condition_survives(self, profile, sae):
        one, other = (feature_target(sae.features.get(index=index)) for index in (0, 1))
        gate = GateSpec(other, 0.5, "raw")
        edits = [
            EditSpec(one, "clamp", 2.0, "raw", window=Window(2, 9), gate=gate, only_if_active=True),
            vector_edit([2.0] * 12, phase="generation", scope="thinking", window=Window(2)),
            EditSpec(other, "projection_cap", 2.0, "raw", lower=-1.0, special_tokens=True, window=Window(4)),
            vector_edit([1.0] * 12, operation="orthogonal", window=Window(first=3)),
            keep_norm(phase="generation"),
        ]
        services.replace_draft(profile=profile, edits=edits)
        version = services.publish_profile(profile=profile)
        assert version.edits == edits_to_json(edits)
        services.new_draft_from(version=version)
        assert draft_edits(profile) == tuple(edits)
        assert {link.sae for link in version.sae_links.all()} == {sae}

    def test_a_gate_keeps_its_threshold_when_statistics_have_changed(self, profile, sae):
        one, other = (feature_target(sae.features.get(index=index)) for index in (0, 1))
        gate = GateSpec(replace(other, scales=replace(other.scales, max_activation=16.0)), 0.5, "max_act")
        services.replace_draft(profile=profile, edits=[EditSpec(one, "clamp", 2.0, "raw", gate=gate)])
        (edit,) = draft_edits(profile)
        assert edit.gate is not None
        assert (edit.gate.raw, edit.gate.unit) == (8.0, "raw")

    def test_the_sae_of_a_gate_cannot_be_deleted(self, profile, sae):
        profile.edits.update(feature=None, vector={"layer": 1, "values": [1.0] * 12}, unit="raw")
        profile.edits.update(gate_feature=sae.features.get(index=1), gate_unit="raw")
        with pytest.raises(InUseError, match="used by the draft of gloomy"):
            services.delete_sae(sae=sae)

    def test_vectors_survive(self, model):
        profile = services.create_profile(name="v", model=model, edits=[vector_edit([1.0] * 12)])
        version = services.publish_profile(profile=profile)
        services.new_draft_from(version=version)
        assert draft_edits(profile) == parse_edits(version.edits)


class TestDuplicate:
    def test_copies_the_draft_only(self, profile, researcher):
        services.publish_profile(profile=profile)
        copy = services.duplicate_profile(profile=profile, name="gloomier", user=researcher)
        assert (copy.owner, copy.description, copy.versions.count()) == (researcher, "Sad weather.", 0)
        assert draft_edits(copy) == draft_edits(profile)
        assert profile.edits.count() == 1

    @pytest.mark.parametrize("name", ["gloomy", "", "not a slug", "x" * 101])
    def test_name(self, name, profile):
        with pytest.raises(ValidationError):
            services.duplicate_profile(profile=profile, name=name)


def test_draft_with_features_that_are_gone(profile, sae):
    version = services.publish_profile(profile=profile)
    edits = json.loads(json.dumps(version.edits).replace(sae.checksum, "0" * 64))
    with pytest.raises(InvalidProfileError, match="has no SAE tiny-sae with this checksum and feature 0"):
        services.replace_draft(profile=profile, edits=parse_edits(edits))
    assert profile.edits.count() == 1
