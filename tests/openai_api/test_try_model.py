"""The try-it box: a session's prompt on the way of every client, with its row under the user's name."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import AsyncClient

from tests.openai_api.conftest import Api, chunks_of

pytestmark = pytest.mark.django_db(transaction=True)
URL = "/admin/try-model"
ASK = {"model": "tiny", "prompt": "hi <script>", "max_tokens": "5"}


async def user(*codenames: str, **fields: Any) -> User:
    found = await User.objects.acreate_user("rita", **{"is_staff": True, **fields})
    await found.user_permissions.aset([row async for row in Permission.objects.filter(codename__in=codenames)])
    return found


async def signed_in(*codenames: str, **fields: Any) -> AsyncClient:
    client = AsyncClient()
    await client.aforce_login(await user(*codenames, **fields))
    return client


async def test_it_streams_and_is_logged_under_the_user(api: Api):
    client = await signed_in("view_languagemodel", "use_playground")
    response = await client.post(URL, ASK)
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/event-stream")
    chunks = await chunks_of(response)
    assert chunks[-1] == "[DONE]"
    assert all("error" not in chunk for chunk in chunks[:-1])
    entry = api.log.only
    assert (entry.user, entry.endpoint, entry.model, entry.status) == ("rita", "/v1/chat/completions", "tiny", 200)
    assert response["x-request-id"] == entry.id
    assert entry.stream
    assert entry.source == "console"


@pytest.mark.parametrize(
    ("codenames", "fields"),
    [((), {}), (("use_playground",), {"is_staff": False}), (("view_languagemodel", "view_requestlog"), {})],
)
async def test_it_needs_staff_and_the_permission(api: Api, codenames: tuple[str, ...], fields: dict[str, Any]):
    client = await signed_in(*codenames, **fields)
    response = await client.post(URL, ASK)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "permission_denied"
    assert api.engine.requests == []


@pytest.mark.parametrize(("group", "may"), [("Auditors", False), ("Researchers", True), ("Admins", True)])
async def test_who_may_only_look_does_not_generate(api: Api, group: str, may: bool):
    """Nor is offered to: the form is on the pages of those who may use the playground."""
    visitor = await user()
    await visitor.groups.aadd(await Group.objects.aget(name=group))
    client = AsyncClient()
    await client.aforce_login(visitor)
    response = await client.post(URL, ASK)
    assert response.status_code == (200 if may else 403)
    if may:
        await chunks_of(response)
    assert len(api.engine.requests) == may


async def test_nobody_gets_nothing(api: Api):
    assert (await AsyncClient().post(URL, ASK)).status_code == 403


async def test_another_site_s_form_is_refused(api: Api):
    client = AsyncClient(enforce_csrf_checks=True)
    await client.aforce_login(await user("use_playground"))
    assert (await client.post(URL, ASK)).status_code == 403
    assert api.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 20_001}, "prompt"),
        ({"prompt": "\0"}, "prompt"),
        ({"max_tokens": "0"}, "max_tokens"),
        ({"max_tokens": "2001"}, "max_tokens"),
        ({"max_tokens": "nan"}, "max_tokens"),
        ({"model": ""}, "model"),
    ],
)
async def test_bad_fields_are_named(api: Api, fields: dict[str, str], param: str):
    client = await signed_in("view_languagemodel", "use_playground")
    response = await client.post(URL, {**ASK, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_the_api_s_own_refusals_come_through(api: Api):
    client = await signed_in("view_languagemodel", "use_playground")
    response = await client.post(URL, {**ASK, "model": "nothing"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert api.log.only.user == "rita"


async def test_get_does_nothing(api: Api):
    client = await signed_in("view_languagemodel", "use_playground")
    response = await client.get(URL)
    assert (response.status_code, response["Allow"]) == (405, "POST")


async def test_its_user_shares_beginnings_with_own_keys_only(api: Api):
    client = await signed_in("use_playground")
    await chunks_of(await client.post(URL, ASK))
    rita = await User.objects.aget(username="rita")
    for owner in (rita.pk, rita.pk + 1):
        await api.chat(api.keys.add(str(owner), owner_id=owner))
    visited, own, other = (request.cache_salt for request in api.engine.requests)
    assert visited == own != other
