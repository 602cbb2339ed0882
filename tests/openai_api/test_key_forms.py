"""A key's default profile is one that is published."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from inference.models import LanguageModel
from openai_api.keys.forms import ApiKeyForm, profile_choices
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey
from steering.models import ProfileVersion, SteeringProfile
from steering.profiles import lifecycle
from tests.openai_api.test_admin import KEYS, fields_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def profiles() -> list[SteeringProfile]:
    """gloomy@1 and gloomy@2 of one model, joyful@1 of two, and drafts that nobody published."""
    models = [LanguageModel.objects.create(name=name, source="x") for name in ("tiny", "other")]
    made = []
    for name, model, count in (("gloomy", 0, 2), ("joyful", 0, 1), ("joyful", 1, 1), ("draft", 0, 0)):
        profile = SteeringProfile.objects.create(name=name, model=models[model])
        for number in range(1, count + 1):
            ProfileVersion.objects.create(profile=profile, number=number, edits=[], fingerprint=str(number))
        made.append(profile)
    return made


def values(current: str = "") -> list[str]:
    return [value for _, group in profile_choices(current)[1:] for value, _ in (group if type(group) is list else [])]


def test_names_and_versions_are_offered(profiles):
    assert values() == ["gloomy", "gloomy@2", "gloomy@1", "joyful", "joyful@1"]
    assert [label for label, group in profile_choices() if isinstance(group, list)] == [
        "gloomy (tiny)",
        "joyful (other, tiny)",
    ]


def test_a_key_that_says_nothing_of_the_log_is_said_to_do_so(admin_client: Client):
    page = admin_client.get(KEYS + "add/").content.decode()
    assert '<option value="" selected>server default</option>' in page


def test_archived_ones_are_not(profiles):
    lifecycle.archive_profile(profile=profiles[0])
    assert values() == ["joyful", "joyful@1"]


@pytest.mark.parametrize("chosen", ["", "gloomy", "gloomy@1"])
def test_what_is_chosen_is_kept(admin_client: Client, admin_user: Any, profiles, chosen: str):
    assert admin_client.post(KEYS + "add/", fields_of(admin_user, default_profile=chosen)).status_code == 200
    key = ApiKey.objects.get()
    assert key.default_profile == chosen
    page = admin_client.get(f"{KEYS}{key.pk}/change/").content.decode()
    assert f'<option value="{chosen}" selected>' in page


@pytest.mark.parametrize("chosen", ["gloomy@3", "draft", "nonsense", "gloomy@1 ", "<b>", "\0"])
def test_anything_else_is_refused(admin_client: Client, admin_user: Any, profiles, chosen: str):
    response = admin_client.post(KEYS + "add/", fields_of(admin_user, default_profile=chosen))
    assert response.status_code == 200
    assert response.context["adminform"].form.errors["default_profile"]
    assert not ApiKey.objects.exists()


def test_a_default_that_was_archived_stays_until_somebody_changes_it(admin_client: Client, admin_user: Any, profiles):
    key = create_api_key(name="a", owner=admin_user, default_profile="gloomy").api_key
    lifecycle.archive_profile(profile=profiles[0])
    assert profile_choices("gloomy")[-1] == ("gloomy", "gloomy (unavailable: not published or archived)")
    data = fields_of(admin_user, name="b", default_profile="gloomy")
    assert admin_client.post(f"{KEYS}{key.pk}/change/", data).status_code == 302
    key.refresh_from_db()
    assert (key.name, key.default_profile) == ("b", "gloomy")


def test_who_may_only_look_sees_it(client: Client, django_user_model: Any, profiles):
    user = django_user_model.objects.create_user("auditor", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_apikey", "see_all_apikeys"]))
    client.force_login(user)
    key = create_api_key(name="a", owner=user, default_profile="gloomy@1").api_key
    assert "gloomy@1" in client.get(f"{KEYS}{key.pk}/change/").content.decode()


def test_versions_cost_one_query(profiles, django_assert_num_queries):
    with django_assert_num_queries(1):
        profile_choices()
    assert ApiKeyForm.base_fields["default_profile"].required is False
