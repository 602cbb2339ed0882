"""Nobody gives themselves, or others, more rights than they have: on any form, action or inline, or through /api."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import Model
from django.test import Client
from django.urls import get_resolver, reverse
from lxml import html

from inference import services
from inference.models import LanguageModel
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey
from tests.console.test_pages import client_of
from tests.management_api.conftest import api_of, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
TRUST = ("trust_remote_code", "allow_pickle")
SUPERUSER_ONLY = ("is_superuser", *TRUST)
ROLES = ("Researchers", "Auditors", "Admins", "user managers")


@pytest.fixture(autouse=True)
def _deployment_allows_code(settings: Any) -> None:
    """The switch of the deployment is on: what remains is the user's own right."""
    settings.MILLM_ALLOW_REMOTE_CODE = True


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root", password="a-walk-in-the-rain")


@pytest.fixture
def managers() -> Group:
    """A role of one's own making: users, groups and keys, and nothing else."""
    group = Group.objects.create(name="user managers")
    named = [f"{act}_{what}" for act in ("add", "change", "delete", "view") for what in ("user", "group", "apikey")]
    group.permissions.set(Permission.objects.filter(codename__in=[*named, "see_all_apikeys"]))
    return group


def rights(user: User) -> set[str]:
    return set(User.objects.get(pk=user.pk).get_all_permissions())


def filled(page: bytes) -> dict[str, Any]:
    """What a browser would post of the page's largest form, without the button."""
    forms = html.fromstring(page.decode()).forms
    form = max(forms, key=lambda each: len(list(each.inputs)), default=None)
    return dict(form.form_values()) if form is not None else {}


def greedy(fields: dict[str, Any]) -> dict[str, Any]:
    """With every box that only a superuser may tick, and all groups and permissions, wherever they could be read."""
    everything: dict[str, Any] = dict.fromkeys(SUPERUSER_ONLY, "on")
    groups = [str(pk) for pk in Group.objects.values_list("pk", flat=True)]
    everything |= {"groups": groups, "user_permissions": [], "permissions": []}
    everything["user_permissions"] = everything["permissions"] = [
        str(pk) for pk in Permission.objects.values_list("pk", flat=True)
    ]
    prefixes = {name.rsplit("-", 1)[0] for name in fields if name.count("-") >= 2 or name.endswith("-TOTAL_FORMS")}
    inlines = {f"{prefix}-{name}": value for prefix in prefixes for name, value in everything.items()}
    return {**fields, **everything, **inlines}


def rows() -> Iterator[tuple[Any, Model]]:
    for kind, page in admin.site._registry.items():
        for row in kind._base_manager.all()[:5]:
            yield page, row


def address(row: Model, page: str) -> str:
    args = [] if page in {"add", "changelist"} else [row.pk]
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{page}", args=args)


def escalated(user: User, before: set[str]) -> list[str]:
    """What went wrong, in words."""
    found = [f"{each} is a superuser" for each in User.objects.filter(is_superuser=True).exclude(username="root")]
    found += [f"{user} gained {sorted(rights(user) - before)[:3]}"] if rights(user) - before else []
    found += [f"{name} of {row} is set" for row in LanguageModel.objects.all() for name in TRUST if getattr(row, name)]
    return found


@pytest.mark.parametrize("role", ROLES)
def test_no_form_of_the_console_gives_more_than_its_user_has(
    role: str, root: User, managers: Group, model: LanguageModel, feature: object, profile: object
):
    user = make_user("mallory", role)
    make_user("victim", "Admins")
    for owner in (root, user):
        create_api_key(name=f"of {owner}", owner=owner)
    before, digest = rights(user), User.objects.get(pk=root.pk).password
    client = client_of(user)
    posts = 0
    for page, row in list(rows()):
        for kind in ("add", "change"):
            url = address(row, kind)
            shown = client.get(url)
            fields = filled(shown.content) if shown.status_code == 200 else {}
            client.post(url, greedy(fields))
            posts += 1
            assert escalated(user, before) == [], f"{url}: {escalated(user, before)}"
        for action in page.actions or ():
            name = action if isinstance(action, str) else action.__name__
            client.post(address(row, "changelist"), greedy({"action": name, "_selected_action": [str(row.pk)]}))
            posts += 1
            assert escalated(user, before) == [], f"{name}: {escalated(user, before)}"
    root.refresh_from_db()
    assert (root.password, root.is_superuser, root.is_active) == (digest, True, True)
    assert posts > 20


@pytest.mark.parametrize("role", ROLES)
def test_no_write_of_the_api_gives_more_than_its_user_has(role: str, root: User, managers: Group, model: LanguageModel):
    api = api_of(make_user("mallory", role))
    before = rights(api.user)
    everything = {**dict.fromkeys(SUPERUSER_ONLY, True), "name": "new", "source": "org/new", "owner": "root"}
    model_of_mine = {"name": "new", "source": "org/new", "trust_remote_code": True}
    tried = 0
    for pattern in api_routes():
        path = pattern.replace("{pk}", str(model.pk))
        for method in ("POST", "PATCH", "PUT"):
            for body in (everything, model_of_mine):
                api(method, path, body)
                tried += 1
        assert escalated(api.user, before) == [], path
    assert not ApiKey.objects.filter(owner=root).exists()
    assert tried > 150


