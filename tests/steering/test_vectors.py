"""Registered vectors: what files become, profiles that use them, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from audit.models import AuditEvent
from inference.interventions import Site
from steering import services
from steering.errors import IncompatibleSAEError, InUseError, InvalidProfileError
from steering.exchange.exports import draft_document
from steering.exchange.imports import ImportOptions, import_profiles, plan_import
from steering.features.drawing import centred_row
from steering.models import FeatureEdit, PlainVector, SteeringProfile, VectorSet, VersionVector
from steering.profiles import lifecycle
from steering.profiles.compilation import get_compiler
from steering.profiles.drafts import draft_edits
from steering.profiles.inline_edits import read_short_edits
from steering.profiles.snapshot import source_of
from steering.spec.wording import describe_edit
from steering.vectors.dashboard import vector_url
from steering.vectors.services import NewVector, delete_vectors, save_vectors
from tests.steering.edits import keep_norm, vector_edit
from tests.steering.pages import page, said, staff
from tests.steering.sae_files import D_IN
from tests.steering.test_sae_vectors import gguf

ADD = "admin:steering_vectorset_add"
SET = "admin:steering_vectorset_change"
DELETE = "admin:steering_vectorset_delete"
PROFILE = "admin:steering_steeringprofile_change"


def directions(*layers: int) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(1)
    return {layer: rng.normal(size=D_IN).astype(np.float32) for layer in layers}


@pytest.fixture
def calm(model) -> VectorSet:
    found = [NewVector(Site(layer), tuple(values.tolist())) for layer, values in directions(0, 2).items()]
    return save_vectors(name="calm", model=model, vectors=found, origin="calm.npz")


@pytest.fixture
def using(profile: SteeringProfile, calm: VectorSet) -> SteeringProfile:
    """A feature and a registered vector in one draft."""
    FeatureEdit.objects.create(profile=profile, plain_vector=calm.vectors.get(layer=2), strength=0.5, unit="raw")
    return profile


def upload(client: Client, data: bytes, name: str, model: Any, **fields: object) -> Any:
    form = {"name": "calm", "model": model.pk, "description": "", "file": SimpleUploadedFile(name, data)}
    return client.post(reverse(ADD), form | fields)


class TestPage:
    """Lens and texts need an engine or a real model: tests/e2e/test_vector_page.py."""

    def test_shows_one_vector_of_the_set_with_its_place(self, admin, calm):
        html = page(admin, SET, calm.pk)
        assert "Steering vector, layer 0 (resid_post)" in html
        second = calm.vectors.get(layer=2)
        html = admin.get(vector_url(second)).content.decode()
        assert "Steering vector, layer 2 (resid_post)" in html
        assert f'?vector={second.pk}" aria-current="page"' in html
        for wrong in ("x", "-1", str(10**20), "\0"):
            assert "layer 0 (resid_post)" in admin.get(reverse(SET, args=[calm.pk]), {"vector": wrong}).content.decode()

    def test_the_panel_begins_with_the_vector(self, admin, calm):
        PlainVector.objects.filter(layer=2).update(reference_norm=20.0)
        edits = [json.loads(admin.get(vector_url(one)).context["try_json"])["edit"] for one in calm.vectors.all()]
        viewer = User.objects.get(is_superuser=True)
        assert [(edit["set"], edit["layer"], edit["unit"], edit["strength"]) for edit in edits] == [
            ("calm", 0, "raw", 1.0),
            ("calm", 2, "resid_norm", 0.1),
        ]
        for edit in edits:
            assert len(read_short_edits(calm.model, [edit], viewer=viewer)) == 1

    def test_similar_directions_of_the_nearest_sae_and_of_other_vectors(self, admin, calm, sae, model):
        row = get_compiler().sae(source_of(sae)).weights.W_dec[1]
        near = [NewVector(Site(1), tuple((2 * row).tolist()))]
        found = save_vectors(name="cats", model=model, vectors=near, origin="a row of the SAE")
        html = page(admin, "admin:steering_vectorset_neighbours", found.vectors.get().pk)
        assert re.search(r"#1 cats and kittens</a></td><td>1.00<", html)
        assert [text in html for text in ("calm at layer 0", "calm at layer 2", "cats at")] == [True, True, False]

    def test_nothing_is_near_where_no_sae_writes(self, admin, model, sae):
        heads = [NewVector(Site(0, "attn_out"), tuple(range(1, D_IN + 1)))]
        found = save_vectors(name="heads", model=model, vectors=heads, origin="heads.npz").vectors.get()
        assert "No SAE of this model writes where" in page(admin, "admin:steering_vectorset_neighbours", found.pk)
        lens = page(admin, "admin:steering_vectorset_lens", found.pk)
        assert "This direction is not one of the residual" in lens

    def test_profiles_that_use_it(self, admin, using, calm, django_assert_max_num_queries):
        vector = calm.vectors.get(layer=2)
        url = vector_url(vector)
        assert "No profile steers with this vector yet." in page(admin, SET, calm.pk)
        assert "gloomy (draft)" in admin.get(url).content.decode()
        services.publish_profile(profile=using)
        html = admin.get(url).content.decode()
        assert re.search(r"gloomy@1</a></dt><dd>add 0.5", html)
        with django_assert_max_num_queries(30):
            admin.get(url)

    def test_profiles_of_others_are_not_named(self, using, calm):
        SteeringProfile.objects.update(owner=User.objects.create_user("rita"))
        client = staff("view_vectorset", "view_steeringprofile", "view_profileversion")
        html = client.get(vector_url(calm.vectors.get(layer=2))).content.decode()
        assert "calm" in html
        assert "gloomy" not in html

    def test_a_vector_of_somebody_else_is_absent(self, calm):
        VectorSet.objects.update(created_by=User.objects.create_user("rita"))
        client = staff("view_vectorset", "view_feature")
        pk = calm.vectors.get(layer=2).pk
        for name in ("lens", "neighbours", "test"):
            assert client.get(reverse(f"admin:steering_vectorset_{name}", args=[pk])).status_code == 404

    def test_a_text_needs_the_permission_to_generate(self, admin, calm):
        url = reverse("admin:steering_vectorset_test", args=[calm.vectors.first().pk])
        assert "steering-note" in admin.get(url, {"text": "rain"}).content.decode(), "this process has no engine"
        client = staff("view_vectorset")
        assert client.get(url, {"text": "rain"}).status_code == 403
        assert 'id="try"' not in client.get(vector_url(calm.vectors.first())).content.decode()

    def test_a_text_is_coloured_where_it_is_above_its_mean(self):
        row = centred_row(["a", "b", "\n"], [-5.0, -1.0, -3.0])
        assert [(token.text, token.heat) for token in row.tokens] == [("a", 0), ("b", 9), ("⏎", 0)]
        assert row.max_value == -1.0


class TestFiles:
    def test_repeng_gguf_in_the_admin(self, admin, model):
        assert upload(admin, gguf(directions(0, 2)), "calm.gguf", model).status_code == 302
        saved = VectorSet.objects.get()
        assert (saved.origin, str(saved.created_by), len(saved.checksum)) == ("calm.gguf", "admin", 64)
        for vector in saved.vectors.all():
            np.testing.assert_array_equal(np.float32(vector.values), directions(0, 2)[vector.layer])
            assert vector.norm == pytest.approx(np.linalg.norm(vector.values))
        html = page(admin, SET, saved.pk)
        assert "layer 0, residual after the layer" in html
        second = saved.vectors.get(layer=2)
        assert f"{second.norm:.4g}" in admin.get(vector_url(second)).content.decode()
        page(admin, "admin:steering_vectorset_changelist")
        assert AuditEvent.objects.get(action="vectors").detail == "added: 2 from calm.gguf"

    def test_push_is_known_where_the_residual_was_measured(self, admin, calm, sae):
        vector = calm.vectors.get(layer=2)
        shown = f"<dd>{vector.norm / 20:.3g} × residual norm</dd>"
        assert shown not in admin.get(vector_url(vector)).content.decode()
        PlainVector.objects.filter(layer=2).update(reference_norm=20.0)
        assert shown in admin.get(vector_url(vector)).content.decode()

    @pytest.mark.parametrize(
        ("data", "name", "message"),
        [
            (b"", "calm.gguf", "file is empty"),
            (b"GGUF", "calm.gguf", "not a valid GGUF file"),
            (b"x" * 100, "calm.npz", "not a valid npz file"),
            (b"x" * 100, "calm.safetensors", "calm|vectors.safetensors"),
            (b"x", "calm.pt", "The file name must end with one of"),
            (b"x", "calm", "The file name must end with one of"),
            (gguf({0: np.ones(D_IN + 1, np.float32)}), "calm.gguf", "13 values, but tiny has 12"),
            (gguf({3: np.ones(D_IN, np.float32)}), "calm.gguf", "has layers 0 to 2, got layer 3"),
            (gguf({0: np.full(D_IN, np.nan, np.float32)}), "calm.gguf", "not finite"),
            (gguf({0: np.zeros(D_IN, np.float32)}), "calm.gguf", "must not be zero"),
            (gguf({0: np.full(D_IN, 1e7, np.float32)}), "calm.gguf", "too large"),
            (gguf(architecture="llama"), "calm.gguf", "not a control vector"),
        ],
    )
    def test_bad_files_are_refused_beside_the_field(self, data, name, message, admin, model):
        response = upload(admin, data, name, model)
        assert response.status_code == 200
        errors = " ".join(response.context["adminform"].form.errors["file"])
        assert any(part in errors for part in message.split("|"))
        assert not VectorSet.objects.exists()

    def test_a_vector_without_a_layer_needs_one(self, admin, model, tmp_path):
        np.savez(tmp_path / "v.npz", direction=np.ones(D_IN, np.float32))
        data = (tmp_path / "v.npz").read_bytes()
        assert "give the layer" in upload(admin, data, "v.npz", model).content.decode()
        assert upload(admin, data, "v.npz", model, layer="1").status_code == 302
        assert PlainVector.objects.get().place == Site(1)

    def test_command(self, model, tmp_path, capsys):
        path = tmp_path / "calm.gguf"
        path.write_bytes(gguf(directions(0, 2)))
        call_command("add_vectors", "calm", path, model="tiny")
        assert "Registered calm with 2 vectors." in capsys.readouterr().out
        with pytest.raises(CommandError, match="already exists"):
            call_command("add_vectors", "calm", path, model="tiny")
        for options, message in (
            ({"name": "x", "file": path, "model": "none"}, "The model none does not exist"),
            ({"name": "x", "file": path, "model": "tiny", "layer": 1}, "no vector for layer 1"),
            ({"name": "a b", "file": path, "model": "tiny"}, "valid “slug”"),
            ({"name": "x", "file": Path("/no/such.npz"), "model": "tiny"}, "missing"),
            ({"name": "x", "file": Path("/dev/zero"), "model": "tiny"}, "zero"),
        ):
            with pytest.raises(CommandError, match=message):
                call_command("add_vectors", options.pop("name"), options.pop("file"), **options)

    def test_permissions(self, model):
        client = staff("view_vectorset")
        assert upload(client, gguf(directions(0)), "calm.gguf", model).status_code == 403


class TestUse:
    def test_beside_features_in_the_form(self, admin, profile, calm):
        vector = calm.vectors.get(layer=2)
        data: dict[str, object] = {
            "name": "gloomy",
            "description": "",
            "edits-TOTAL_FORMS": 1,
            "edits-INITIAL_FORMS": 1,
        }
        edit = profile.edits.get()
        form = {"id": edit.pk, "feature": edit.feature_id, "operation": "add", "strength": "0.5"}
        data |= {f"edits-0-{name}": value for name, value in form.items()}
        data |= {"edits-0-unit": "max_act", "edits-0-phase": "both"}
        form = {"plain_vector": vector.pk, "operation": "orthogonal", "strength": "0", "unit": "raw", "phase": "prompt"}
        data |= {"edits-2-TOTAL_FORMS": 1, "edits-2-INITIAL_FORMS": 0}
        data |= {f"edits-2-0-{name}": value for name, value in form.items()}
        assert admin.post(reverse(PROFILE, args=[profile.pk]), data).status_code == 302
        assert [describe_edit(edit) for edit in draft_edits(profile)] == [
            "tiny-sae #0 sad rainy weather: add 0.5 × max activation",
            "vector calm at layer 2 (resid_post): scale the direction by 0, prompt only",
        ]
        page(admin, PROFILE, profile.pk)

    def test_keeping_the_norm_needs_no_json(self, admin, profile):
        profile.edits.all().delete()
        data: dict[str, object] = {
            "name": "gloomy",
            "description": "",
            "edits-TOTAL_FORMS": 0,
            "edits-INITIAL_FORMS": 0,
        }
        form = {
            "operation": "norm_preserving",
            "norm_layer": "1",
            "norm_site": "mlp_out",
            "phase": "both",
            "unit": "raw",
        }
        data |= {"edits-2-TOTAL_FORMS": 1, "edits-2-INITIAL_FORMS": 0, "edits-2-0-strength": "1"}
        data |= {f"edits-2-0-{name}": value for name, value in form.items()}
        assert admin.post(reverse(PROFILE, args=[profile.pk]), data).status_code == 302
        assert FeatureEdit.objects.get().vector == {"layer": 1, "site": "mlp_out"}

    def test_a_reconstruction_needs_no_json(self, admin, profile, sae):
        profile.edits.all().delete()
        data: dict[str, object] = {"name": "gloomy", "description": ""}
        data |= {"edits-TOTAL_FORMS": 0, "edits-INITIAL_FORMS": 0}
        form = {"operation": "reconstruct", "sae": sae.pk, "phase": "prompt", "unit": "raw", "strength": "1"}
        data |= {"edits-2-TOTAL_FORMS": 1, "edits-2-INITIAL_FORMS": 0}
        data |= {f"edits-2-0-{name}": value for name, value in form.items()}
        assert admin.post(reverse(PROFILE, args=[profile.pk]), data).status_code == 302
        (of_form,) = draft_edits(profile)
        (of_api,) = read_short_edits(
            profile.model, [{"sae": sae.name, "operation": "reconstruct", "phase": "prompt", "unit": "raw"}]
        )
        assert of_form == of_api
        assert str(profile.edits.get()) == "replace by the reconstruction: tiny-sae"

        sae.name = "renamed"
        services.rename_sae(sae=sae)
        shown = admin.get(reverse(PROFILE, args=[profile.pk])).context["inline_admin_formsets"][1].formset.forms[0]
        assert (shown["sae"].value(), shown["vector"].value()) == (sae.pk, "null")
        assert services.publish_profile(profile=profile).saes.get() == sae

    def test_an_sae_that_a_draft_reconstructs_with_stays(self, profile, sae):
        edits = read_short_edits(profile.model, [{"sae": sae.name, "operation": "reconstruct"}])
        services.replace_draft(profile=profile, edits=edits)
        with pytest.raises(InUseError, match="used by the draft of gloomy"):
            services.delete_sae(sae=sae)
        profile.edits.all().delete()
        services.delete_sae(sae=sae)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"operation": "reconstruct"}, "needs an SAE."),
            ({"operation": "reconstruct", "sae": "0"}, "valid choice"),
            ({"operation": "reconstruct", "plain_vector": "calm"}, "needs an SAE, not a vector"),
            ({"operation": "reconstruct", "vector": '{"layer": 1}'}, "needs the SAE of the site"),
            ({}, "Choose a vector"),
            ({"plain_vector": "calm", "vector": '{"layer": 1, "values": [1]}'}, "not both"),
            ({"plain_vector": "calm", "operation": "norm_preserving"}, "needs a layer and a site"),
            ({"operation": "norm_preserving"}, "needs a layer"),
            ({"vector": '{"layer": 1, "values": ["NaN"]}'}, "Expected a number"),
            ({"vector": '{"layer": -1, "values": [1]}'}, "Expected an integer from 0"),
        ],
    )
    def test_what_is_missing_or_too_much_is_said(self, fields, message, admin, profile, calm):
        if "plain_vector" in fields:
            fields = fields | {"plain_vector": calm.vectors.first().pk}
        data: dict[str, object] = {
            "name": "gloomy",
            "description": "",
            "edits-TOTAL_FORMS": 0,
            "edits-INITIAL_FORMS": 0,
        }
        form = {"operation": "add", "strength": "2", "unit": "raw", "phase": "both", **fields}
        data |= {"edits-2-TOTAL_FORMS": 1, "edits-2-INITIAL_FORMS": 0}
        data |= {f"edits-2-0-{name}": value for name, value in form.items()}
        response = admin.post(reverse(PROFILE, args=[profile.pk]), data)
        assert message in response.content.decode()
        assert not FeatureEdit.objects.filter(feature=None).exists()

    def test_choosing_finds_those_of_the_model(self, admin, calm, other_model):
        params = {"app_label": "steering", "model_name": "featureedit", "field_name": "plain_vector", "term": "cal"}
        found = admin.get("/admin/autocomplete/", params | {"language_model": calm.model_id}).json()["results"]
        assert [row["text"] for row in found] == ["calm at layer 0 (resid_post)", "calm at layer 2 (resid_post)"]
        assert not admin.get("/admin/autocomplete/", params | {"language_model": other_model.pk}).json()["results"]

    def test_vector_of_another_model(self, other_model, profile, tmp_path):
        found = [NewVector(Site(0), (1.0,) * D_IN)]
        other = save_vectors(name="other", model=other_model, vectors=found, origin="x")
        edit = FeatureEdit(profile=profile, plain_vector=other.vectors.get(), unit="raw")
        with pytest.raises(Exception, match="belongs to the model other"):
            edit.full_clean()

    def test_exactly_one_target(self, profile, calm, feature):
        with pytest.raises(IntegrityError), transaction.atomic():
            FeatureEdit.objects.create(profile=profile, feature=feature, plain_vector=calm.vectors.first())

    def test_version_holds_the_numbers(self, using, calm):
        version = services.publish_profile(profile=using)
        vector = version.edits[1]["vector"]
        assert vector["name"] == "calm"
        assert tuple(vector["values"]) == calm.vectors.get(layer=2).values
        assert VersionVector.objects.get().vector.layer == 2

    def test_draft_from_a_version_refers_to_the_set_again(self, using, calm):
        version = services.publish_profile(profile=using)
        services.replace_draft(profile=using, edits=())
        services.new_draft_from(version=version)
        assert using.edits.get(feature=None).plain_vector == calm.vectors.get(layer=2)

    def test_files_carry_the_numbers_along(self, using, calm, model):
        document = draft_document(using)
        services.replace_draft(profile=using, edits=())
        delete_vectors(vector_set=calm)
        options = ImportOptions(model, replaces=True)
        import_profiles(plan=plan_import(json.dumps(document).encode(), "x.json", options), options=options)
        assert using.edits.get(feature=None).vector["name"] == "calm"
        assert draft_document(using) == document


class TestDeleting:
    def test_what_a_draft_needs_stays(self, using, calm):
        with pytest.raises(InUseError, match="used by the draft of gloomy"):
            delete_vectors(vector_set=calm)

    def test_what_a_version_needs_stays(self, admin, using, calm):
        version = services.publish_profile(profile=using)
        services.replace_draft(profile=using, edits=())
        with pytest.raises(InUseError, match="used by the published profile gloomy@1"):
            delete_vectors(vector_set=calm)
        html = admin.post(reverse(DELETE, args=[calm.pk]), {"post": "yes"}).content.decode()
        assert "used by the published profile gloomy@1" in html
        assert VectorSet.objects.exists()
        assert version.vector_links.count() == 1

    def test_rolled_back_versions_need_them_too(self, using, calm):
        first = services.publish_profile(profile=using)
        using.edits.filter(feature=None).delete()
        services.publish_profile(profile=using)
        assert lifecycle.roll_back(version=first).vector_links.get().vector.vector_set == calm

    def test_unused_ones_go(self, admin, calm):
        response = admin.post(reverse(DELETE, args=[calm.pk]), {"post": "yes"})
        assert "was deleted" in said(response)
        assert not PlainVector.objects.exists()


class TestPublishing:
    @pytest.mark.parametrize(
        ("edit", "message"),
        [
            (vector_edit([1.0] * 11), "The vector has 11 values, but the model has 12"),
            (vector_edit([1.0] * D_IN, site=Site(3)), "has layers 0 to 2, got layer 3"),
            (keep_norm(Site(7, "mlp_out")), "has layers 0 to 2, got layer 7"),
        ],
    )
    def test_what_does_not_fit_the_model_is_named(self, edit, message, model):
        profile = services.create_profile(name="odd", model=model, edits=[edit])
        with pytest.raises(InvalidProfileError, match=message):
            services.publish_profile(profile=profile)

    def test_model_without_its_files(self, using, model, tmp_path):
        model.source = str(tmp_path / "gone")
        model.save()
        with pytest.raises(InvalidProfileError, match="could not be checked against the model"):
            services.publish_profile(profile=SteeringProfile.objects.get())


def test_other_widths_are_refused(model):
    with pytest.raises(IncompatibleSAEError, match="3 values, but tiny has 12"):
        save_vectors(name="x", model=model, vectors=[NewVector(Site(0), (1.0, 2.0, 3.0))], origin="x")
