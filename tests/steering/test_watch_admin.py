"""Watch rules and their events in the admin."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.utils import timezone

from audit.models import AuditEvent
from inference.interventions import Site
from inference.permissions import ensure_groups
from steering.models import SAE, Feature, VectorSet, WatchEvent, WatchRule
from steering.vectors.probes import LinearProbe
from steering.vectors.services import NewVector, save_vectors
from steering.watch.services import record_matches
from steering.watch.watcher import ActiveRule, WatchedFeature, WatchedVector, WatchMatch

pytestmark = pytest.mark.slow

LIST, ADD = "/admin/steering/watchrule/", "/admin/steering/watchrule/add/"


@pytest.fixture
def feature(db) -> Feature:
    call_command("install_demo")
    return Feature.objects.filter(sae__name="demo-sae", max_activation__gt=0).exclude(label="")[0]


def form(feature: Feature, /, **fields: object) -> dict[str, object]:
    values = {"name": "rain", "feature": feature.pk, "threshold": 0.5, "unit": "max_act", "action": "alert"}
    return {**values, "is_active": "on", "reason": "To see.", **fields}


def test_a_rule_from_adding_to_removing(admin_client, feature):
    response = admin_client.post(ADD, form(feature, action="cap"), follow=True)
    assert response.status_code == 200
    rule = WatchRule.objects.get()
    assert (rule.action, rule.created_by.username) == ("cap", "admin")
    assert rule.raw_threshold == pytest.approx(feature.max_activation / 2)

    admin_client.post(f"{LIST}{rule.pk}/change/", form(feature, threshold=2, unit="raw"), follow=True)
    assert WatchRule.objects.get().raw_threshold == 2.0
    WatchRule.objects.update(problem="Its SAE went fishing.")
    page = admin_client.get(LIST).content.decode()
    assert "went fishing" in page
    assert feature.label in page

    admin_client.post(f"{LIST}{rule.pk}/delete/", {"post": "yes"})
    assert not WatchRule.objects.exists()
    details = list(AuditEvent.objects.filter(action="watch").order_by("pk").values_list("user", "detail"))
    assert [(user, detail.split(":")[0]) for user, detail in details] == [
        ("admin", "added"),
        ("admin", "changed"),
        ("admin", "removed; its reason was"),
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"threshold": "-1"}, "finite number of at least 0"),
        ({"threshold": "nan"}, "Enter a number"),
        ({"reason": ""}, "required"),
        ({"name": "two words"}, "valid"),
        ({"feature": 10**9}, "valid choice"),
    ],
)
def test_what_would_not_act_is_said_beside_the_form(admin_client, feature, fields, text):
    response = admin_client.post(ADD, form(feature, **fields))
    assert response.status_code == 200
    assert text in response.content.decode()
    assert not WatchRule.objects.exists()


@pytest.fixture
def angry(feature) -> VectorSet:
    vectors = [NewVector(Site(layer), (0.5,) * 256) for layer in (1, 2)]
    return save_vectors(name="angry", model=feature.sae.model, vectors=vectors, origin="x")


def test_a_rule_on_a_vector(admin_client, feature, angry):
    vector = angry.vectors.get(layer=2)
    fields = {"feature": "", "vector": vector.pk, "bias": "-1", "sigmoid": "on", "threshold": "0.9", "unit": ""}
    assert admin_client.post(ADD, form(feature, **fields)).status_code == 302
    rule = WatchRule.objects.get()
    assert (rule.feature, rule.vector, rule.bias, rule.sigmoid) == (None, vector, -1.0, True)
    assert (rule.unit, rule.raw_threshold) == ("raw", 0.9)
    page = admin_client.get(LIST).content.decode()
    assert "angry at layer 2 (resid_post)" in page
    assert admin_client.get(f"{LIST}{rule.pk}/change/").status_code == 200
    other = {"feature": "", "vector": vector.pk, "unit": "raw", "threshold": "3", "bias": ""}
    admin_client.post(f"{LIST}{rule.pk}/change/", form(feature, **other))
    assert WatchRule.objects.get().bias == 0.0
    for model, count in ((feature.sae.model_id, 1), (0, 0)):
        assert admin_client.get(LIST, {"model": model}).context["cl"].result_count == count
    found = [WatchMatch(ActiveRule(1, "rain", "alert", WatchedVector(str(vector), Site(2), b"", LinearProbe()), 0.9),
                        0.99, 3, 5, True, timezone.now(), "demo", "", "req_1")]  # fmt: skip
    record_matches(found)
    event = WatchEvent.objects.get()
    assert "angry at layer 2" in admin_client.get("/admin/steering/watchevent/").content.decode()
    shown = admin_client.get(f"/admin/steering/watchevent/{event.pk}/change/").content.decode()
    assert "angry at layer 2" in shown
    assert "SAE:" not in shown
    assert admin_client.post(f"/admin/steering/vectorset/{angry.pk}/delete/", {"post": "yes"}).status_code == 200
    assert VectorSet.objects.exists()


@pytest.mark.parametrize(
    ("fields", "name", "text"),
    [
        ({"feature": ""}, "feature", "needs a `feature` or a `vector`"),
        ({"vector": True}, "vector", "either"),
        ({"feature": "", "vector": True, "unit": "max_act"}, "unit", "`raw`"),
        ({"feature": "", "vector": True, "unit": "", "sigmoid": "on", "threshold": "2"}, "threshold", "probability"),
        ({"sigmoid": "on"}, "sigmoid", "belongs to a vector"),
        ({"feature": "", "vector": 10**9}, "vector", "valid choice"),
    ],
)
def test_what_is_wrong_with_a_vector_is_said_beside_its_field(admin_client, feature, angry, fields, name, text):
    if fields.get("vector") is True:
        fields = fields | {"vector": angry.vectors.get(layer=2).pk}
    response = admin_client.post(ADD, form(feature, **fields))
    assert text in " ".join(response.context["adminform"].form.errors[name])
    assert not WatchRule.objects.exists()


def test_an_sae_that_a_rule_needs_stays(admin_client, feature):
    admin_client.post(ADD, form(feature))
    response = admin_client.post(f"/admin/steering/sae/{feature.sae_id}/delete/", {"post": "yes"}, follow=True)
    assert response.status_code in {200, 403}
    assert SAE.objects.filter(pk=feature.sae_id).exists()


def test_events_are_shown_with_labels_and_their_request_and_cannot_be_changed(admin_client, feature):
    rule = ActiveRule(1, "storm", "alert", WatchedFeature("demo-sae", feature.index), 2.0)
    record_matches([WatchMatch(rule, 7.25, 3, 5, True, timezone.now(), "demo", "gloomy@1", "req_1")])
    event = WatchEvent.objects.get()

    page = admin_client.get("/admin/steering/watchevent/").content.decode()
    assert feature.label in page
    assert '/admin/openai_api/requestlog/req_1/change/"' in page
    shown = admin_client.get(f"/admin/steering/watchevent/{event.pk}/change/").content.decode()
    assert "SAE:" in shown
    assert "Sae:" not in shown
    assert '/admin/openai_api/requestlog/req_1/change/"' in shown
    assert admin_client.get("/admin/steering/watchevent/add/").status_code == 403
    assert admin_client.post(f"/admin/steering/watchevent/{event.pk}/delete/", {"post": "yes"}).status_code == 403
    admin_client.post(f"/admin/steering/watchevent/{event.pk}/change/", {"value": 1})
    assert WatchEvent.objects.get().value == 7.25


def test_researchers_see_rules_and_do_not_make_them(client, feature):
    ensure_groups()
    user = User.objects.create_user("rita", password="x", is_staff=True)
    user.groups.add(Group.objects.get(name="Researchers"))
    client.force_login(user)

    assert client.get(LIST).status_code == 200
    assert client.get("/admin/steering/watchevent/").status_code == 200
    assert client.post(ADD, form(feature)).status_code == 403
    assert not WatchRule.objects.exists()
