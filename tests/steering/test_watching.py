"""Watch rules: what they refuse, what becomes of a missing SAE, and what findings become."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.utils import timezone

from audit.models import AuditEvent
from core.runtime import runtime
from inference.captures import ActivationCapture, FeatureValues, Projections
from inference.interventions import Site
from inference.models import LanguageModel
from inference.steering_refs import STEERING_COMPILER
from jobs.webhooks.models import WebhookDelivery
from steering.errors import InUseError, InvalidWatchRuleError
from steering.models import SAE, Feature, PlainVector, WatchEvent, WatchRule
from steering.profiles.snapshot import published_profiles
from steering.vectors.probes import LinearProbe
from steering.vectors.services import NewVector, delete_vectors, save_vectors
from steering.watch import services as watch_services
from steering.watch.watcher import (
    ActiveRule,
    Watch,
    WatchedFeature,
    WatchedVector,
    Watcher,
    WatchMatch,
    WatchMatches,
    watched_models,
)
from tests.jobs.webhook_receiver import register_webhook

pytestmark = pytest.mark.slow

SPECIAL = frozenset({0})


@pytest.fixture
def feature(db) -> Feature:
    call_command("install_demo")
    return Feature.objects.filter(sae__name="demo-sae", max_activation__gt=0).exclude(label="")[0]


def rule_of(feature: Feature, **fields) -> WatchRule:
    return WatchRule(**{"name": "rain", "feature": feature, "threshold": 0.5, "reason": "To see.", **fields})


def saved(feature: Feature, **fields) -> WatchRule:
    return watch_services.save_rule(rule=rule_of(feature, **fields))


def test_a_saved_rule_has_its_threshold_fixed_and_is_in_the_trail(feature):
    user = User.objects.create(username="rita")
    rule = watch_services.save_rule(rule=rule_of(feature), user=user)

    assert rule.raw_threshold == pytest.approx(0.5 * feature.max_activation)
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.subject, event.user, event.model) == ("watch", "rain", "rita", "demo")
    Feature.objects.filter(pk=feature.pk).update(max_activation=1000.0)
    watched_models.invalidate()
    assert watched_models.get()[feature.sae.model_id][0].threshold == pytest.approx(rule.raw_threshold)
    watch_services.remove_rule(rule=rule, user=user)
    assert "removed" in AuditEvent.objects.latest("pk").detail
    assert watched_models.get() == {}


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), -1.0])
def test_thresholds_that_are_no_numbers_are_refused(feature, threshold):
    with pytest.raises(InvalidWatchRuleError, match="threshold"):
        saved(feature, threshold=threshold, unit="raw")
    assert not WatchRule.objects.exists()


def test_a_unit_without_its_number_is_refused(feature):
    feature.max_activation = None
    with pytest.raises(InvalidWatchRuleError, match="max activation, which is not known; use `raw`"):
        saved(feature)


def test_a_cap_of_a_normalising_sae_is_refused(feature):
    SAE.objects.update(normalization="layer_norm")
    feature.refresh_from_db()
    with pytest.raises(InvalidWatchRuleError, match="normalises"):
        saved(feature, action="cap")
    saved(feature, action="alert")


def test_a_cap_becomes_a_policy_behind_all_others(feature):
    saved(feature, action="cap", threshold=1.5, unit="raw")
    saved(feature, name="idle", action="cap", is_active=False)
    (policy,) = published_profiles.get().policies[feature.sae.model_id]

    assert policy.label == "watch:rain"
    (edit,) = policy.edits
    assert (edit["operation"], edit["strength"], edit["feature"]["index"]) == ("at_most", 1.5, feature.index)


def vector_of(feature: Feature, *values: float, layer: int = 2) -> PlainVector:
    whole = (*values, *[0.0] * (256 - len(values)))
    name = f"set-{PlainVector.objects.count()}"
    rows = save_vectors(name=name, model=feature.sae.model, vectors=[NewVector(Site(layer), whole)], origin="x")
    return rows.vectors.get()


def test_a_vector_is_capped_by_its_projection(feature):
    vector = vector_of(feature, 3.0, 4.0)
    saved(None, name="plain", vector=vector, unit="raw", threshold=-10.0, bias=5.0, action="cap")
    saved(None, name="sure", vector=vector, unit="raw", threshold=0.5, sigmoid=True, bias=-20.0, action="cap")
    first, second = published_profiles.get().policies[feature.sae.model_id]
    assert (first.label, first.saes) == ("watch:plain", ())
    ((plain,), (sure,)) = first.edits, second.edits
    assert (plain["operation"], plain["strength"]) == ("projection_cap", -3.0)  # h v <= -15, and |v| = 5
    assert (plain["vector"]["layer"], plain["vector"]["values"][:3]) == (2, [3.0, 4.0, 0.0])
    assert sure["strength"] == 4.0
    with pytest.raises(InUseError, match="used by the watch rule plain"):
        delete_vectors(vector_set=vector.vector_set)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"feature": None}, "feature", "needs a `feature` or a `vector`"),
        ({"vector": True}, "vector", "got both"),
        ({"bias": 1.0}, "bias", "belongs to a vector"),
        ({"sigmoid": True}, "sigmoid", "belongs to a vector"),
        ({"feature": None, "vector": True}, "unit", "`raw`, in the units of its value, got `max_act`"),
        ({"feature": None, "vector": True, "unit": "raw", "threshold": float("nan")}, "threshold", "finite"),
        ({"feature": None, "vector": True, "unit": "raw", "bias": float("inf")}, "bias", "finite"),
        ({"feature": None, "vector": True, "unit": "raw", "threshold": 1.0, "sigmoid": True}, "threshold", "between 0"),
        ({"feature": None, "vector": True, "unit": "raw", "threshold": 1e300}, "threshold", "limit is 1e"),
        ({"unit": "raw", "threshold": 1e9}, "threshold", "limit is 1e"),
    ],
)
def test_rules_that_make_no_sense_name_the_field(feature, fields, param, message):
    if "vector" in fields:
        fields = {**fields, "vector": vector_of(feature, 1.0)}
    with pytest.raises(InvalidWatchRuleError, match=message) as caught:
        saved(**{"feature": feature, **fields})
    assert caught.value.param == param
    assert not WatchRule.objects.exists()


def test_a_zero_vector_has_no_direction(feature):
    vector = vector_of(feature, 1.0)
    vector.norm = 0.0
    with pytest.raises(InvalidWatchRuleError, match="no direction"):
        saved(None, vector=vector, unit="raw")


def watch(watcher: Watcher) -> Watch:
    return asyncio.run(watcher.watch("demo", SPECIAL))


@pytest.mark.django_db(transaction=True)
def test_rules_of_one_sae_are_one_read_for_each_stage(feature):
    other = Feature.objects.filter(sae=feature.sae, max_activation__gt=0).exclude(pk=feature.pk).first()
    saved(feature)
    saved(other, name="b", threshold=3.0, unit="raw")
    saved(feature, name="c", action="cap", threshold=2.0, unit="raw")
    watcher = Watcher()
    made = watch(watcher)

    found = {read.stage: (read, rules) for read, rules in zip(made.captures, made.rules, strict=True)}
    read, rules = found["post"]
    assert isinstance(read.probe, FeatureValues)
    assert [rule.name for rule in rules] == ["b", "rain"]
    assert read.probe.features == (other.index, feature.index)
    assert read.probe.above == (3.0, pytest.approx(0.5 * feature.max_activation))
    assert read.skip_token_ids == SPECIAL
    assert read.passes_over_cached
    assert [rule.name for rule in found["pre"][1]] == ["c"]
    assert watch(watcher) is made
    WatchRule.objects.get(name="b").delete()
    watched_models.invalidate()
    assert watch(watcher) is not made


@pytest.mark.django_db(transaction=True)
def test_vectors_of_one_site_are_one_read(feature):
    one, two = vector_of(feature, 1.0), vector_of(feature, 0.0, 2.0)
    saved(feature)
    saved(None, name="a", vector=one, unit="raw", threshold=3.0, bias=1.0)
    saved(None, name="b", vector=two, unit="raw", threshold=0.5, sigmoid=True, bias=4.0)
    saved(None, name="c", vector=vector_of(feature, 1.0, layer=1), unit="raw", threshold=3.0)
    made = watch(Watcher())

    pairs = list(zip(made.captures, made.rules, strict=True))
    read, rules = next((read, rules) for read, rules in pairs if len(rules) == 2)
    assert [rule.name for rule in rules] == ["a", "b"]
    assert read.probe == Projections(bytes(one.data) + bytes(two.data), 2, (2.0, -4.0))
    assert (read.site, read.stage, read.skip_token_ids, read.passes_over_cached) == (Site(2), "post", SPECIAL, True)
    assert [read.probe.above for read, _ in pairs if read.site == Site(1)] == [(3.0,)]
    assert sum(map(len, made.rules)) == 4


@pytest.mark.django_db(transaction=True)
def test_a_rule_whose_sae_is_missing_says_so_until_it_is_back(feature, tmp_path):
    saved(feature)
    sae, now = feature.sae, [0.0]
    source = sae.source
    SAE.objects.update(source=str(tmp_path / "gone"))
    runtime.remove(STEERING_COMPILER)  # weights that are in memory are as good as files
    watcher = Watcher(lambda: now[0])

    assert not watch(watcher)
    assert "not available" in WatchRule.objects.get().problem
    shutil.copytree(source, tmp_path / "gone", dirs_exist_ok=True)
    assert not watch(watcher), "not looked for with each request"
    now[0] = 31.0
    assert watch(watcher)
    assert WatchRule.objects.get().problem == ""


def test_models_without_rules_are_not_watched(feature):
    LanguageModel.objects.get(name="demo")
    assert watched_models.get() == {}


# Findings

RULES = (
    ActiveRule(1, "a", "alert", WatchedFeature("demo-sae", 3), 2.0),
    ActiveRule(2, "b", "cap", WatchedFeature("demo-sae", 4), 5.0),
)


def test_sightings_keep_the_largest_value_of_each_rule():
    sightings, now = WatchMatches(Watch((), (RULES,))), timezone.now()
    first = np.array([[3.0, 0.0], [9.0, 1.0]], np.float32)
    sightings.note(0, ActivationCapture(0, 2, first, (4, 7)), num_prompt=6, now=now)
    sightings.note(0, ActivationCapture(0, 1, np.array([[8.0, 5.0]], np.float32), (9,)), num_prompt=6, now=now)

    (found,) = sightings.findings
    assert (found.rule.name, found.value, found.num_tokens, found.place, found.in_prompt) == ("a", 9.0, 3, 7, False)


def test_sightings_of_a_probe_are_its_values():
    target = WatchedVector("angry at layer 2 (resid_post)", Site(2), b"", LinearProbe(bias=-1.0, sigmoid=True))
    rule = ActiveRule(3, "c", "alert", target, 0.5)
    sightings, now = WatchMatches(Watch((), ((rule,),))), timezone.now()
    values = np.array([[0.9], [4.0], [1.5]], np.float32)
    sightings.note(0, ActivationCapture(0, 3, values, (0, 1, 2)), num_prompt=6, now=now)
    (found,) = sightings.findings
    assert found.value == pytest.approx(1 / (1 + np.exp(-3.0)))
    assert (found.num_tokens, found.place) == (2, 1)


def finding(**fields) -> WatchMatch:
    values = {"rule": RULES[0], "value": 3.0, "num_tokens": 2, "place": 5, "in_prompt": True, "at": timezone.now()}
    return WatchMatch(**{**values, "model": "demo", "profile": "gloomy@1", "request_id": "r", **fields})


def test_events_are_written_once_and_forgotten_in_time(feature):
    Feature.objects.filter(sae=feature.sae, index=3).update(label="cats")
    old = timezone.now() - timedelta(days=100)
    register_webhook(User, "watch.triggered")
    watch_services.record_matches([finding(), finding(rule=RULES[1]), finding(request_id="old", at=old)])
    watch_services.record_matches([finding(value=99.0)])
    deliveries = WebhookDelivery.objects.filter(event_type="watch.triggered").values_list("data", flat=True)
    names = ("pk", "rule", "model", "request_id")
    assert [(data["id"], *map(data.get, names[1:])) for data in deliveries.order_by("pk")] == list(
        WatchEvent.objects.order_by("pk").values_list(*names)
    )

    event = WatchEvent.objects.get(rule="a", request_id="r")
    assert (event.value, event.label, event.threshold, event.profile) == (3.0, "cats", 2.0, "gloomy@1")
    assert event.subject == "demo-sae #3 cats"
    probe = ActiveRule(
        3, "c", "alert", WatchedVector("angry at layer 2 (resid_post)", Site(2), b"", LinearProbe()), 0.5
    )
    watch_services.record_matches([finding(rule=probe)])
    event = WatchEvent.objects.get(rule="c")
    assert (event.subject, event.sae, event.feature) == ("angry at layer 2 (resid_post)", "", None)
    event.delete()
    assert WatchEvent.objects.count() == 3
    assert watch_services.prune_events(before=timezone.now() - timedelta(days=90)) == 1
    assert set(WatchEvent.objects.values_list("request_id", flat=True)) == {"r"}
