"""docs/roles.md, line by line: each act of each role, on its page and through the API."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from inference.models import LanguageModel
from jobs.models import Job
from jobs.webhooks.models import WebhookDelivery, WebhookEndpoint
from jobs.webhooks.outbox import queue_test_event
from media.models import Voice
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey, RequestLog
from steering import services
from steering.models import (
    SAE,
    Evaluation,
    Feature,
    ProfileVersion,
    SteeringPolicy,
    SteeringProfile,
    VectorSet,
    WatchRule,
)
from steering.profiles import lifecycle
from tests.management_api.conftest import Api, api_of, make_user

pytestmark = pytest.mark.slow

TEXT = (Path(__file__).parents[2] / "docs" / "roles.md").read_text()
ROLES = ("Researchers", "Auditors", "Admins")


def table() -> dict[str, tuple[str, dict[str, bool]]]:
    """Act to its permission, and whether each role has it."""
    found = {}
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[1].startswith("`"):
            assert set(cells[2:]) <= {"yes", "no"}
            found[cells[0]] = (
                cells[1].strip("`"),
                dict(zip(ROLES, (cell == "yes" for cell in cells[2:]), strict=True)),
            )
    return found


TABLE = table()


@dataclass(frozen=True)
class Things:
    """One of everything; what has an owner is the user's or nobody's."""

    model: LanguageModel
    sae: SAE
    feature: Feature
    profile: SteeringProfile
    sketch: SteeringProfile
    version: ProfileVersion
    evaluation: Evaluation
    vectors: VectorSet
    policy: SteeringPolicy
    key: ApiKey
    log: RequestLog
    job: Job
    voice: Voice
    rule: WatchRule
    webhook: WebhookEndpoint
    delivery: WebhookDelivery


@pytest.fixture
def make_things(model: LanguageModel, sae: SAE, feature: Feature, profile: SteeringProfile) -> Callable[[User], Things]:
    def make(user: User) -> Things:
        version = services.publish_profile(profile=profile)
        policy = lifecycle.save_policy(policy=SteeringPolicy(version=version, reason="Because."))
        webhook = WebhookEndpoint.objects.create(
            name="ci", url="https://example.com/", event_types=["job.failed"], owner=user
        )
        return Things(
            model,
            sae,
            feature,
            profile,
            services.create_profile(name="sketch", model=model),
            version,
            Evaluation.objects.create(kind="sweep", version=version, result={"rows": []}),
            VectorSet.objects.create(name="calm", model=model, origin="calm.npz", checksum="0"),
            policy,
            create_api_key(name="laptop", owner=user).api_key,
            RequestLog.objects.create(id="req_1", created_at=timezone.now(), endpoint="/v1/models", status=200),
            Job.objects.create(kind="example.none", title="Something long", owner=user),
            Voice.objects.create(name="Rita", model=model),
            WatchRule.objects.create(name="storm", feature=feature, raw_threshold=1.0, reason="Because."),
            webhook,
            queue_test_event(webhook),
        )

    return make


Act = Callable[[Things], tuple[str, str]]
# Act to its page and its request: method and path. Pages that act are POSTs; forms are looked at.
ACTS: dict[str, tuple[Act, Act]] = {
    "see models": (lambda t: ("GET", "inference/languagemodel/"), lambda t: ("GET", "models")),
    "register a model": (lambda t: ("GET", "inference/languagemodel/add/"), lambda t: ("POST", "models")),
    "change, pin, load, unload a model": (
        lambda t: ("POST", f"inference/languagemodel/{t.model.pk}/change/"),
        lambda t: ("POST", f"models/{t.model.pk}/load"),
    ),
    "delete a model": (
        lambda t: ("GET", f"inference/languagemodel/{t.model.pk}/delete/"),
        lambda t: ("DELETE", f"models/{t.model.pk}"),
    ),
    "see voices": (
        lambda t: ("GET", f"media/voice/{t.voice.pk}/change/"),
        lambda t: ("GET", f"voices/{t.voice.pk}"),
    ),
    "create a voice": (lambda t: ("GET", "media/voice/add/"), lambda t: ("POST", "voices")),
    "change a voice": (
        lambda t: ("POST", f"media/voice/{t.voice.pk}/change/"),
        lambda t: ("PATCH", f"voices/{t.voice.pk}"),
    ),
    "delete a voice": (
        lambda t: ("GET", f"media/voice/{t.voice.pk}/delete/"),
        lambda t: ("DELETE", f"voices/{t.voice.pk}"),
    ),
    "see SAEs": (lambda t: ("GET", f"steering/sae/{t.sae.pk}/change/"), lambda t: ("GET", f"saes/{t.sae.pk}")),
    "add an SAE": (lambda t: ("GET", "steering/sae/add/"), lambda t: ("POST", "saes")),
    "measure, load, unload an SAE": (
        lambda t: ("POST", f"steering/sae/{t.sae.pk}/check/"),
        lambda t: ("POST", f"saes/{t.sae.pk}/measure"),
    ),
    "delete an SAE": (
        lambda t: ("GET", f"steering/sae/{t.sae.pk}/delete/"),
        lambda t: ("DELETE", f"saes/{t.sae.pk}"),
    ),
    "see features": (lambda t: ("GET", "steering/feature/"), lambda t: ("GET", "features")),
    "label a feature": (
        lambda t: ("POST", f"steering/feature/{t.feature.pk}/change/"),
        lambda t: ("PATCH", f"features/{t.feature.pk}"),
    ),
    "see profiles": (
        lambda t: ("GET", f"steering/steeringprofile/{t.profile.pk}/change/"),
        lambda t: ("GET", f"profiles/{t.profile.pk}/draft"),
    ),
    "make a profile": (lambda t: ("GET", "steering/steeringprofile/add/"), lambda t: ("POST", "profiles")),
    "change a draft": (
        lambda t: ("POST", f"steering/steeringprofile/{t.profile.pk}/change/"),
        lambda t: ("PUT", f"profiles/{t.profile.pk}/draft"),
    ),
    "publish, roll back": (
        lambda t: ("GET", f"steering/steeringprofile/{t.profile.pk}/roll-back/1/"),
        lambda t: ("POST", f"profiles/{t.profile.pk}/publish"),
    ),
    "archive a profile": (
        lambda t: ("POST", f"steering/steeringprofile/{t.sketch.pk}/archive/"),
        lambda t: ("POST", f"profiles/{t.sketch.pk}/archive"),
    ),
    "delete a draft": (
        lambda t: ("GET", f"steering/steeringprofile/{t.sketch.pk}/delete/"),
        lambda t: ("DELETE", f"profiles/{t.sketch.pk}"),
    ),
    "see versions": (
        lambda t: ("GET", f"steering/profileversion/{t.version.pk}/change/"),
        lambda t: ("GET", f"versions/{t.version.pk}"),
    ),
    "evaluate a version": (
        lambda t: ("GET", f"steering/profileversion/{t.version.pk}/sweep/"),
        lambda t: ("POST", f"versions/{t.version.pk}/sweep"),
    ),
    "see evaluations": (
        lambda t: ("GET", f"steering/evaluation/{t.evaluation.pk}/report.json"),
        lambda t: ("GET", f"evaluations/{t.evaluation.pk}"),
    ),
    "see vectors": (lambda t: ("GET", "steering/vectorset/"), lambda t: ("GET", f"vectors/{t.vectors.pk}")),
    "delete vectors": (
        lambda t: ("GET", f"steering/vectorset/{t.vectors.pk}/delete/"),
        lambda t: ("DELETE", f"vectors/{t.vectors.pk}"),
    ),
    "see policies": (lambda t: ("GET", "steering/steeringpolicy/"), lambda t: ("GET", f"policies/{t.policy.pk}")),
    "change policies": (
        lambda t: ("POST", f"steering/steeringpolicy/{t.policy.pk}/change/"),
        lambda t: ("PATCH", f"policies/{t.policy.pk}"),
    ),
    "see watch rules": (
        lambda t: ("GET", f"steering/watchrule/{t.rule.pk}/change/"),
        lambda t: ("GET", f"watch_rules/{t.rule.pk}"),
    ),
    "change watch rules": (
        lambda t: ("POST", f"steering/watchrule/{t.rule.pk}/change/"),
        lambda t: ("PATCH", f"watch_rules/{t.rule.pk}"),
    ),
    "see keys": (lambda t: ("GET", f"openai_api/apikey/{t.key.pk}/change/"), lambda t: ("GET", f"keys/{t.key.pk}")),
    "make a key": (lambda t: ("GET", "openai_api/apikey/add/"), lambda t: ("POST", "keys")),
    "change a key": (
        lambda t: ("POST", f"openai_api/apikey/{t.key.pk}/change/"),
        lambda t: ("PATCH", f"keys/{t.key.pk}"),
    ),
    "rotate a key, with a grace period for the old secret": (
        lambda t: ("GET", f"openai_api/apikey/{t.key.pk}/rotate/"),
        lambda t: ("POST", f"keys/{t.key.pk}/rotate"),
    ),
    "revoke a key": (
        lambda t: ("GET", f"openai_api/apikey/{t.key.pk}/revoke/"),
        lambda t: ("POST", f"keys/{t.key.pk}/revoke"),
    ),
    "delete a key": (
        lambda t: ("GET", f"openai_api/apikey/{t.key.pk}/delete/"),
        lambda t: ("DELETE", f"keys/{t.key.pk}"),
    ),
    "see webhooks": (
        lambda t: ("GET", f"webhooks/webhookendpoint/{t.webhook.pk}/change/"),
        lambda t: ("GET", f"webhooks/{t.webhook.pk}"),
    ),
    "register a webhook": (lambda t: ("GET", "webhooks/webhookendpoint/add/"), lambda t: ("POST", "webhooks")),
    "change a webhook, rotate its secret, send a test event": (
        lambda t: ("POST", f"webhooks/webhookendpoint/{t.webhook.pk}/test/"),
        lambda t: ("POST", f"webhooks/{t.webhook.pk}/rotate"),
    ),
    "delete a webhook": (
        lambda t: ("GET", f"webhooks/webhookendpoint/{t.webhook.pk}/delete/"),
        lambda t: ("DELETE", f"webhooks/{t.webhook.pk}"),
    ),
    "see webhook deliveries": (
        lambda t: ("GET", f"webhooks/webhookdelivery/{t.delivery.pk}/change/"),
        lambda t: ("GET", f"webhook_deliveries/{t.delivery.pk}"),
    ),
    "see the request log": (
        lambda t: ("GET", f"openai_api/requestlog/{t.log.pk}/change/"),
        lambda t: ("GET", f"logs/{t.log.pk}"),
    ),
    "see jobs": (lambda t: ("GET", f"jobs/job/{t.job.pk}/change/"), lambda t: ("GET", f"jobs/{t.job.pk}")),
    "cancel a job": (
        lambda t: ("POST", f"jobs/job/{t.job.pk}/cancel/"),
        lambda t: ("POST", f"jobs/{t.job.pk}/cancel"),
    ),
}


def test_every_act_of_the_table_is_tried():
    assert set(TABLE) == set(ACTS)
    assert len(TABLE) >= 30


def test_the_permissions_of_the_table_are_what_the_groups_have(db):
    for role in ROLES:
        user = make_user(role.lower(), role)
        for act, (permission, roles) in TABLE.items():
            assert user.has_perm(permission) == roles[role], f"{role}: {act}"


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("act", sorted(ACTS))
def test_on_its_page(act: str, role: str, make_things: Callable[[User], Things]):
    user = make_user("user", role)
    method, path = ACTS[act][0](make_things(user))
    client = Client()
    client.force_login(user)
    response = getattr(client, method.lower())(f"/admin/{path}")
    if TABLE[act][1][role]:
        assert response.status_code in {200, 302}
        assert "/login/" not in response.headers.get("Location", "")
    else:
        assert response.status_code == 403


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("act", sorted(ACTS))
def test_through_the_api(act: str, role: str, make_things: Callable[[User], Things]):
    api: Api = api_of(make_user("user", role))
    method, path = ACTS[act][1](make_things(api.user))
    response = api(method, path)
    if TABLE[act][1][role]:
        assert response.status_code not in {401, 403, 404, 405, 500}, response.content
    else:
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "permission_denied"


def test_who_may_not_rotate_changes_nothing_and_hears_of_nothing(make_things: Callable[[User], Things]):
    api: Api = api_of(make_user("user", "Researchers"))
    things = make_things(api.user)
    digest = things.key.digest
    for body in ({}, {"grace_s": 3600}, {"grace_s": "much"}):
        response = api.post(f"keys/{things.key.pk}/rotate", body)
        assert response.status_code == 403
        assert "key" not in response.json()
    things.key.refresh_from_db()
    assert (things.key.digest, things.key.rotated_at, things.key.old_digest) == (digest, None, None)
    others = create_api_key(name="desk", owner=make_user("olga")).api_key
    assert api.post(f"keys/{others.pk}/rotate", {"grace_s": 60}).status_code == 403


@pytest.mark.parametrize("act", sorted(ACTS))
def test_staff_without_a_role_may_do_nothing(act: str, make_things: Callable[[User], Things]):
    api: Api = api_of(make_user("nobody"))
    things = make_things(api.user)
    method, path = ACTS[act][1](things)
    assert api(method, path).status_code == 403
    client = Client()
    client.force_login(api.user)
    method, path = ACTS[act][0](things)
    assert getattr(client, method.lower())(f"/admin/{path}").status_code == 403


def test_every_permission_that_the_page_names_exists(db):
    existing = {f"{each.content_type.app_label}.{each.codename}" for each in Permission.objects.select_related()}
    named = set(re.findall(r"`(\w+\.\w+)`", TEXT))
    assert named <= existing
