"""Profiles as files: what goes out comes back, and what other tools write has the effect that it has there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from audit.models import AuditEvent
from inference.interventions import ReaderEdit, VectorEdit
from inference.models import LanguageModel
from steering import services
from steering.compiler import compile_edits
from steering.exchange.documents import MAX_BYTES, MAX_DEPTH, read_document
from steering.exchange.exports import draft_document, version_document
from steering.exchange.formats import FORMATS, format_of
from steering.exchange.imports import ImportOptions, import_profiles, plan_import
from steering.exchange.plan import ImportPlan
from steering.models import SAE, FeatureEdit, SteeringProfile
from steering.profiles.drafts import draft_edits, feature_target
from steering.sae_registry.registration import SAELocation
from steering.saes.loader import load_sae
from steering.spec.edit import EditSpec, FeatureTarget
from steering.spec.errors import InvalidSpecError
from steering.spec.rendering import fingerprint
from tests.steering.edits import keep_norm, vector_edit
from tests.steering.sae_files import D_IN, random_weights, sae_config, write_sae

NEURONPEDIA: dict[str, Any] = {
    "prompt": "Once", "modelId": "tiny", "temperature": 0.5,
    "strength_multiplier": 4, "steer_method": "SIMPLE_ADDITIVE",
    "features": [{"modelId": "tiny", "layer": "1-res-jb", "index": 3, "strength": 0.5}],
    "steer_special_tokens": True,
}  # fmt: skip
GOODFIRE: dict[str, Any] = {
    "base_model": "meta-llama/Llama-3.3-70B-Instruct", "scopes": [],
    "edits": [{"feature_id": "a1", "feature_label": "pirates", "index_in_sae": 0, "value": 0.5}],
}  # fmt: skip
MILLM_V1: dict[str, Any] = {
    "version": "1.0", "type": "millm_profile", "exported_at": "2026-01-30T12:00:00Z", "exported_from": "miLLM v1.0",
    "profile": {"name": "Yelling Demo", "description": "Capitals.", "model": "tiny", "sae": "tiny-sae", "layer": 1,
                "steering": {"3": 5.0, "7": -3.0}},
}  # fmt: skip
CLUSTER: dict[str, Any] = {
    "kind": "mistudio.cluster-definition", "schema_version": "1", "name": "Sea & shore", "narrative": "Waves.",
    "model": {"hf_id": "org/tiny"}, "provenance": {"mistudio_version": "1"},
    "sae": {"layer": 1, "hook_type": "resid_post", "n_features": 40, "d_model": 12, "source_hint": "hf:org/saes"},
    "members": [{"feature_idx": 3, "label": "waves", "strength": 2.0, "sign": -1, "similarity": 0.5},
                {"feature_idx": 7, "strength": -3.0, "sign": -1}],
    "budget": {"intensity": 0.5, "formula_id": "f"},
}  # fmt: skip
LM_EVAL = (
    "loader,action,sparse_model,hookpoint,feature_index,steering_coefficient,sae_id,description,\n"
    "sparsify,add,org/saes,layers.1,3,2.5,,,\n"
    "sae_lens,clamp,release,layers.1,7,1.5,layer_1/width_40/canonical,dogs,\n"
)


def plan(value: object, model: LanguageModel, name: str = "wave.json", **options: Any) -> ImportPlan:
    data = value if isinstance(value, bytes) else value if isinstance(value, str) else json.dumps(value)
    return plan_import(data if isinstance(data, bytes) else data.encode(), name, ImportOptions(model, **options))


def refused(value: object, model: LanguageModel, name: str = "wave.json", **options: Any) -> dict[str, str]:
    """Messages by path."""
    with pytest.raises(InvalidSpecError) as caught:
        plan(value, model, name, **options)
    return {problem.path: problem.message for problem in caught.value.problems}


def specs(found: ImportPlan) -> list[tuple[int, str, float, str, bool]]:
    """Of features: index, operation, strength, unit, special tokens."""
    return [
        (edit.target.index, edit.operation, edit.strength, edit.unit, edit.special_tokens)
        for edit in found.profiles[0].specs
        if isinstance(edit.target, FeatureTarget)
    ]


def changed(document: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {**document, **fields}


def feature(**fields: object) -> dict[str, object]:
    """One of Neuronpedia's; None takes a field away."""
    item = {"layer": "1-res", "index": 3, "strength": 1, **fields}
    return {name: value for name, value in item.items() if value is not None}


