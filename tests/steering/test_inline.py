"""Edits that requests bring along: read once, by one query, and never with figures that are not true any more."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from openai_api.generation.stats import millm_body
from steering import services
from steering.effects.recipe import EffectResult
from steering.effects.store import export_effects, import_effects, store_effects
from steering.errors import InlineSteeringError
from steering.features.label_import import import_labels
from steering.features.labels import FeatureLabel, LabelSet
from steering.features.services import label_feature
from steering.models import SAE, FeatureEffect
from steering.profiles.drafts import draft_edits
from steering.profiles.inline_edits import find_inline, read_inline, read_short_edits
from steering.profiles.resolver import SteeringSelection
from steering.profiles.snapshot import MAX_RECENT, RecentVersions, registered_saes
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits
from steering.spec.wording import describe_edit
from tests.steering.resolving import local_resolver

pytestmark = pytest.mark.django_db(transaction=True)  # a snapshot is reloaded inside a transaction that writes


def edits(num: int = 3, **fields: Any) -> dict[str, Any]:
    return {"features": [{"index": index, "strength": 1.0, "unit": "raw", **fields} for index in range(num)]}


def queries(sae: SAE, value: object) -> int:
    with CaptureQueriesContext(connection) as seen:
        read_inline(sae.model_id, "tiny", value)
    return len(seen)


def test_edits_cost_one_query_however_many_and_none_when_they_come_again(sae):
    registered_saes.get()
    assert queries(sae, edits(20)) == 1
    assert queries(sae, edits(20)) == 0
    turned = {"features": [dict(reversed(edit.items())) for edit in edits(20)["features"]]}
    assert queries(sae, turned) == 0, "fields in another order are the same edits"
    assert queries(sae, edits(20, phase="prompt")) == 1


def test_a_request_that_comes_again_asks_neither_the_database_nor_a_thread(sae, monkeypatch):
    resolver = local_resolver()
    selection = SteeringSelection(inline=edits(5))
    first = async_to_sync(resolver.steer)("tiny", selection, special_token_ids=frozenset())
    monkeypatch.setattr("steering.profiles.resolver.read_inline", lambda *_: pytest.fail("read again"))
    again = async_to_sync(resolver.steer)("tiny", selection, special_token_ids=frozenset())
    assert first is not None
    assert again is not None
    assert again.fingerprint == first.fingerprint


def test_a_model_does_not_get_another_ones_edits(sae, other_sae):
    read_inline(sae.model_id, "tiny", edits())
    assert async_to_sync(find_inline)(sae.model_id, edits()) is not None
    assert async_to_sync(find_inline)(other_sae.model_id, edits()) is None
    (other,) = read_inline(other_sae.model_id, "other", edits()).saes
    assert other.checksum == other_sae.checksum


def test_equal_in_python_is_not_equal_in_json(sae):
    """1 and true are the same key of a dict; true is no strength."""
    read_inline(sae.model_id, "tiny", {"features": [{"index": 1, "strength": 1, "unit": "raw"}]})
    for bad in ({"index": True, "strength": 1, "unit": "raw"}, {"index": 1, "strength": True, "unit": "raw"}):
        with pytest.raises(InlineSteeringError):
            read_inline(sae.model_id, "tiny", {"features": [bad]})


def in_max_act(sae: SAE) -> float:
    """What half of feature 0's largest activation comes to."""
    value = {"features": [{"index": 0, "strength": 0.5}]}
    version = async_to_sync(find_inline)(sae.model_id, value) or read_inline(sae.model_id, "tiny", value)
    (edit,) = parse_edits(version.edits)
    return edit.raw


def test_new_figures_are_used_at_once(sae):
    before = in_max_act(sae)
    import_labels(sae=sae, found=LabelSet((FeatureLabel(index=0, label="x", max_activation=64.0),)))
    assert in_max_act(sae) == 32.0 != before


def test_what_changes_an_sae_or_its_features_drops_what_was_read(sae, model):
    feature = sae.features.get(index=0)
    changes = {
        "label": lambda: label_feature(feature=feature),
        "rename": lambda: services.rename_sae(sae=sae),
        "delete": lambda: services.delete_sae(sae=sae),
    }
    for name, change in changes.items():
        read_inline(sae.model_id, "tiny", edits())
        change()
        assert async_to_sync(find_inline)(model.pk, edits()) is None, name
    with pytest.raises(InlineSteeringError, match="Available: none"):
        read_inline(model.pk, "tiny", edits())


def test_an_sae_that_goes_while_it_is_asked_for_is_refused(sae):
    registered_saes.get()
    sae.features.all().delete()  # as in the moment between the snapshot and the query
    with pytest.raises(InlineSteeringError, match="`tiny-sae` is being removed or replaced"):
        read_inline(sae.model_id, "tiny", edits())


@pytest.mark.parametrize("value", [{"features": "x"}, {}, None, {"features": []}, {"features": [{}] * 65}])
def test_a_wrong_form_is_refused_before_anything_is_looked_up(value, sae):
    with CaptureQueriesContext(connection) as seen, pytest.raises(InlineSteeringError):
        async_to_sync(find_inline)(sae.model_id, value)
    assert not seen.captured_queries


def test_values_without_end_are_refused(sae):
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InlineSteeringError, match="nested too deeply"):
        async_to_sync(find_inline)(sae.model_id, {"features": [{"index": 0, "strength": deep}]})


