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
from inference.captures import ActivationCapture, FeatureValues
from inference.models import LanguageModel
from inference.steering_refs import STEERING_COMPILER
from steering.errors import InvalidProfileError
from steering.models import SAE, Feature, WatchEvent, WatchRule
from steering.profiles.snapshot import published_profiles
from steering.watch import services as watch_services
from steering.watch.watcher import ActiveRule, Watch, Watcher, WatchMatch, WatchMatches, watched_models

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
    with pytest.raises(InvalidProfileError, match="threshold"):
        saved(feature, threshold=threshold, unit="raw")
    assert not WatchRule.objects.exists()


def test_a_unit_without_its_number_is_refused(feature):
    feature.max_activation = None
    with pytest.raises(InvalidProfileError, match="max activation, which is not known; use `raw`"):
        saved(feature)


def test_a_cap_of_a_normalising_sae_is_refused(feature):
    SAE.objects.update(normalization="layer_norm")
    feature.refresh_from_db()
    with pytest.raises(InvalidProfileError, match="normalises"):
        saved(feature, action="cap")
    saved(feature, action="alert")


def test_a_cap_becomes_a_policy_behind_all_others(feature):
    saved(feature, action="cap", threshold=1.5, unit="raw")
    saved(feature, name="idle", action="cap", is_active=False)
    (policy,) = published_profiles.get().policies[feature.sae.model_id]

    assert policy.label == "watch:rain"
    (edit,) = policy.edits
    assert (edit["operation"], edit["strength"], edit["feature"]["index"]) == ("at_most", 1.5, feature.index)


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

RULES = (ActiveRule(1, "a", "alert", "demo-sae", 3, 2.0), ActiveRule(2, "b", "cap", "demo-sae", 4, 5.0))


def test_sightings_keep_the_largest_value_of_each_rule():
    sightings, now = WatchMatches(Watch((), (RULES,))), timezone.now()
    first = np.array([[3.0, 0.0], [9.0, 1.0]], np.float32)
    sightings.note(0, ActivationCapture(0, 2, first, (4, 7)), num_prompt=6, now=now)
    sightings.note(0, ActivationCapture(0, 1, np.array([[8.0, 5.0]], np.float32), (9,)), num_prompt=6, now=now)

    (found,) = sightings.findings
    assert (found.rule.name, found.value, found.num_tokens, found.place, found.in_prompt) == ("a", 9.0, 3, 7, False)


def finding(**fields) -> WatchMatch:
    values = {"rule": RULES[0], "value": 3.0, "num_tokens": 2, "place": 5, "in_prompt": True, "at": timezone.now()}
    return WatchMatch(**{**values, "model": "demo", "profile": "gloomy@1", "request_id": "r", **fields})


def test_events_are_written_once_and_forgotten_in_time(feature):
    Feature.objects.filter(sae=feature.sae, index=3).update(label="cats")
    old = timezone.now() - timedelta(days=100)
    watch_services.record_matches([finding(), finding(rule=RULES[1]), finding(request_id="old", at=old)])
    watch_services.record_matches([finding(value=99.0)])

    event = WatchEvent.objects.get(rule="a", request_id="r")
    assert (event.value, event.label, event.threshold, event.profile) == (3.0, "cats", 2.0, "gloomy@1")
    assert WatchEvent.objects.count() == 3
    assert watch_services.prune_events(before=timezone.now() - timedelta(days=90)) == 1
    assert set(WatchEvent.objects.values_list("request_id", flat=True)) == {"r"}