@pytest.fixture
def mixed(profile: SteeringProfile, sae: SAE) -> SteeringProfile:
    """Features, a gate, a vector and a site."""
    other = sae.features.get(index=1)
    FeatureEdit.objects.create(
        profile=profile, feature=other, operation="at_most", strength=0.25, gate_feature=sae.features.get(index=2),
        gate_above=0.5, after=2, first=9, only_if_active=True, special_tokens=True,
    )  # fmt: skip
    more = [vector_edit([0.5] * D_IN, strength=0.1 + 0.2), keep_norm()]
    services.replace_draft(profile=profile, edits=[*draft_edits(profile), *more])
    return profile


class TestOwnFormat:
    def test_draft_comes_back_with_the_same_effect(self, mixed, model):
        document = draft_document(mixed)
        assert document["profiles"][0]["edits"][0]["feature"]["sae"]["checksum"] == SAE.objects.get().checksum
        found = plan(document, model, name="x.json", replaces=True)
        (made,) = import_profiles(plan=found, options=ImportOptions(model, replaces=True))
        assert made == mixed
        assert draft_document(made) == document
        assert not found.doubts

    def test_version_has_what_was_published(self, mixed, model):
        version = services.publish_profile(profile=mixed, note="Äußerst traurig 😢")
        mixed.edits.all().delete()
        document = version_document(version)
        assert document["profiles"][0]["version"]["note"] == "Äußerst traurig 😢"
        found = plan(document, model, replaces=True)
        (made,) = import_profiles(plan=found, options=ImportOptions(model, replaces=True))
        assert fingerprint(draft_edits(made)) == version.fingerprint

    def test_folders_of_this_machine_are_not_told(self, profile):
        assert draft_document(profile)["profiles"][0]["model"] == {"name": "tiny"}

    def test_changed_edits_are_seen(self, profile, model):
        document = draft_document(profile)
        document["profiles"][0]["edits"][0]["strength"] = 0.75
        messages = refused(document, model, replaces=True)
        assert "have changed since the export" in messages["file.profiles[0].fingerprint"]
        del document["profiles"][0]["fingerprint"]
        assert plan(document, model, replaces=True).profiles[0].specs[0].strength == 0.75

    def test_sae_of_another_model_is_named(self, profile, other_sae, other_model):
        messages = refused(draft_document(profile), other_model)
        assert messages["file.profiles[0].edits[0].feature"] == (
            "The model other has no SAE tiny-sae with this checksum and feature 0."
        )

    def test_every_wrong_field_is_named(self, profile, model):
        document = draft_document(profile)
        edit = document["profiles"][0]["edits"][0]
        edit |= {"strength": "much", "phase": "later", "colour": "red"}
        edit["feature"]["index"] = 40
        assert set(refused(document, model, replaces=True)) == {
            f"file.profiles[0].edits[0].{name}" for name in ("strength", "phase", "colour", "feature.index")
        }

    def test_lies_about_an_sae_do_not_help(self, profile, model):
        document = draft_document(profile)
        document["profiles"][0]["edits"][0]["feature"] |= {"index": 4000}
        document["profiles"][0]["edits"][0]["feature"]["sae"] |= {"d_sae": 5000}
        del document["profiles"][0]["fingerprint"]
        assert "file.profiles[0].edits[0].feature" in refused(document, model, replaces=True)

    def test_later_versions_of_the_format(self, profile, model):
        messages = refused(changed(draft_document(profile), format_version=2), model, replaces=True)
        assert "Expected an integer from 1 to 1, got 2" in messages["file.format_version"]

    def test_one_bad_profile_keeps_back_all(self, profile, model):
        document = draft_document(profile)
        good = document["profiles"][0] | {"name": "good"}
        bad = {**good, "name": "bad", "edits": []}
        messages = refused({**document, "profiles": [good, {**bad, "fingerprint": ""}]}, model)
        assert "has no edits" in messages["file.profiles[1]"]
        assert refused({**document, "profiles": [good, good]}, model)["file.profiles[1].name"]
        assert refused({**document, "profiles": []}, model) == {"file": "The file contains no profiles."}
        assert SteeringProfile.objects.count() == 1

    def test_contradictions_are_named_by_their_place_in_the_file(self, profile, model):
        document = draft_document(profile)
        entry = document["profiles"][0]
        entry["edits"] = [entry["edits"][0], {**entry["edits"][0], "operation": "clamp"}]
        assert "contradict each other" in refused(document, model, replaces=True)["file.profiles[0].edits[1]"]

    def test_names_are_taken(self, profile, model):
        document = draft_document(profile)
        assert "has a profile gloomy" in refused(document, model)["file.profiles[0].name"]
        found = plan_import(json.dumps(document).encode(), "x.json", ImportOptions(model, name="calm"))
        assert found.profiles[0].name == "calm"


