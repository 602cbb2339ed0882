"""The playground's doors: who comes in, what may be sent, and what an answer's tokens are told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group, Permission, User
from django.test import AsyncClient, Client
from django.urls import reverse

from inference.client import (
    DivergenceEvent,
    Event,
    FailedEvent,
    GenerationRequest,
    ScoresEvent,
    Timings,
    Usage,
)
from inference.models import LanguageModel
from steering.models import SAE, Feature, SteeringProfile
from tests.console.test_pages import client_of, staff
from tests.management_api.conftest import make_user
from tests.openai_api.conftest import Api, api, chunks_of  # noqa: F401 - a fixture
from tests.openai_api.fakes import finished, silent
from tests.steering.conftest import cold_snapshots, feature, model, other_model, profile, sae  # noqa: F401 - fixtures

pytestmark = pytest.mark.django_db(transaction=True)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi <script>"}], "max_tokens": 5}
INSPECTION = {"model": "tiny", "kind": "chat", "prompt_ids": [256, 104], "completion_ids": [72, 101, 108]}
BODIES: dict[str, dict[str, Any]] = {
    "chat": CHAT,
    "completion": {"model": "tiny", "prompt": "hi", "max_tokens": 5},
    "inspect": {**INSPECTION, "profile": None},
}


async def signed_in(*codenames: str, **fields: Any) -> AsyncClient:
    user = await User.objects.acreate_user("rita", **{"is_staff": True, **fields})
    await user.user_permissions.aset([row async for row in Permission.objects.filter(codename__in=codenames)])
    client = AsyncClient()
    await client.aforce_login(user)
    return client


async def post(client: AsyncClient, name: str, body: Any) -> Any:
    return await client.post(reverse(f"playground-{name}"), json.dumps(body), content_type="application/json")


def scoring(request: GenerationRequest) -> Iterable[Event]:
    """What the engine says of a continuation that is there."""
    assert request.scoring is not None
    num = len(request.scoring.token_ids)
    events: list[Event] = [ScoresEvent(request.index, (-0.5 - request.index,) * num)]
    if request.scoring.pair and request.scoring.is_reference:
        events.append(DivergenceEvent(request.index, request.scoring.pair, (0.25,) * num))
    return [*events, finished(request, num, "length")]


def test_a_feature_is_opened_by_its_sae_and_index(feature: Feature):  # noqa: F811
    client = client_of(staff("use_playground", "view_feature"))
    url = reverse("admin:console_playground_feature")
    opened = client.get(url, {"sae": feature.sae.name, "index": str(feature.index)})
    assert opened["location"] == reverse("admin:steering_feature_change", args=[quote(feature.reference)])
    of_none = {"sae": "none\0", "index": str(feature.index)}
    for wrong in ({}, of_none, {"sae": feature.sae.name, "index": "x"}):
        assert client.get(url, wrong).status_code == 404
    assert client_of(staff("use_playground")).get(url).status_code == 403


@pytest.mark.parametrize("name", ["chat", "completion"])
async def test_answers_stream_and_are_logged_under_the_user(api: Api, name: str):  # noqa: F811
    client = await signed_in("use_playground")
    response = await post(client, name, {**BODIES[name], "profile": "cats", "steering_intensity": 0.5, "seed": 3})
    chunks = await chunks_of(response)
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["millm"]["profile"] == "cats@2"
    entry = api.log.only
    assert (entry.user, entry.stream, entry.profile, entry.status) == ("rita", True, "cats@2", 200)
    assert entry.endpoint == {"chat": "/v1/chat/completions", "completion": "/v1/completions"}[name]
    assert api.engine.requests[0].sampling.seed == 3
    assert response["x-request-id"] == entry.id
    assert entry.source == "console"


@pytest.mark.parametrize("name", ["chat", "completion", "inspect"])
@pytest.mark.parametrize(
    ("codenames", "fields"),
    [((), {}), (("view_languagemodel",), {}), (("use_playground",), {"is_staff": False})],
)
async def test_it_needs_staff_and_the_permission(
    api: Api,  # noqa: F811
    name: str,
    codenames: tuple[str, ...],
    fields: dict[str, Any],
):
    response = await post(await signed_in(*codenames, **fields), name, BODIES[name])
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "permission_denied"
    assert api.engine.requests == []


@pytest.mark.parametrize("name", ["chat", "completion", "inspect"])
async def test_nobody_and_other_sites_get_nothing(api: Api, name: str):  # noqa: F811
    assert (await post(AsyncClient(), name, BODIES[name])).status_code == 403
    strict = AsyncClient(enforce_csrf_checks=True)
    await strict.aforce_login(await User.objects.acreate_superuser("root"))
    assert (await post(strict, name, BODIES[name])).status_code == 403
    assert api.engine.requests == []


@pytest.mark.parametrize("field", ["user", "store", "stream", "n", "tools", "priority", "metadata"])
async def test_fields_that_the_page_does_not_send_are_refused(api: Api, field: str):  # noqa: F811
    response = await post(await signed_in("use_playground"), "chat", {**CHAT, field: "root"})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", field)
    assert api.engine.requests == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"[]", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b'{"model": "nothing", "messages": [{"role": "user", "content": "x"}]}', 404, "model_not_found"),
        (b'{"model": "tiny", "messages": []}', 400, "invalid_value"),
        (
            b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "profile": "no"}',
            404,
            "profile_not_found",
        ),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, "invalid_unicode"),
    ],
)
async def test_the_api_s_own_refusals_come_through(api: Api, body: bytes, status: int, code: str):  # noqa: F811
    client = await signed_in("use_playground")
    response = await client.post(reverse("playground-chat"), body, content_type="application/json")
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert api.engine.requests == []


async def test_get_does_nothing(api: Api):  # noqa: F811
    client = await signed_in("use_playground")
    response = await client.get(reverse("playground-chat"))
    assert (response.status_code, response["Allow"]) == (405, "POST")


async def test_an_answer_is_compared_with_what_it_were_without_steering(api: Api):  # noqa: F811
    api.engine.script = scoring
    api.steering.policies = ("calm@1",)
    response = await post(await signed_in("use_playground"), "inspect", {**INSPECTION, "profile": "cats"})
    body = response.json()
    assert body["kl"] == [0.25] * 3
    assert (body["logprobs"], body["unsteered_logprobs"]) == ([-0.5] * 3, [-1.5] * 3)
    assert body["values"] is None
    assert body["millm"]["profile"] == "cats@2"
    ours, base = api.engine.requests
    assert [
        ours.steering and ours.steering.fingerprint,
        base.steering and base.steering.fingerprint,
    ] == [
        "print-cats then calm@1",
        "calm@1",
    ]
    assert all(each.scoring and each.scoring.token_ids == (72, 101, 108) for each in (ours, base))
    assert (ours.prompt_token_ids, base.prompt_token_ids) == ((256, 104),) * 2
    assert (api.log.only.user, api.log.only.prompt_tokens) == ("rita", 2)


async def test_an_unsteered_answer_is_its_own_measure(api: Api):  # noqa: F811
    api.engine.script = scoring
    response = await post(await signed_in("use_playground"), "inspect", {**INSPECTION, "profile": None})
    body = response.json()
    assert body["kl"] is None
    assert body["unsteered_logprobs"] == body["logprobs"]
    assert len(api.engine.requests) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_ids": []}, "prompt_ids"),
        ({"prompt_ids": [-1]}, "prompt_ids"),
        ({"prompt_ids": [258]}, "prompt_ids"),
        ({"completion_ids": [2**70]}, "completion_ids"),
        ({"completion_ids": [True]}, "completion_ids"),
        ({"completion_ids": [1] * 4097}, "completion_ids"),
        ({"kind": "poem"}, "kind"),
        ({"feature": -1}, "feature"),
        ({"feature": 1.5}, "feature"),
    ],
)
async def test_what_cannot_be_inspected_is_named(api: Api, fields: dict[str, Any], param: str):  # noqa: F811
    response = await post(await signed_in("use_playground"), "inspect", {**INSPECTION, "profile": None, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)
    assert api.engine.requests == []


@pytest.mark.parametrize(
    ("code", "status"), [("scoring_too_large", 400), ("context_length_exceeded", 400), ("model_unloaded", 503)]
)
async def test_the_engine_s_refusals_are_said(api: Api, code: str, status: int):  # noqa: F811
    def script(request: GenerationRequest) -> Iterable[Event]:
        return [FailedEvent(request.index, code, "Too many tokens.", Usage(), Timings())]

    api.engine.script = script
    response = await post(await signed_in("use_playground"), "inspect", {**INSPECTION, "profile": "cats"})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert api.engine.streams[0].num_closes == 1


async def test_steering_that_did_not_act_is_no_comparison(api: Api):  # noqa: F811
    def script(request: GenerationRequest) -> Iterable[Event]:
        return [finished(request, 3, "length", receipt=None)]

    api.engine.script = script
    response = await post(await signed_in("use_playground"), "inspect", {**INSPECTION, "profile": "cats"})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "steering_not_applied")


async def test_an_inspection_has_a_deadline(api: Api, settings: Any):  # noqa: F811
    settings.MILLM_REQUEST_TIMEOUT = 0.05
    api.engine.script = silent
    response = await post(await signed_in("use_playground"), "inspect", {**INSPECTION, "profile": None})
    assert response.status_code == 504


def test_the_page_offers_what_one_may_see(model: LanguageModel, profile: SteeringProfile):  # noqa: F811
    from steering.services import publish_profile

    owner = User.objects.create_user("olga")
    profile.owner = owner
    profile.save()
    publish_profile(profile=profile)
    page = client_of(make_user("rita", "Researchers")).get("/admin/playground/")
    (facts,) = (each for each in page.context["models"] if each["name"] == model.name)
    assert facts["profiles"] == []
    profile.owner = None
    profile.save()
    page = client_of(make_user("rosa", "Researchers")).get("/admin/playground/")
    (facts,) = (each for each in page.context["models"] if each["name"] == model.name)
    assert facts["profiles"] == [{"name": profile.name, "versions": [1], "headlines": {}}]


def test_names_in_the_page_s_data_are_escaped():
    LanguageModel.objects.create(name="x\"><script>alert('1')</script>", source="/m")
    page = client_of(User.objects.create_superuser("root")).get("/admin/playground/")
    assert b"<script>alert" not in page.content


def test_without_a_model_the_page_says_what_to_do():
    LanguageModel.objects.create(name="vectors", source="/m", kind="embedding")
    text = client_of(User.objects.create_superuser("root")).get("/admin/playground/").content.decode()
    assert "No text generation models yet" in text
    assert reverse("admin:inference_languagemodel_add") in text


@pytest.mark.parametrize(("group", "status"), [("Researchers", 200), ("Auditors", 403), ("Admins", 200)])
def test_roles(group: str, status: int):
    assert Group.objects.filter(name=group).exists()
    client = client_of(make_user("someone", group))
    assert client.get("/admin/playground/").status_code == status
    assert client.get("/admin/playground/features/").status_code == status
    assert client.get("/admin/playground/labels/").status_code == status
    drafted = client.post("/admin/playground/draft/", "{}", content_type="application/json").status_code
    assert drafted == (400 if status == 200 else 403)


@pytest.mark.parametrize("text", ["", " ", "\0", "no such", "9" * 300, "'; drop table", "%"])
def test_searches_that_find_nothing(feature: Feature, model: LanguageModel, text: str):  # noqa: F811
    client = client_of(User.objects.create_superuser("root"))
    answer = client.get("/admin/playground/features/", {"q": text, "model": model.name})
    assert answer.json() == {"features": []}


def test_features_are_found_in_their_model_alone(feature: Feature, model: LanguageModel):  # noqa: F811
    Feature.objects.filter(pk=feature.pk).update(label="sudden rain")
    client = client_of(User.objects.create_superuser("root"))
    (found,) = client.get("/admin/playground/features/", {"q": "rai", "model": model.name}).json()["features"]
    assert (found["sae"], found["index"], found["label"]) == (feature.sae.name, feature.index, "sudden rain")
    assert client.get("/admin/playground/features/", {"q": "rai", "model": "other"}).json() == {"features": []}


@pytest.mark.parametrize(
    ("indices", "num"), [("{}", 1), ("{},{}", 1), ("", 0), ("x", 0), ("-1", 0), ("1" * 40, 0), ("{},", 0)]
)
def test_labels(feature: Feature, indices: str, num: int):  # noqa: F811
    Feature.objects.filter(pk=feature.pk).update(label="rain")
    client = client_of(User.objects.create_superuser("root"))
    asked = {"sae": feature.sae.name, "indices": indices.replace("{}", str(feature.index))}
    labels = client.get("/admin/playground/labels/", asked).json()["labels"]
    assert labels == ({str(feature.index): "rain"} if num else {})


def draft(client: Client, **fields: Any) -> Any:
    return client.post("/admin/playground/draft/", json.dumps(fields), content_type="application/json")


def test_edits_become_a_draft_of_the_user_s(model: LanguageModel, sae: SAE, feature: Feature):  # noqa: F811
    user = make_user("rita", "Researchers")
    edit = {
        "sae": sae.name,
        "index": feature.index,
        "operation": "clamp",
        "strength": 2.5,
        "unit": "raw",
        "phase": "generation",
    }
    answer = draft(client_of(user), name="played", model=model.name, steering={"features": [edit]})
    assert answer.status_code == 201, answer.content
    made = SteeringProfile.objects.get(name="played")
    assert (made.owner, made.model) == (user, model)
    row = made.edits.get()
    assert (row.feature, row.operation, row.strength, row.unit, row.phase) == (
        feature,
        "clamp",
        2.5,
        "raw",
        "generation",
    )
    assert client_of(user).get(answer.json()["url"]).status_code == 200
    again = draft(client_of(user), name="played", model=model.name, steering={"features": [edit]})
    assert (again.status_code, again.json()["error"]["param"]) == (400, "name")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"name": ""}, 400, "name"),
        ({"name": "not a slug"}, 400, "name"),
        ({"name": "x" * 101}, 400, "name"),
        ({"name": 3}, 400, "name"),
        ({"name": "a\0b"}, 400, "name"),
        ({"model": "nothing"}, 404, "model"),
        ({"steering": None}, 400, "steering.features"),
        ({"steering": {"features": []}}, 400, "steering.features"),
        ({"steering": {"features": [{"index": 10**9}]}}, 400, "steering.features[0].index"),
    ],
)
def test_a_draft_that_cannot_be_kept_is_refused_by_name(
    model: LanguageModel,  # noqa: F811
    feature: Feature,  # noqa: F811
    fields: dict[str, Any],
    status: int,
    param: str,
):
    edit = {"sae": feature.sae.name, "index": feature.index}
    good = {"name": "played", "model": model.name, "steering": {"features": [edit]}}
    answer = draft(client_of(staff("use_playground", "add_steeringprofile")), **{**good, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert not SteeringProfile.objects.exists()


def test_a_draft_needs_the_right_to_make_profiles(model: LanguageModel):  # noqa: F811
    assert draft(client_of(staff("use_playground")), name="played").status_code == 403