def api_routes() -> Iterator[str]:
    """Every address of the management API, with {pk} where an object is named."""

    def walk(patterns: Any, prefix: str) -> Iterator[str]:
        for each in patterns:
            route = prefix + str(each.pattern)
            if hasattr(each, "url_patterns"):
                yield from walk(each.url_patterns, route)
            elif not iscoroutinefunction(each.callback):  # those below /api that are Neuronpedia's
                yield route

    for route in walk(get_resolver().url_patterns, ""):
        if route.startswith("api/"):
            plain = route.removeprefix("api/").replace("^", "").replace("$", "").replace(r"\.", ".")
            yield plain.replace("(?P<pk>[0-9]+)", "{pk}").replace(r"/\Z", "").replace("\\Z", "")


def test_an_admin_cannot_make_themselves_superuser():
    user = make_user("ada", "Admins")
    client = client_of(user)
    url = reverse("admin:auth_user_change", args=[user.pk])
    fields = filled(client.get(url).content)
    assert client.post(url, {**fields, "is_superuser": "on"}).status_code == 302  # the field is not read
    user.refresh_from_db()
    assert not user.is_superuser


def test_an_admin_cannot_take_over_or_lock_out_a_superuser(root: User):
    client = client_of(make_user("ada", "Admins"))
    change = reverse("admin:auth_user_change", args=[root.pk])
    password = reverse("admin:auth_user_password_change", args=[root.pk])
    new = {"password1": "hers-from-now-on", "password2": "hers-from-now-on", "usable_password": "true"}
    assert client.get(change).status_code == 200  # to look at
    assert client.post(change, {"username": "root", "is_active": ""}).status_code == 403
    assert client.post(password, new).status_code == 403
    assert client.post(reverse("admin:auth_user_delete", args=[root.pk]), {"post": "yes"}).status_code == 403
    client.post(
        reverse("admin:auth_user_changelist"),
        {"action": "delete_selected", "_selected_action": [str(root.pk)], "post": "yes"},
    )
    assert Client().login(username="root", password="a-walk-in-the-rain")


def test_who_manages_users_cannot_take_over_one_with_more_rights(managers: Group):
    other, sleeping = make_user("olga", "Admins"), make_user("sam", "Admins", is_active=False)
    client = client_of(make_user("mia", "user managers"))
    for user in (other, sleeping):
        url = reverse("admin:auth_user_password_change", args=[user.pk])
        new = {"password1": "hers-from-now-on", "password2": "hers-from-now-on", "usable_password": "true"}
        assert client.post(url, new).status_code == 403, user
    group = Group.objects.get(name="Admins")
    assert client.post(reverse("admin:auth_group_change", args=[group.pk]), {"name": "x"}).status_code == 403
    same = make_user("moe", "user managers")
    assert client.get(reverse("admin:auth_user_password_change", args=[same.pk])).status_code == 200


def test_who_manages_users_gives_roles_within_their_own_rights_only(managers: Group):
    client = client_of(make_user("mia", "user managers"))
    add = reverse("admin:auth_user_add")
    page = client.get(add).content.decode()
    assert "user managers" in page
    assert "Researchers" not in page
    posted = {"username": "neo", "password1": "a-walk-in-the-rain", "password2": "a-walk-in-the-rain"}
    posted |= {"usable_password": "true", "is_staff": "on"}
    answer = client.post(add, {**posted, "groups": str(Group.objects.get(name="Admins").pk)})
    assert "not one of the available choices" in answer.content.decode()
    assert not User.objects.filter(username="neo").exists()
    assert client.post(add, {**posted, "groups": str(managers.pk)}).status_code == 302


def test_a_superuser_still_does_all_of_it(root: User):
    client = client_of(root)
    user = make_user("ada", "Admins")
    url = reverse("admin:auth_user_change", args=[user.pk])
    assert client.post(url, {**filled(client.get(url).content), "is_superuser": "on"}).status_code == 302
    user.refresh_from_db()
    assert user.is_superuser


# Models that may run code of their own


