"""The units p99 and p999: percentiles of a feature's activations, wherever a strength has a unit."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from steering import services
from steering.errors import InlineSteeringError, InvalidWatchRuleError
from steering.features.services import steer_with_feature
from steering.models import SAE, Feature, FeatureEdit, SteeringProfile, WatchRule
from steering.profiles.drafts import draft_edits, rows_of
from steering.profiles.inline_edits import read_inline
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits
from steering.spec.wording import describe_edit
from steering.watch.services import save_rule
from tests.steering.pages import login

pytestmark = pytest.mark.django_db(transaction=True)

COUNTS = [90, 9, 0, 1] + [0] * 28  # of 100 activations, 99 lie below 2 * 0.5
P99, P999 = 1.0, 1.95


@pytest.fixture
def measured(sae: SAE) -> Feature:
    SAE.objects.filter(pk=sae.pk).update(corpus="default abc")
    rows = Feature.objects.filter(sae=sae, index=3)
    rows.update(histogram={"width": 0.5, "counts": COUNTS}, max_activation=1.99, max_activation_source="measured")
    return rows.select_related("sae").get()


def inline(sae: SAE, **fields: Any) -> Any:
    (edit,) = parse_edits(
        read_inline(sae.model_id, "tiny", {"features": [{"index": 3, "strength": 2, **fields}]}).edits
    )
    return edit


def test_strengths_of_requests_are_multiples_of_the_percentile(measured):
    assert inline(measured.sae, unit="p99").raw == 2 * P99
    assert inline(measured.sae, unit="p999").raw == pytest.approx(2 * P999)
    gated = inline(measured.sae, unit="raw", gate={"index": 3, "above": 0.5, "unit": "p999"})
    assert gated.gate.raw == pytest.approx(0.5 * P999)
    assert describe_edit(inline(measured.sae, unit="p999")).endswith("add 2 × p99.9")


@pytest.mark.parametrize("unit", ["p99", "p999"])
def test_a_feature_that_was_not_measured_is_refused_by_name(sae, unit):
    for fields, field in (({"unit": unit}, "unit"), ({"gate": {"index": 5, "above": 1, "unit": unit}}, "gate.unit")):
        with pytest.raises(InlineSteeringError, match=rf"`{unit}` needs .* measure the SAE") as refused:
            read_inline(sae.model_id, "tiny", {"features": [{"index": 3, "strength": 1, "unit": "raw", **fields}]})
        assert (refused.value.param, refused.value.code) == (f"steering.features[0].{field}", "invalid_value")


def test_vectors_have_no_activations(measured):
    vector = {"layer": 1, "values": [1.0] * measured.sae.d_in, "unit": "p99"}
    with pytest.raises(InlineSteeringError, match="`p99` needs"):
        read_inline(measured.sae.model_id, "tiny", {"vectors": [vector]})


def test_a_scale_of_an_import_does_not_limit_the_percentile(measured):
    """The largest activation of another corpus may be smaller, or of another scale."""
    Feature.objects.filter(pk=measured.pk).update(max_activation=0.01, max_activation_source="import")
    assert inline(measured.sae, unit="p999").raw == pytest.approx(2 * P999)


def test_a_version_keeps_its_percentile_when_the_sae_is_measured_again(measured):
    profile = steer_with_feature(feature=measured, new_name="steady", strength=0.5, unit="p99")
    version = services.publish_profile(profile=profile)
    (stored,) = version.edits
    assert stored["feature"]["p99"] == P99
    assert "p999" not in stored["feature"]
    Feature.objects.filter(pk=measured.pk).update(histogram={"width": 4.0, "counts": COUNTS}, max_activation=15)
    (edit,) = parse_edits(version.edits)
    assert edit.raw == 0.5 * P99
    (draft,) = draft_edits(profile)
    assert draft.raw == 0.5 * 8 * P99, "the draft follows"
    (row,) = rows_of(profile, [edit])
    assert (row.strength, row.unit) == (0.5, "raw"), "as a draft again, it has the same effect"
    Feature.objects.filter(pk=measured.pk).update(histogram=None)
    (row,) = rows_of(profile, [edit])
    assert (row.strength, row.unit) == (0.5, "raw")
    with pytest.raises(InvalidSpecError, match="`p99` needs"):
        draft_edits(profile)


def test_watch_rules(measured):
    rule = WatchRule(name="steady", feature=measured, threshold=0.5, unit="p99", reason="test")
    assert save_rule(rule=rule).raw_threshold == 0.5 * P99
    other = Feature.objects.get(sae=measured.sae, index=4)
    with pytest.raises(InvalidWatchRuleError, match="`p999` needs"):
        save_rule(rule=WatchRule(name="other", feature=other, threshold=1, unit="p999", reason="test"))


def test_pages_show_the_percentile_with_its_number_and_corpus(measured):
    client = login(User.objects.create_superuser("admin"))
    page = client.get(reverse("admin:steering_feature_change", args=[measured.pk])).content.decode()
    assert "p99 1 of 100 activations above 0, corpus default abc" in page
    form = {"new_name": "steady", "operation": "add", "strength": "0.5", "unit": "p999"}
    assert client.post(reverse("admin:steering_feature_steer", args=[measured.pk]), form).status_code == 302
    profile = SteeringProfile.objects.get(name="steady")
    edit = profile.edits.get()
    assert (edit.unit, edit.strength) == ("p999", 0.5)
    fields = {"id": edit.pk, "profile": profile.pk, "feature": measured.pk, "operation": "add", "strength": "0.5"}
    draft = {f"edits-0-{name}": value for name, value in fields.items()}
    draft |= {"edits-0-unit": FeatureEdit.Unit.P999, "edits-0-phase": "both", "name": "steady"}
    draft |= {"edits-TOTAL_FORMS": "1", "edits-INITIAL_FORMS": "1"}
    draft |= {"edits-2-TOTAL_FORMS": "0", "edits-2-INITIAL_FORMS": "0"}
    found = client.post(reverse("admin:steering_steeringprofile_outcomes", args=[profile.pk]), draft).json()
    (card,) = found["cards"]
    assert card["figure"] == "p99.9 1.95 of 100 activations above 0, corpus default abc"
    assert card["scale"]["raw_per_one"] == pytest.approx(P999)


def test_a_feature_without_percentiles_offers_no_such_unit(sae):
    client = login(User.objects.create_superuser("admin"))
    feature = sae.features.get(index=30)
    page = client.get(reverse("admin:steering_feature_change", args=[feature.pk])).content.decode()
    assert 'name="unit"' in page
    assert 'value="p99"' not in page