def test_the_oldest_are_forgotten(sae):
    recent, version = RecentVersions(2), read_inline(sae.model_id, "tiny", edits())
    recent.keep(1, "a", version)
    recent.keep(1, "b", version)
    assert recent.find(1, "a") is version
    recent.keep(1, "c", version)
    assert [recent.find(1, text) for text in "abc"] == [version, None, version]
    assert MAX_RECENT >= 16


def test_edits_of_the_management_api_cost_two_queries_however_many(sae, model):
    items = [
        {"index": index, "strength": 1.0, "unit": "raw", "gate": {"index": 3, "above": 0.2, "unit": "raw"}}
        for index in range(8)
    ]
    with CaptureQueriesContext(connection) as seen:
        found = read_short_edits(model, items)
    assert len(found) == 8
    assert len(seen) == 2, "the model's SAEs, and their features"


def test_a_reconstruction_names_its_sae(sae, model):
    value = {"features": [{"sae": sae.name, "operation": "reconstruct", "phase": "prompt"}]}
    version = read_inline(sae.model_id, "tiny", value)
    (of_request,) = parse_edits(version.edits)
    (of_api,) = read_short_edits(model, value["features"])
    words = f"residual at {of_api.target.site.label}: replace by the reconstruction of {sae.name}, prompt only"
    assert describe_edit(of_request) == describe_edit(of_api) == words
    assert [source.checksum for source in version.saes] == [sae.checksum]
    profile = services.create_profile(name="reconstructed", model=model, edits=[of_api])
    assert draft_edits(profile) == (of_api,)


class TestAutoStrength:
    @pytest.fixture
    def measured(self, sae) -> SAE:
        store_effects(
            sae=sae,
            results=[EffectResult(index, 3.0, 0.3, 0.4, is_capped=False) for index in (0, 30)],
            recipe="r",
            measured_at=timezone.now(),
        )
        registered_saes.invalidate()
        return sae

    def auto(self, *indices: int, **fields: Any) -> dict[str, Any]:
        return {"features": [{"index": index, "strength": "auto", **fields} for index in indices]}

    def strengths(self, sae: SAE, value: dict[str, Any]) -> list[tuple[float, str]]:
        edits = parse_edits(read_inline(sae.model_id, "tiny", value).edits)
        return [(edit.strength, edit.unit) for edit in edits]

    def test_is_resolved_to_a_number(self, measured):
        assert self.strengths(measured, self.auto(0, 30)) == [(0.75, "max_act"), (3.0, "raw")]
        assert self.strengths(measured, self.auto(0, unit="raw")) == [(3.0, "raw")]
        ((_, unit),) = self.strengths(measured, self.auto(0, unit="resid_norm"))
        (edit,) = parse_edits(read_inline(measured.model_id, "tiny", self.auto(0, unit=unit)).edits)
        assert edit.raw == pytest.approx(3.0, rel=1e-5)
        (short,) = read_short_edits(measured.model, self.auto(0)["features"])
        assert (short.strength, short.unit) == (0.75, "max_act")

    def test_the_receipt_tells_the_number(self, measured):
        value = {"features": [*edits(1)["features"], *self.auto(30)["features"]]}
        selection = SteeringSelection(inline=value)
        for _ in range(2):  # the second one is cached
            found = async_to_sync(local_resolver().steer)("tiny", selection, special_token_ids=frozenset())
            assert found is not None
            assert [(one.edit, one.strength, one.unit) for one in found.auto] == [(1, 3.0, "raw")]
            body = millm_body(found, [])
            assert body["auto_strengths"] == [{"edit": 1, "strength": 3.0, "unit": "raw"}]

    @pytest.mark.parametrize(
        ("fields", "code", "message"),
        [
            ({"index": 1}, "effect_not_measured", "The effect of tiny-sae #1 was not measured"),
            ({"index": 0, "operation": "clamp"}, "invalid_value", "calibrated strength of `add`"),
            ({"index": 0, "unit": "miles"}, "invalid_value", "Expected one of"),
            ({"index": 0, "strength": "automatic"}, "invalid_value", "Expected a number"),
        ],
    )
    def test_refusals(self, measured, fields, code, message):
        with pytest.raises(InlineSteeringError, match=message) as refused:
            read_inline(measured.model_id, "tiny", {"features": [{"strength": "auto", **fields}]})
        assert refused.value.code == code
        assert refused.value.param.startswith("steering.features[0].")

    def test_unstable_features_and_vectors(self, measured):
        FeatureEffect.objects.update(strength=0.0)
        with pytest.raises(InlineSteeringError, match="steering with it was unstable"):
            read_inline(measured.model_id, "tiny", self.auto(0))
        with pytest.raises(InvalidSpecError, match="calibrated strength of a feature"):
            read_short_edits(measured.model, [{"vector": {"layer": 1, "values": [1.0]}, "strength": "auto"}])

    def test_a_new_measurement_counts_at_once(self, measured, tmp_path):
        assert self.strengths(measured, self.auto(0)) == [(0.75, "max_act")]
        export_effects(measured, tmp_path / "effects.jsonl")
        text = (tmp_path / "effects.jsonl").read_text().replace('"strength": 3.0', '"strength": 2.0')
        (tmp_path / "effects.jsonl").write_text(text)
        import_effects(measured, tmp_path / "effects.jsonl")
        assert self.strengths(measured, self.auto(0)) == [(0.5, "max_act")]