@pytest.mark.parametrize("field", TRUST)
def test_only_a_superuser_lets_a_model_run_code(field: str, model: LanguageModel, root: User):
    admin_user = make_user("ada", "Admins")
    refused = api_of(admin_user)("PATCH", f"models/{model.pk}", {field: True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, field)
    added = api_of(admin_user)("POST", "models", {"name": "n", "source": "org/n", field: True})
    assert (added.status_code, added.json()["error"]["code"]) == (403, "permission_denied")
    client = client_of(admin_user)
    url = reverse("admin:inference_languagemodel_change", args=[model.pk])
    fields = filled(client.get(url).content)
    assert field not in fields
    client.post(url, {**fields, field: "on"})
    model.refresh_from_db()
    assert not getattr(model, field)
    assert api_of(root)("PATCH", f"models/{model.pk}", {field: True}).status_code == 200


@pytest.mark.parametrize("change", [{"source": "evil/model"}, {"revision": "evil"}])
def test_a_trusted_model_s_source_is_a_superuser_s_too(change: dict[str, str], model: LanguageModel, root: User):
    """Else an admin would choose whose code runs."""
    LanguageModel.objects.filter(pk=model.pk).update(trust_remote_code=True)
    user = make_user("ada", "Admins")
    (field,) = change
    refused = api_of(user)("PATCH", f"models/{model.pk}", change)
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, field)
    client = client_of(user)
    url = reverse("admin:inference_languagemodel_change", args=[model.pk])
    fields = filled(client.get(url).content)
    assert field not in fields
    client.post(url, {**fields, **change})
    before = getattr(model, field)
    model.refresh_from_db()
    assert getattr(model, field) == before
    # the rest stays an admin's, and so does taking the trust away
    assert api_of(user)("PATCH", f"models/{model.pk}", {"pinned": True}).status_code == 200
    assert api_of(user)("PATCH", f"models/{model.pk}", {"trust_remote_code": False}).status_code == 200


def test_services_refuse_it_whoever_calls_them(model: LanguageModel):
    user = make_user("ada", "Admins")
    with pytest.raises(PermissionDenied), transaction.atomic():
        services.register_model(name="n", source="org/n", trust_remote_code=True, user=user)
    model.trust_remote_code = True
    with pytest.raises(PermissionDenied), transaction.atomic():
        services.save_model(model, user=user)


def test_declarations_in_a_file_obey_who_brings_them(tmp_path: Path, root: User):
    from inference.declarations import DeclarationError, sync_models

    file = tmp_path / "models.toml"
    file.write_text('[models.n]\nsource = "org/n"\nconfig = { trust_remote_code = true }\n')
    with pytest.raises(DeclarationError, match="superuser"):
        sync_models(path=file, user=make_user("ada", "Admins"))
    assert not LanguageModel.objects.exists()


@pytest.mark.parametrize("field", TRUST)
def test_without_the_deployment_s_switch_nobody_does(field: str, model: LanguageModel, root: User, settings: Any):
    settings.MILLM_ALLOW_REMOTE_CODE = False
    refused = api_of(root)("PATCH", f"models/{model.pk}", {field: True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    assert "MILLM_ALLOW_REMOTE_CODE" in refused.json()["error"]["message"]
    with pytest.raises(ValidationError, match="MILLM_ALLOW_REMOTE_CODE"), transaction.atomic():
        services.save_model(LanguageModel(name="n", source="org/n", **{field: True}))
    # a row from before stays as it is, can be edited otherwise, and has no effect
    LanguageModel.objects.filter(pk=model.pk).update(**{field: True})
    assert api_of(root)("PATCH", f"models/{model.pk}", {"pinned": True}).status_code == 200
    row = LanguageModel.objects.get(pk=model.pk)
    assert not getattr(row.model_source, field)


# Keys in another user's name


@pytest.mark.parametrize("scopes", [[], ["manage"], ["generate"]])
def test_a_key_in_another_s_name_needs_the_right_to_act_as_them(scopes: list[str], root: User):
    body = {"name": "k", "owner": "root", "scopes": scopes}
    refused = api_of(make_user("ada", "Admins"))("POST", "keys", body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    assert not ApiKey.objects.filter(name="k").exists()
    make_user("rita", "Researchers")
    assert api_of(make_user("bea", "Admins"))("POST", "keys", {**body, "owner": "rita"}).status_code == 201


def test_who_sees_all_keys_may_not_therefore_make_or_rotate_them(root: User):
    """Keys read their owner's files, responses and chats."""
    group = Group.objects.create(name="key keepers")
    named = ["add_apikey", "change_apikey", "view_apikey", "see_all_apikeys"]
    group.permissions.set(Permission.objects.filter(codename__in=named))
    keeper = api_of(make_user("kim", "key keepers"))
    rita = make_user("rita")
    key = create_api_key(name="hers", owner=rita).api_key
    assert keeper("POST", "keys", {"name": "k", "owner": "rita"}).status_code == 403
    assert keeper("POST", f"keys/{key.pk}/rotate", {}).status_code == 403
    assert keeper("PATCH", f"keys/{key.pk}", {"requests_per_minute": 5}).status_code == 200
    client = client_of(keeper.user)
    url = reverse("admin:openai_api_apikey_add")
    assert client.post(url, {**filled(client.get(url).content), "name": "k", "owner": str(rita.pk)}).status_code == 403
    own = create_api_key(name="own", owner=keeper.user).api_key
    url = reverse("admin:openai_api_apikey_change", args=[own.pk])
    moved = client.post(url, {**filled(client.get(url).content), "owner": str(rita.pk)})
    assert moved.status_code == 403  # the secret that kim knows would be rita's
    assert ApiKey.objects.filter(owner=rita).count() == 1
    assert keeper("POST", f"keys/{key.pk}/revoke", {"reason": "leaked"}).status_code == 200
