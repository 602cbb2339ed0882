"""The preview of a draft: permissions, requests, logging, and that nothing is saved."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import AsyncClient
from django.urls import reverse

from inference.registry.model_card import ModelNotReadyError
from openai_api.models import RequestLog
from openai_api.request_log.pages.detail import version_html
from steering.models import SAE, FeatureEdit, SteeringProfile
from steering.profiles.resolver import SteeringSelection
from tests.console.test_playground import scoring, signed_in
from tests.openai_api.conftest import Api, api, chunks_of  # noqa: F401 - a fixture
from tests.openai_api.fakes import failing, finished
from tests.steering.conftest import cold_snapshots, feature, model, other_model, profile, sae  # noqa: F401 - fixtures
from tests.steering.resolving import intervention_of, local_resolver
from tests.steering.test_draft_form import EDITOR, Form, read, saved

pytestmark = pytest.mark.django_db(transaction=True)
RIGHTS = ("use_playground", *EDITOR)
ASKED: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi <script>"}], "max_tokens": 5, "seed": 3},
    "completion": {"prompt": "hi", "max_tokens": 5, "seed": 3},
    "inspect": {"kind": "chat", "prompt_ids": [256, 104], "completion_ids": [72, 101, 108]},
}
saved_form = sync_to_async(saved)


async def post(
    client: AsyncClient, subject: SteeringProfile, form: Form, asked: object = ASKED["chat"], kind="chat"
) -> Any:
    preview = asked if isinstance(asked, str) else json.dumps(asked)
    return await client.post(reverse(f"draft-{kind}", args=[subject.pk]), {**form, "_preview": preview})


def refusal(response: Any) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    assert error["message"]
    return response.status_code, error["code"], error["param"]


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_draft_streams_and_is_logged_under_the_user(api: Api, profile: SteeringProfile, kind: str):  # noqa: F811
    form = await saved_form(profile, strength="1.5")
    response = await post(await signed_in(*RIGHTS), profile, form, ASKED[kind], kind)
    chunks = await chunks_of(response)
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["millm"]["profile"] == "gloomy@draft"
    entry = api.log.only
    assert (entry.user, entry.model, entry.profile, entry.status) == ("rita", "tiny", "gloomy@draft", 200)
    assert entry.parameters["draft"] == ["tiny-sae #0 sad rainy weather: add 1.5 × max activation"]
    assert entry.parameters["seed"] == api.engine.requests[0].sampling.seed == 3
    (selection,) = api.steering.selections
    assert selection.draft is not None
    assert (selection.reference, selection.inline, selection.draft.number) == (None, None, 0)
    assert response["x-request-id"] == entry.id
    assert (await profile.edits.aget()).strength == 0.5


async def test_its_answer_is_compared_with_what_it_were_without(api: Api, profile: SteeringProfile):  # noqa: F811
    api.engine.script = scoring
    response = await post(await signed_in(*RIGHTS), profile, await saved_form(profile), ASKED["inspect"], "inspect")
    assert response.json()["kl"] == [0.25] * 3
    ours, base = api.engine.requests
    assert ours.steering is not None
    assert (ours.steering.fingerprint, base.steering) == ("print-gloomy@draft", None)


@pytest.mark.parametrize("kind", ["chat", "completion", "inspect"])
@pytest.mark.parametrize(
    ("rights", "fields", "status"),
    [
        (EDITOR, {}, 403),
        (("use_playground",), {}, 403),
        (("use_playground", "view_steeringprofile", "view_featureedit"), {}, 403),
        (RIGHTS, {"is_staff": False}, 403),
    ],
)
async def test_it_needs_what_the_playground_and_the_form_need(
    api: Api,  # noqa: F811
    profile: SteeringProfile,  # noqa: F811
    kind: str,
    rights: tuple[str, ...],
    fields: dict[str, Any],
    status: int,
):
    response = await post(await signed_in(*rights, **fields), profile, await saved_form(profile), ASKED[kind], kind)
    assert refusal(response)[:2] == (status, "permission_denied")
    assert api.engine.requests == []


async def test_nobody_and_other_sites_get_nothing(api: Api, profile: SteeringProfile):  # noqa: F811
    form = await saved_form(profile)
    assert (await post(AsyncClient(), profile, form)).status_code == 403
    strict = AsyncClient(enforce_csrf_checks=True)
    await strict.aforce_login(await User.objects.acreate_superuser("root"))
    assert (await post(strict, profile, form)).status_code == 403
    assert api.engine.requests == []


async def test_a_profile_that_one_may_not_see_is_not_there(api: Api, profile: SteeringProfile):  # noqa: F811
    form = await saved_form(profile)
    profile.owner = await User.objects.acreate_user("olga")
    await profile.asave()
    hidden = await post(await signed_in(*RIGHTS), profile, form)
    assert refusal(hidden)[:2] == (404, "profile_not_found")
    await profile.adelete()
    client = AsyncClient()
    await client.aforce_login(await User.objects.aget(username="rita"))
    profile.pk = 10**9
    assert hidden.content == (await post(client, profile, form)).content
    assert api.engine.requests == []


@pytest.mark.parametrize("pk", ["0", "x", "1%00", "99999999999999999999999"])
async def test_what_is_no_profile_s_number_is_no_profile(api: Api, pk: str):  # noqa: F811
    client = await signed_in(*RIGHTS)
    url = f"/admin/steering/steeringprofile/{pk}/preview/chat"
    response = await client.post(url, {"_preview": json.dumps(ASKED["chat"])})
    assert response.status_code == 404
    assert api.engine.requests == []


MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ("", 400, "invalid_json"),
        ("{", 400, "invalid_json"),
        ("[" * 10_000, 400, "invalid_json"),
        ("[]", 400, "invalid_value"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "invalid_unicode"),
        ({}, 400, "missing_required_parameter"),
        ({"messages": []}, 400, "invalid_value"),
        ({"messages": MESSAGES, "model": "other"}, 400, "unsupported_parameter"),
        ({"messages": MESSAGES, "profile": "cats"}, 400, "unsupported_parameter"),
        ({"messages": MESSAGES, "steering": {"features": []}}, 400, "unsupported_parameter"),
        ({"messages": MESSAGES, "user": "root"}, 400, "unsupported_parameter"),
        ({"messages": MESSAGES, "store": True}, 400, "unsupported_parameter"),
        ({"messages": MESSAGES, "max_tokens": -1}, 400, "invalid_value"),
        ({"messages": [{"role": "user", "content": "x" * 5_000}]}, 400, "context_length_exceeded"),
    ],
)
async def test_what_is_asked_badly_is_refused(
    api: Api,  # noqa: F811
    profile: SteeringProfile,  # noqa: F811
    asked: object,
    status: int,
    code: str,
):
    response = await post(await signed_in(*RIGHTS), profile, await saved_form(profile), asked)
    assert refusal(response)[:2] == (status, code)
    assert api.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"strength": "NaN"}, "edits-0-strength"),
        ({"strength": "1000"}, "edits-0-strength"),
        ({"feature": "999999999"}, "edits-0-feature"),
        ({"operation": "<script>alert(1)</script>"}, "edits-0-operation"),
        ({"scope": "thinking"}, "edits-0-phase"),
        ({"DELETE": "on"}, ""),
    ],
)
async def test_a_bad_draft_is_told_by_field_and_never_runs(
    api: Api,  # noqa: F811
    profile: SteeringProfile,  # noqa: F811
    fields: dict[str, Any],
    field: str,
):
    response = await post(await signed_in(*RIGHTS), profile, await saved_form(profile, **fields))
    assert refusal(response) == (400, "invalid_profile", "profile")
    assert response.json()["problems"][0]["field"] == field
    assert response["Content-Type"] == "application/json"
    assert (api.engine.requests, api.log.entries) == ([], [])
    assert (await profile.edits.aget()).strength == 0.5


async def test_a_model_that_is_not_loaded_says_so(api: Api, profile: SteeringProfile):  # noqa: F811
    api.registry.failure = ModelNotReadyError("The model tiny is still loading.", 5.0)
    response = await post(await signed_in(*RIGHTS), profile, await saved_form(profile))
    assert refusal(response)[:2] == (503, "model_not_ready")
    assert response["Retry-After"]
    assert api.log.only.status == 503


async def test_an_engine_that_fails_says_so_in_the_stream(api: Api, profile: SteeringProfile):  # noqa: F811
    api.engine.script = failing("model_unloaded", after="a")
    response = await post(await signed_in(*RIGHTS), profile, await saved_form(profile))
    assert (await chunks_of(response))[-1]["error"]["code"] == "model_unloaded"
    assert api.log.only.error_code == "model_unloaded"


async def test_a_draft_that_did_not_act_is_no_answer(api: Api, profile: SteeringProfile):  # noqa: F811
    api.engine.script = lambda request: [finished(request, 3, "length", receipt=None)]
    response = await post(await signed_in(*RIGHTS), profile, await saved_form(profile))
    assert refusal(response)[:2] == (500, "steering_not_applied")


async def test_get_does_nothing(api: Api, profile: SteeringProfile):  # noqa: F811
    response = await (await signed_in(*RIGHTS)).get(reverse("draft-chat", args=[profile.pk]))
    assert response.status_code == 405


async def test_the_resolver_compiles_a_draft_as_it_compiles_its_version(profile: SteeringProfile, sae: SAE):  # noqa: F811
    draft = await sync_to_async(read)(profile, await saved_form(profile))
    resolver = local_resolver()
    found = await resolver.steer("tiny", SteeringSelection(draft=draft.version), special_token_ids=frozenset())
    assert found is not None
    assert intervention_of(found).fingerprint == found.fingerprint
    assert (found.label, found.number, found.fingerprint) == ("gloomy@draft", 0, draft.version.fingerprint)
    assert await FeatureEdit.objects.acount() == 1


def test_the_log_says_that_it_was_a_draft():
    assert "draft" in str(version_html(RequestLog(profile="gloomy@draft", model="tiny")))
