"""The same bad profiles at every door: the admin, a request's own steering, a file, a command. Nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.urls import reverse

from inference.models import LanguageModel
from steering import services
from steering.errors import InlineSteeringError, SAEUnavailableError
from steering.exchange.exports import draft_document
from steering.models import SAE, FeatureEdit, ProfileVersion, SteeringProfile
from steering.profiles.resolver import SteeringSelection
from steering.profiles.snapshot import registered_saes
from tests.steering.pages import page, said
from tests.steering.resolving import local_resolver

pytestmark = pytest.mark.django_db(transaction=True)  # requests read in threads of their own
PUBLISH = "admin:steering_steeringprofile_publish"
CHANGE = "admin:steering_steeringprofile_change"
NAN, INF = float("nan"), float("inf")
NUMBERS: tuple[Any, ...] = (NAN, INF, -INF, 1e30, 10**400, "2", True, [1], {})
INDICES: tuple[Any, ...] = (-1, 40, 1.5, "3", True, 10**9, 10**400, [0], None)


def inline(features: Any) -> InlineSteeringError:
    """What a request with this steering is refused with."""
    resolver = local_resolver()
    with pytest.raises(InlineSteeringError) as caught:
        async_to_sync(resolver.steer)(
            "tiny", SteeringSelection(inline={"features": features}), special_token_ids=frozenset()
        )
    assert caught.value.status == 400
    return caught.value


def imported(document: object, folder: Path) -> str:
    """What the import of a file is refused with."""
    path = folder / "bad.json"
    path.write_text(json.dumps(document))
    before = SteeringProfile.objects.count()
    with pytest.raises(CommandError) as caught:
        call_command("import_profile", path, model="tiny", name="bad")
    assert SteeringProfile.objects.count() == before
    return str(caught.value)


def posted(admin: Any, profile: SteeringProfile, **fields: object) -> str:
    """The form of a draft, sent with a bad edit."""
    edit = profile.edits.get()
    form = {"id": edit.pk, "feature": edit.feature_id, "operation": "add", "strength": "0.5", "unit": "max_act"}
    data: dict[str, object] = {"name": profile.name, "description": "", "edits-2-TOTAL_FORMS": 0}
    data |= {"edits-TOTAL_FORMS": 1, "edits-INITIAL_FORMS": 1, "edits-2-INITIAL_FORMS": 0}
    data |= {f"edits-0-{name}": value for name, value in (form | {"phase": "both"} | fields).items()}
    response = admin.post(reverse(CHANGE, args=[profile.pk]), data)
    assert response.status_code == 200
    assert profile.edits.get().strength == 0.5
    return str(response.content.decode())


@pytest.fixture
def document(profile: SteeringProfile) -> dict[str, Any]:
    return draft_document(profile)


def with_edit(document: dict[str, Any], **fields: object) -> dict[str, Any]:
    """With the only edit changed, and without the fingerprint that would give it away."""
    one = document["profiles"][0]
    content = {name: value for name, value in one.items() if name != "fingerprint"}
    return {**document, "profiles": [content | {"edits": [one["edits"][0] | fields]}]}


class TestStrengths:
    @pytest.mark.parametrize("strength", NUMBERS, ids=repr)
    def test_requests(self, strength, sae):
        error = inline([{"index": 0, "strength": strength}])
        assert (error.param, error.code) == ("steering.features[0].strength", "invalid_value")

    @pytest.mark.parametrize("strength", NUMBERS[3:], ids=repr)
    def test_files(self, strength, document, tmp_path):
        assert "file.profiles[0].edits[0].strength: Expected" in imported(
            with_edit(document, strength=strength), tmp_path
        )

    @pytest.mark.parametrize("strength", NUMBERS[:3], ids=repr)
    def test_files_cannot_even_say_what_is_not_finite(self, strength, document, tmp_path):
        assert "is not valid JSON; use a finite number" in imported(with_edit(document, strength=strength), tmp_path)

    @pytest.mark.parametrize("strength", ["nan", "inf", "1e30", "x", "", "2" * 400])
    def test_admin(self, strength, admin, profile):
        assert "errorlist" in posted(admin, profile, strength=strength)

    @pytest.mark.parametrize("strength", [NAN, INF, 1e5])
    def test_what_got_into_the_database_is_not_published(self, strength, admin, profile):
        profile.edits.update(strength=strength)
        assert "can't be published" in page(admin, PUBLISH, profile.pk)
        with pytest.raises(CommandError, match="strength"):
            call_command("publish_profile", "gloomy", model="tiny")
        assert not ProfileVersion.objects.exists()


class TestFeatures:
    @pytest.mark.parametrize("index", INDICES, ids=lambda index: str(index)[:9])
    def test_requests(self, index, sae):
        error = inline([{"index": index}])
        assert (error.param, error.code) == ("steering.features[0].index", "invalid_feature")
        assert "0 to 39" in error.message  # how many the SAE has

    @pytest.mark.parametrize("index", INDICES, ids=lambda index: str(index)[:9])
    def test_files(self, index, document, tmp_path):
        feature = document["profiles"][0]["edits"][0]["feature"]
        text = imported(with_edit(document, feature=feature | {"index": index}), tmp_path)
        assert "file.profiles[0].edits[0].feature.index: Expected an integer" in text

    def test_a_million_of_them(self, sae, document, tmp_path):
        assert "1 to 64" in inline([{"index": 0}] * 10**6).message
        one = document["profiles"][0]
        many = {**document, "profiles": [one | {"edits": one["edits"] * 257}]}
        assert "at most 256 edits" in imported(many, tmp_path)

    def test_admin(self, admin, profile, other_sae):
        for feature in (other_sae.features.get(index=0).pk, 10**9, "x", ""):
            assert "errorlist" in posted(admin, profile, feature=feature)


class TestSAEs:
    @pytest.mark.parametrize("name", ["nope", "other-sae", "", "a" * 10_000, 3, None])
    def test_requests(self, name, sae, other_sae):
        SAE.objects.create(
            name="second", model=sae.model, source="/x", format="saelens", architecture="relu", layer=2, d_in=12,
            d_sae=40, checksum="f" * 64,
        )  # fmt: skip
        registered_saes.invalidate()
        error = inline([{"index": 0, "sae": name}])
        assert (error.param, error.code) == ("steering.features[0].sae", "sae_not_found")
        assert "second, tiny-sae" in error.message

    def test_files_of_another_models_sae(self, document, other_model, tmp_path):
        path = tmp_path / "bad.json"
        path.write_text(json.dumps(document))
        with pytest.raises(CommandError, match="The model other has no SAE tiny-sae with this checksum"):
            call_command("import_profile", path, model="other")

    def test_publishing_while_the_files_are_missing_or_changed(self, admin, profile, sae):
        weights = Path(sae.source) / "sae_weights.safetensors"
        kept = weights.read_bytes()
        for damage in (lambda: weights.write_bytes(kept[:-4] + b"\0\0\0\1"), weights.unlink):
            damage()
            with pytest.raises(CommandError, match="The SAE tiny-sae cannot be used"):
                call_command("publish_profile", "gloomy", model="tiny")
            assert "tiny-sae cannot be used" in said(admin.post(reverse(PUBLISH, args=[profile.pk]), {"note": "x"}))
        assert not ProfileVersion.objects.exists()
        weights.write_bytes(kept)
        assert services.publish_profile(profile=profile)

    def test_requests_while_the_files_are_missing(self, profile, sae):
        services.publish_profile(profile=profile)
        (Path(sae.source) / "sae_weights.safetensors").unlink()
        resolver = local_resolver()
        with pytest.raises(SAEUnavailableError) as caught:
            async_to_sync(resolver.resolve)("tiny", "gloomy", special_token_ids=frozenset())
        assert (caught.value.status, caught.value.code) == (409, "sae_mismatch")

    def test_pages_say_so_while_the_files_are_missing(self, admin, profile, sae):
        version = services.publish_profile(profile=profile)
        pages = (
            reverse("admin:steering_steeringprofile_changelist"),
            reverse("admin:steering_profileversion_change", args=[version.pk]),
        )
        for damaged in (False, True):
            if damaged:
                (Path(sae.source) / "sae_weights.safetensors").unlink()
            for url in pages:
                html = admin.get(url).content.decode()
                assert ("Requests are refused: the SAE tiny-sae cannot be used." in html) is damaged


class TestContent:
    def test_empty_profiles(self, admin, model, document, tmp_path):
        empty = services.create_profile(name="empty", model=model)
        assert "has no edits" in page(admin, PUBLISH, empty.pk)
        with pytest.raises(CommandError, match="has no edits; add at least one"):
            call_command("publish_profile", "empty", model="tiny")
        assert "has no edits" in imported({**document, "profiles": [{"name": "x", "edits": []}]}, tmp_path)
        assert inline([]).param == "steering.features"

    def test_contradictions(self, admin, profile, feature, document, tmp_path):
        FeatureEdit.objects.create(profile=profile, feature=feature, operation="clamp", strength=1)
        assert "contradict each other" in page(admin, PUBLISH, profile.pk)
        with pytest.raises(CommandError, match=r"edits\[1\]: .*contradict each other"):
            call_command("publish_profile", "gloomy", model="tiny")
        error = inline([{"index": 0}, {"index": 0, "operation": "clamp"}])
        assert (error.param, error.code) == ("steering.features[1]", "contradictory_edits")
        one = document["profiles"][0]
        twice = {**document, "profiles": [one | {"edits": one["edits"] * 2}]}
        assert "file.profiles[0].edits[1]: " in imported(twice, tmp_path)


class TestDeleting:
    """What a version needs stays."""

    def test_in_the_admin(self, admin, profile, sae, model):
        services.publish_profile(profile=profile)
        for name, row in (
            ("steering_sae", sae),
            ("steering_steeringprofile", profile),
            ("inference_languagemodel", model),
        ):
            response = admin.post(reverse(f"admin:{name}_delete", args=[row.pk]), {"post": "yes"})
            assert response.status_code in (200, 403), name
            assert type(row)._default_manager.filter(pk=row.pk).exists()
        assert LanguageModel.objects.count() == SAE.objects.count() == SteeringProfile.objects.count() == 1

    def test_many_at_once(self, admin, profile, sae):
        services.publish_profile(profile=profile)
        for name, row in (("steering_sae", sae), ("steering_steeringprofile", profile)):
            data = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
            assert admin.post(reverse(f"admin:{name}_changelist"), data).status_code in (200, 302)
        assert ProfileVersion.objects.filter(saes=sae).exists()