class TestForeignFormats:
    def test_millm_1(self, sae, model):
        found = plan(MILLM_V1, model)
        assert (found.format, found.profiles[0].name, found.profiles[0].description) == (
            "miLLM 1", "yelling-demo", "Capitals.",
        )  # fmt: skip
        assert specs(found) == [(3, "add", 5.0, "raw", True), (7, "add", -3.0, "raw", True)]

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_millm_1_as_its_api_answers(self, wrapped, sae, model):
        inner = {"version": "1.0", "name": "calm", "model_id": "tiny", "sae_id": "jb", "layer": 1, "steering": {"3": 2}}
        found = plan({"success": True, "data": inner, "error": None} if wrapped else inner, model)
        assert specs(found) == [(3, "add", 2.0, "raw", True)]
        assert any("is matched to tiny-sae" in doubt for doubt in found.doubts)

    def test_neuronpedia(self, sae, model):
        found = plan(NEURONPEDIA, model)
        assert specs(found) == [(3, "add", 2.0, "raw", True)]
        assert found.profiles[0].name == "wave"
        assert not any("temperature" in doubt for doubt in found.doubts)

    def test_neuronpedia_normalises_and_decomposes(self, sae, model):
        norm = sae.features.get(index=3).decoder_norm
        document = changed(NEURONPEDIA, normalize_steering=True, steer_special_tokens=False)
        assert specs(plan(document, model)) == [(3, "add", 2.0 / norm, "raw", False)]
        document = changed(NEURONPEDIA, steer_method="ORTHOGONAL_DECOMP")
        assert specs(plan(document, model)) == [(3, "orthogonal", 2.0, "raw", True)]

    def test_neuronpedia_vectors(self, sae, model):
        vector = {"steering_vector": [1.0] * D_IN, "strength": 0.5, "hook": "blocks.1.hook_resid_pre"}
        found = plan({"model": "tiny", "vectors": [vector], "strength_multiplier": 3}, model)
        (spec,) = found.profiles[0].specs
        assert (str(spec.target.site), spec.raw) == ("layers.1.resid_pre", 1.5)

    def test_goodfire(self, sae, model):
        assert "no SAE of the format goodfire" in refused(GOODFIRE, model)["file.base_model"]
        found = plan(GOODFIRE, model, sae=sae)
        assert specs(found) == [(0, "add", 0.5, "max_act", False)]
        assert any("does not document the unit of its values" in doubt for doubt in found.doubts)
        pinned = changed(GOODFIRE, edits=[{"index_in_sae": 0, "value": 0.5, "mode": "pin"}])
        assert specs(plan(pinned, model, sae=sae)) == [(0, "clamp", 0.5, "max_act", False)]
        assert "Conditional edits" in refused(changed(GOODFIRE, scopes=[{}]), model, sae=sae)["file.scopes"]

    def test_mistudio(self, sae, model):
        found = plan(CLUSTER, model)
        assert specs(found) == [(3, "add", -1.0, "raw", True), (7, "add", -1.5, "raw", True)]
        assert found.profiles[0].name == "sea-shore"
        assert any("intensity 0.5" in doubt for doubt in found.doubts)

    def test_mistudio_bundle(self, sae, model):
        bundle = {
            "kind": "mistudio.cluster-bundle", "schema_version": "1",
            "definitions": [CLUSTER, changed(CLUSTER, name="Two")],
        }  # fmt: skip
        assert [profile.name for profile in plan(bundle, model).profiles] == ["sea-shore", "Two"]
        with pytest.raises(InvalidSpecError, match="can only be set for a single one"):
            plan_import(json.dumps(bundle).encode(), "x.json", ImportOptions(model, name="calm"))

    @pytest.mark.parametrize(
        ("field", "value", "path"),
        [("n_features", 41, "file.sae"), ("d_model", 13, "file.sae"), ("layer", 2, "file.sae"),
         ("hook_type", "router", "file.sae.hook_type")],
    )  # fmt: skip
    def test_mistudio_of_another_sae(self, field, value, path, sae, model):
        document = changed(CLUSTER, sae={**CLUSTER["sae"], field: value})
        assert path in refused(document, model)

    def test_lm_eval_adds_as_the_harness_does(self, sae, model):
        """Its formulas, one row at a time: here, all rows at once read the same residual."""
        folder, weights = Path(sae.source), random_weights()
        h = np.random.default_rng(5).normal(size=(6, D_IN))
        add, clamp = plan(LM_EVAL, model, "steer.csv").profiles[0].specs
        assert np.allclose(effect(add, folder, h), h + 2.5 * weights["W_dec"][3], atol=1e-5)
        unit = weights["W_dec"][7] / np.linalg.norm(weights["W_dec"][7])
        shifted = h - weights["b_dec"]
        expected = shifted - np.outer(shifted @ unit, unit) + 1.5 * unit + weights["b_dec"]
        assert np.allclose(effect(clamp, folder, h), expected, atol=1e-5)

    def test_lm_eval_says_what_it_does_otherwise(self, sae, model):
        assert any("only the last row" in doubt for doubt in plan(LM_EVAL, model, "steer.csv").doubts)

    def test_steps_through_a_normalising_sae_are_refused(self, model, tmp_path):
        folder = write_sae(tmp_path / "norm", sae_config(normalize_activations="layer_norm"))
        services.register_sae(name="norm", model=model, location=SAELocation(str(folder)))
        assert "rescales its input (layer_norm)" in refused(NEURONPEDIA, model)["file.features[0].layer"]

    def test_two_saes_at_a_layer_have_to_be_chosen_from(self, sae, model, tmp_path):
        folder = write_sae(tmp_path / "second", weights=random_weights(4))
        second = services.register_sae(name="second", model=model, location=SAELocation(str(folder)))
        assert "matches second, tiny-sae" in refused(NEURONPEDIA, model)["file.features[0].layer"]
        assert plan(NEURONPEDIA, model, sae=second).profiles[0].specs[0].target.sae.name == "second"

    @pytest.mark.parametrize(
        ("document", "path"),
        [
            (changed(NEURONPEDIA, features=[feature(index=-1)]), "file.features[0].index"),
            (changed(NEURONPEDIA, features=[feature(index=40)]), "file.features[0].index"),
            (changed(NEURONPEDIA, features=[feature(index=1.5)]), "file.features[0].index"),
            (changed(NEURONPEDIA, features=[feature(index=True)]), "file.features[0].index"),
            (changed(NEURONPEDIA, features=[feature(strength=None)]), "file.features[0].strength"),
            (changed(NEURONPEDIA, features=[feature(strength="5")]), "file.features[0].strength"),
            (changed(NEURONPEDIA, features=[feature(layer="res", strength=5)]), "file.features[0].layer"),
            (changed(NEURONPEDIA, features=[feature(layer="2-res", strength=5)]), "file.features[0].layer"),
            (changed(NEURONPEDIA, features=NEURONPEDIA["features"] * 2), "file.features[1]"),
            (changed(NEURONPEDIA, features=NEURONPEDIA["features"] * 257), "file.features"),
            (changed(NEURONPEDIA, features=[]), "file"),
            (changed(NEURONPEDIA, strength_multiplier=3e6), "file.strength_multiplier"),
            (changed(NEURONPEDIA, strength_multiplier=1e6, features=[feature(strength=2)]), "file.features[0].strength"),  # noqa: E501
            (changed(NEURONPEDIA, steer_method="MAGIC"), "file.steer_method"),
            (changed(CLUSTER, schema_version="2"), "file.schema_version"),
            (changed(CLUSTER, members=[{"feature_idx": 3, "strength": 301}]), "file.members[0].strength"),
            (changed(CLUSTER, members=[{"feature_idx": 3, "strength": 1, "sign": 0}]), "file.members[0].sign"),
            (changed(CLUSTER, budget={"intensity": -1}), "file.budget.intensity"),
            (changed(CLUSTER, name=" / "), "file.name"),
            ({"name": "x", "steering": {"a": 1}}, "file.steering.a"),
            ({"name": "x", "steering": {"3": None}}, "file.steering.3"),
            ({"name": "x", "steering": {"3": 1e7}}, "file.steering.3"),
            ({"name": "x", "steering": [1]}, "file.steering"),
            ({"name": "x", "steering": {}}, "file"),
        ],
    )  # fmt: skip
    def test_wrong_fields_are_named(self, document, path, sae, model):
        messages = refused(document, model)
        assert path in messages
        assert messages[path]
        assert not SteeringProfile.objects.exists()

    @pytest.mark.parametrize(
        ("row", "path"),
        [
            ("sparsify,add,org/saes,layers.1,3,nan", "row 1.steering_coefficient"),
            ("sparsify,add,org/saes,layers.1,3,1e999", "row 1.steering_coefficient"),
            ("sparsify,add,org/saes,layers.1,3,", "row 1.steering_coefficient"),
            ("sparsify,add,org/saes,layers.1,40,1", "row 1.feature_index"),
            ("sparsify,add,org/saes,layers.1,-1,1", "row 1.feature_index"),
            ("sparsify,add,org/saes,layers.9,3,1", "row 1.sparse_model"),
            ("pickle,add,org/saes,layers.1,3,1", "row 1.loader"),
            ("sparsify,erase,org/saes,layers.1,3,1", "row 1.action"),
            ("sparsify,add,org/saes,layers.1,3,2e6", "row 1"),
            ("sparsify,add,org/saes,layers.1,3,1,what,is,this", "line 2"),
        ],
    )
    def test_wrong_rows_are_named(self, row, path, sae, model):
        header = "loader,action,sparse_model,hookpoint,feature_index,steering_coefficient\n"
        assert path in refused(header + row, model, "steer.csv")


