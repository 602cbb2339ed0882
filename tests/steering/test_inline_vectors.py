"""Vectors that requests bring along, as numbers or by the name of a set."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group, User

from inference.interventions import Site
from inference.models import LanguageModel
from steering import services
from steering.errors import InlineSteeringError
from steering.model_shape import read_model_shape
from steering.models import SAE, VectorSet
from steering.profiles.compilation import ProfileCompiler
from steering.profiles.inline_edits import find_inline, read_inline, read_short_edits
from steering.profiles.resolver import SteeringSelection
from steering.profiles.snapshot import RecentVersions, num_values
from steering.sharing import share_with_groups
from steering.spec.parsing import parse_edits
from steering.vectors.services import NewVector, delete_vectors, save_vectors
from tests.steering.resolving import intervention_of, local_resolver

pytestmark = pytest.mark.django_db(transaction=True)  # a snapshot is reloaded inside a transaction that writes


def numbers(model: LanguageModel, scale: float = 1.0) -> list[float]:
    width = read_model_shape(model).hidden_size
    return [scale * (0.1 + place / 7) for place in range(width)]  # not exact in float32


def packed(values: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def vectors(*items: Any) -> dict[str, Any]:
    return {"vectors": [{"layer": 1, "strength": 0.5, **item} if isinstance(item, dict) else item for item in items]}


@pytest.fixture
def calm(model: LanguageModel) -> VectorSet:
    found = [NewVector(Site(layer), tuple(numbers(model, layer + 1))) for layer in (0, 1)]
    return save_vectors(name="calm", model=model, vectors=found, origin="calm.npz")


def fingerprint(model: LanguageModel, value: object, viewer: int | None = None) -> str:
    return read_inline(model.pk, model.name, value, viewer).fingerprint


def test_however_a_vector_is_sent_it_has_the_fingerprint_of_the_published_profile(
    model: LanguageModel, calm: VectorSet
):
    values = numbers(model, 2)
    published: list[str] = []
    for vector in (values, packed(values)):
        edit = {"vector": {"layer": 1, "values": vector}, "strength": 0.5, "unit": "raw"}
        profile = services.create_profile(name=f"p{len(published)}", model=model, edits=read_short_edits(model, [edit]))
        published.append(services.publish_profile(profile=profile).fingerprint)
    sent = [{"values": values}, {"values": packed(values)}, {"set": "calm"}, {"set": "calm", "site": "resid_post"}]
    found = {fingerprint(model, vectors(item)) for item in sent}
    assert found == set(published)
    assert len(found) == 1


def test_features_and_vectors_are_one_profile(sae: SAE, model: LanguageModel):
    value = {"features": [{"index": 0, "strength": 1.0, "unit": "raw"}], **vectors({"values": numbers(model)})}
    version = read_inline(model.pk, model.name, value)
    assert [next(iter(edit)) for edit in version.edits] == ["feature", "vector"]  # type: ignore[attr-defined]
    assert [source.checksum for source in version.saes] == [sae.checksum]
    steering = async_to_sync(local_resolver().steer)(
        model.name, SteeringSelection(inline=value), special_token_ids=frozenset()
    )
    assert steering is not None
    assert (steering.label, steering.fingerprint) == ("inline", version.fingerprint)
    assert intervention_of(steering).fingerprint == version.fingerprint


def test_every_field_of_an_edit_reaches_the_engine(sae: SAE, model: LanguageModel):
    fields = {
        "operation": "projection_cap",
        "strength": 3.0,
        "lower": -1.0,
        "phase": "generation",
        "window": {"after": 2, "first": 9},
        "scope": "answer",
        "special_tokens": True,
        "sink_tokens": True,
        "gate": {"index": 2, "above": 0.5, "unit": "raw"},
    }
    site = {"layer": sae.layer, "site": sae.site}
    (edit,) = parse_edits(
        read_inline(model.pk, model.name, vectors({"values": numbers(model), **site, **fields})).edits
    )
    assert (edit.operation, edit.strength, edit.lower, edit.unit, edit.phase) == (
        "projection_cap",
        3.0,
        -1.0,
        "raw",
        "generation",
    )
    assert (edit.window.after, edit.window.first, edit.scope) == (2, 9, "answer")
    assert edit.special_tokens
    assert edit.sink_tokens
    assert edit.gate is not None


def test_norms_are_those_of_the_site_or_given(sae: SAE, model: LanguageModel):
    site = {"layer": sae.layer, "site": sae.site, "values": numbers(model), "unit": "resid_norm", "strength": 0.1}
    own = read_inline(model.pk, model.name, vectors({**site, "reference_norm": 10.0}))
    (edit,) = parse_edits(own.edits)
    assert edit.push == pytest.approx(0.1)
    assert edit.norm_limit == 100.0
    (edit,) = parse_edits(read_inline(model.pk, model.name, vectors(site)).edits)
    assert edit.target.scales.reference_norm == sae.mean_resid_norm


def test_sets_are_those_that_the_caller_may_see(model: LanguageModel, calm: VectorSet):
    owner, other = (User.objects.create_user(name) for name in ("olga", "otto"))
    VectorSet.objects.update(created_by=owner)
    value = vectors({"set": "calm"})
    same = fingerprint(model, value)  # without a key, from this machine
    assert fingerprint(model, value, owner.pk) == same
    for viewer in (other.pk, 10**6):
        with pytest.raises(InlineSteeringError, match="you do not have access") as caught:
            fingerprint(model, value, viewer)
        assert (caught.value.param, caught.value.code) == ("steering.vectors[0].set", "vector_set_not_found")
    group = Group.objects.create(name="lab")
    other.groups.add(group)
    calm.refresh_from_db()
    share_with_groups(subject=calm, groups=[group], user=owner)
    assert fingerprint(model, value, other.pk) == same
    assert async_to_sync(find_inline)(model.pk, value) is None, "who may see a set is asked again"


def test_a_set_that_is_replaced_or_of_another_model(model: LanguageModel, other_model: LanguageModel, calm: VectorSet):
    value = vectors({"set": "calm"})
    before = fingerprint(model, value)
    with pytest.raises(InlineSteeringError, match="has no vector set 'calm'"):
        fingerprint(other_model, value)
    delete_vectors(vector_set=calm)
    with pytest.raises(InlineSteeringError, match="has no vector set 'calm'"):
        fingerprint(model, value)
    save_vectors(name="calm", model=model, vectors=[NewVector(Site(1), tuple(numbers(model, 9)))], origin="x")
    assert fingerprint(model, value) != before
    alone = {"vectors": [{"set": "calm", "strength": 0.5}]}
    assert fingerprint(model, alone) == fingerprint(model, value), "a set of one vector needs no layer"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "values", "list of 1 to"),
    ({"values": []}, "values", "list of 1 to"),
    ({"values": [1.0, 2.0]}, "values", "has 2 values, but the model has"),
    ({"values": "AAAA" * 1000}, "values", "but the model has"),
    ({"values": "AAA="}, "values", "4 bytes each, got 2 bytes"),
    ({"values": "not base64!"}, "values", "float32 values in base64"),
    ({"values": "NaN"}, "values[3]", "finite number"),
    ({"values": [0.5, None]}, "values[1]", "Expected a number"),
    ({"values": [0.5, True]}, "values[1]", "Expected a number"),
    ({"values": [1e300]}, "values[0]", "finite number between"),
    ({"values": {"0": 1}}, "values", "list of 1 to"),
    ({"values": "OK", "layer": 99}, "layer", "got layer 99"),
    ({"values": "OK", "layer": -1}, "layer", "from 0 to"),
    ({"values": "OK", "layer": "1"}, "layer", "Expected an integer"),
    ({"values": "OK", "site": "nowhere"}, "site", "Expected one of"),
    ({"values": "OK", "operation": "clamp"}, "operation", "A vector supports"),
    ({"values": "OK", "unit": "max_act"}, "unit", "max_act"),
    ({"values": "OK", "layer": 0, "unit": "resid_norm"}, "unit", "resid_norm"),
    ({"values": "OK", "strength": 1e9}, "strength", "finite number between"),
    ({"values": "OK", "strength": 1e5, "reference_norm": 1.0}, "strength", "times its norm"),
    ({"values": "OK", "reference_norm": -1}, "reference_norm", "at least 0"),
    ({"values": "OK", "strenght": 1}, "strenght", "Unknown field"),
    ({"values": "OK", "index": 1}, "index", "features"),
    ({"values": "OK", "set": "calm"}, "set", "either"),
    ({"values": "OK", "only_if_active": True}, "only_if_active", "requires a feature"),
    ({"values": "OK", "gate": {"index": 10**6}}, "gate.index", "has features"),
    ({"set": "none"}, "set", "has no vector set 'none'"),
    ({"set": 7}, "set", "has no vector set 7"),
    ({"set": "a\0b"}, "set", "has no vector set"),
    ({"set": "calm", "layer": 7}, "layer", "Available: "),
    ({"set": "calm", "layer": None}, "layer", "Available: "),
    ({"set": "calm", "site": "mlp_out"}, "layer", "Available: "),
]


def test_refusals_name_the_field(model: LanguageModel, sae: SAE, calm: VectorSet):
    values = numbers(model)
    given = {"OK": values, "NaN": packed([*values[:3], float("nan"), *values[4:]])}
    for item, param, words in REFUSED:
        if isinstance(item.get("values"), str):
            item = {**item, "values": given.get(item["values"], item["values"])}
        value = {"features": [{"index": 0, "strength": 1.0, "unit": "raw"}], **vectors({"values": values}, item)}
        with pytest.raises(InlineSteeringError) as caught:
            read_inline(model.pk, model.name, value)
        assert caught.value.param == f"steering.vectors[1].{param}", item
        assert words in caught.value.message
        assert len(caught.value.message) < 500


WRONG_FORMS: list[tuple[Any, str]] = [
    ({"vectors": {}}, "steering.vectors"),
    ({"vectors": []}, "steering.features"),
    ({"vectors": [{}] * 65}, "steering.vectors"),
    ({"features": [{}], "vectors": [{}] * 64}, "steering.features"),
    ({"vectors": [7]}, "steering.vectors[0]"),
    ({"vectors": [{"layer": 0}], "sets": []}, "steering"),
    ({"features": None, "vectors": [{}]}, "steering.features"),
]


def test_wrong_forms(model: LanguageModel):
    for value, param in WRONG_FORMS:
        with pytest.raises(InlineSteeringError) as caught:
            read_inline(model.pk, model.name, value)
        assert caught.value.param == param, value


def test_many_bad_numbers_are_one_short_message(model: LanguageModel):
    with pytest.raises(InlineSteeringError) as caught:
        read_inline(model.pk, model.name, vectors({"values": ["x"] * 100_000}))
    assert caught.value.param == "steering.vectors[0].values[0]"
    assert len(caught.value.message) < 300


def test_caches_are_bounded_by_the_size_of_vectors(model: LanguageModel, monkeypatch: Any):
    versions = [read_inline(model.pk, model.name, vectors({"values": numbers(model, n)})) for n in range(1, 5)]
    width = num_values(versions[0])
    recent = RecentVersions(100, max_values=2 * width)
    for text, version in zip("abcd", versions, strict=True):
        recent.keep(1, text, version)
    assert [recent.find(1, text) is not None for text in "abcd"] == [False, False, True, True]

    monkeypatch.setattr("steering.profiles.compilation.MAX_COMPILED_VALUES", 2 * width)
    compiler = ProfileCompiler()
    specs = [
        async_to_sync(local_resolver(compiler).compiled)(version, special_token_ids=frozenset()).spec
        for version in versions
    ]
    assert [compiler.find(spec) is not None for spec in specs] == [False, False, True, True]
