"""Watch rules and their events in the admin."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.utils import timezone

from audit.models import AuditEvent
from inference.permissions import ensure_groups
from steering.models import SAE, Feature, WatchEvent, WatchRule
from steering.watch.services import record_matches
from steering.watch.watcher import ActiveRule, WatchMatch

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


def test_an_sae_that_a_rule_needs_stays(admin_client, feature):
    admin_client.post(ADD, form(feature))
    response = admin_client.post(f"/admin/steering/sae/{feature.sae_id}/delete/", {"post": "yes"}, follow=True)
    assert response.status_code in {200, 403}
    assert SAE.objects.filter(pk=feature.sae_id).exists()


def test_events_are_shown_with_labels_and_their_request_and_cannot_be_changed(admin_client, feature):
    rule = ActiveRule(1, "storm", "alert", "demo-sae", feature.index, 2.0)
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