def effect(spec: EditSpec, folder: Path, h: np.ndarray) -> np.ndarray:
    """What the compiled edit does, by the protocol's documentation."""
    sae = load_sae(folder)
    (one,) = compile_edits([spec], {sae.key: sae}).edits
    residual = torch.tensor(h, dtype=torch.float32)
    if isinstance(one, VectorEdit):
        return (residual + one.vector).numpy()
    assert isinstance(one, ReaderEdit)
    (rule,) = one.rules
    feature = torch.tensor([rule.feature])
    a = one.reader.activations(residual, feature)
    change = torch.clamp(rule.gain * a + rule.offset, rule.lower, rule.upper) - a
    return (residual + change @ one.reader.columns(feature).write).numpy()


class TestDocuments:
    @pytest.mark.parametrize(
        ("data", "name", "message"),
        [
            (b"{", "x.json", "not valid JSON"),
            (b"", "x.json", "not valid JSON"),
            (b"[" * 100_000, "x.json", "not valid JSON"),
            (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "x.json", "nested more than"),
            (b'{"a": NaN}', "x.json", "NaN is not valid JSON"),
            (b'{"a": -Infinity}', "x.json", "-Infinity is not valid JSON"),
            (b'{"a": 1, "a": 2}', "x.json", "occurs twice"),
            (b'{"a": ' + b"9" * 5000 + b"}", "x.json", "a number is too long"),
            (b'{"a": "\\ud800"}', "x.json", "unpaired surrogate"),
            (b'{"a\\u0000": 1}', "x.json", "NUL"),
            (b"\xff\xfe{", "x.json", "not valid UTF-8"),
            (b" " * (MAX_BYTES + 1), "x.json", "the limit is 4 MiB"),
            (b"{}", "x.pkl", "must end with .json or .csv"),
            (b"{}", "x.json", "The format of the file is not supported"),
            (b'"text"', "x.json", "The format of the file is not supported"),
            (b"[1, 2]", "x.json", "The format of the file is not supported"),
            (b"a,b\n1,2", "x.csv", "The format of the file is not supported"),
            (b"a,a\n1,2", "x.csv", "each column once"),
            (b'a,b\n"1,2', "x.csv", "not valid CSV"),
            (b"a\n" + b"1\n" * 257, "x.csv", "more than 256 lines"),
            (b"a,b\n1,\x002", "x.csv", "NUL"),
        ],
    )
    def test_bad_files_are_refused(self, data, name, message):
        with pytest.raises(InvalidSpecError, match=message):
            format_of(read_document(data, name))

    def test_numbers_beyond_floats_are_no_numbers(self, sae, model):
        document = json.dumps(NEURONPEDIA).replace("0.5}", "1e999}")
        assert "file.features[0].strength" in refused(document, model)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
        )
    )
    def test_anything_is_read_or_refused(self, value):
        try:
            document = read_document(json.dumps(value).encode(), "x.json")
            assert document.value == value
            format_of(document)
        except InvalidSpecError:
            pass

    @pytest.mark.parametrize("example", [NEURONPEDIA, GOODFIRE, MILLM_V1, CLUSTER], ids=["np", "gf", "v1", "ms"])
    def test_formats_exclude_each_other(self, example):
        assert sum(known.recognises(example) for known in FORMATS) == 1


class TestCommands:
    @pytest.fixture
    def file(self, tmp_path: Path, sae: SAE) -> Path:
        path = tmp_path / "wave.json"
        path.write_text(json.dumps(NEURONPEDIA))
        return path

    def test_import(self, file, model, capsys):
        call_command("import_profile", file, model="tiny", dry_run=True)
        assert not SteeringProfile.objects.exists()
        call_command("import_profile", file, model="tiny")
        out = capsys.readouterr().out
        assert "tiny-sae #3: add 2 raw, special tokens too" in out
        assert 'SAE "1-res-jb" at layer 1 is matched to tiny-sae' in out
        assert SteeringProfile.objects.get().edits.get().strength == 2.0
        event = AuditEvent.objects.get(action="import")
        assert (event.action, event.subject, event.detail) == ("import", "wave", "from a file of Neuronpedia")

    def test_twice_needs_a_word(self, file, model):
        call_command("import_profile", file, model="tiny", verbosity=0)
        with pytest.raises(CommandError, match=r"file\.name: The model tiny already has a profile wave"):
            call_command("import_profile", file, model="tiny")
        call_command("import_profile", file, model="tiny", replace=True)
        call_command("import_profile", file, model="tiny", name="other")
        assert SteeringProfile.objects.count() == 2

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"model": "none"}, "The model none does not exist"), ({"model": "tiny", "sae": "none"}, "has no SAE none")],
    )
    def test_refusals(self, options, message, file, model):
        with pytest.raises(CommandError, match=message):
            call_command("import_profile", file, **options)

    @pytest.mark.parametrize("path", ["/dev/zero", "/no/such.json", "/"])
    def test_only_files_are_read(self, path, model):
        with pytest.raises(CommandError, match="is not a file"):
            call_command("import_profile", Path(path), model="tiny")

    def test_export(self, profile, tmp_path, capsys):
        with pytest.raises(CommandError, match="has no published version yet"):
            call_command("export_profile", "gloomy", model="tiny")
        services.publish_profile(profile=profile)
        profile.edits.update(strength=0.9)
        call_command("export_profile", "gloomy", model="tiny")
        assert json.loads(capsys.readouterr().out)["profiles"][0]["edits"][0]["strength"] == 0.5
        call_command("export_profile", "gloomy", model="tiny", draft=True, output=tmp_path / "out.json")
        assert json.loads((tmp_path / "out.json").read_text())["profiles"][0]["edits"][0]["strength"] == 0.9
        with pytest.raises(CommandError, match="could not be written"):
            call_command("export_profile", "gloomy@1", model="tiny", output=tmp_path / "out.json")
        with pytest.raises(CommandError, match="no published version 2"):
            call_command("export_profile", "gloomy@2", model="tiny")

    def test_draft_that_makes_no_sense_is_not_exported(self, profile, capsys):
        profile.edits.update(strength=float("nan"))
        with pytest.raises(CommandError, match="finite number"):
            call_command("export_profile", "gloomy", model="tiny", draft=True)


def test_nothing_is_made_when_one_cannot_be(sae, model, researcher):
    """A name that somebody took between the look and the import."""
    bundle = {
        "kind": "mistudio.cluster-bundle", "schema_version": "1",
        "definitions": [changed(CLUSTER, name="one"), changed(CLUSTER, name="two")],
    }  # fmt: skip
    found = plan(bundle, model)
    services.create_profile(name="two", model=model)
    with pytest.raises(Exception, match="already has a profile two"):
        import_profiles(plan=found, options=ImportOptions(model), user=researcher)
    assert [profile.name for profile in SteeringProfile.objects.all()] == ["two"]
    assert isinstance(researcher, User)


def test_feature_target_is_the_models_own(sae, model):
    """What a file says of scales does not count: the model's own numbers do."""
    (spec,) = plan(NEURONPEDIA, model).profiles[0].specs
    assert spec.target == feature_target(sae.features.get(index=3))
