"""The static key of MILLM_ADMIN_API_KEY: valid beside the keys of the database, as long as the setting is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.test import Client

from audit.models import AuditEvent
from openai_api.keys.authentication import find_key, load_keys, snapshot
from openai_api.keys.services import create_api_key, revoke_api_keys, rotate_api_key
from openai_api.keys.static_key import NAME, ensure_static_key, mark_of
from openai_api.models import ApiKey
from openai_api.request_log.search_form import is_prefix

KEY = "static-key-of-the-tests-0123456789"
OTHER = "another-key-of-the-tests-0123456789"


@pytest.fixture
def admin(db: None, settings: Any) -> Iterator[User]:
    snapshot.forget()
    settings.MILLM_ADMIN_API_KEY = KEY
    yield User.objects.create_superuser("root")
    snapshot.forget()


def test_static_key_has_all_rights_of_the_first_superuser(admin: User) -> None:
    record = find_key(KEY, load_keys())
    assert record is not None
    assert record.owner_id == admin.pk
    assert record.may_manage
    assert record.may_manage_models
    assert record.may_steer_inline
    assert record.scopes == {"generate", "features", "files", "media", "manage"}
    assert record.prefix == "static-stat"
    assert is_prefix(record.prefix)


def test_the_first_superuser_makes_it_valid_at_once(
    db: None, settings: Any, django_capture_on_commit_callbacks: Any
) -> None:
    settings.MILLM_ADMIN_API_KEY = KEY
    snapshot.forget()
    assert find_key(KEY, snapshot.get()) is None  # read before there is a superuser, as by the migrations
    with django_capture_on_commit_callbacks(execute=True):
        User.objects.create_superuser("root")
    assert find_key(KEY, snapshot.get()) is not None
    snapshot.forget()


def test_keys_of_the_database_stay_valid(admin: User) -> None:
    plain = create_api_key(name="laptop", owner=admin).plain
    records = load_keys()
    assert find_key(plain, records) is not None
    assert find_key(KEY, records) is not None
    assert find_key(KEY + "x", records) is None
    assert find_key(KEY[:-1], records) is None


def test_row_is_made_once_and_audited(admin: User) -> None:
    load_keys()
    load_keys()
    row = ApiKey.objects.get(name=NAME)
    [event] = AuditEvent.objects.filter(subject__contains=NAME)
    assert event.action == AuditEvent.Action.ADD
    assert KEY not in str(vars(row)) + str(vars(event))


def test_change_of_one_row_keeps_the_static_key(admin: User) -> None:
    load_keys()
    row = ApiKey.objects.get(name=NAME)
    assert find_key(KEY, load_keys([row.pk])) is not None


def test_nothing_in_the_database_makes_it_valid_without_the_setting(admin: User, settings: Any) -> None:
    load_keys()
    settings.MILLM_ADMIN_API_KEY = ""
    records = load_keys()
    assert find_key(KEY, records) is None
    assert find_key(mark_of(KEY), records) is None  # what the row holds is no key


def test_another_value_is_another_key(admin: User, settings: Any) -> None:
    load_keys()
    settings.MILLM_ADMIN_API_KEY = OTHER
    records = load_keys()
    assert find_key(KEY, records) is None
    assert find_key(OTHER, records) is not None
    assert ApiKey.objects.filter(name=NAME).count() == 2


def test_revoked_static_key_stays_refused_and_the_server_says_so(admin: User) -> None:
    load_keys()
    assert ensure_static_key() == ""
    revoke_api_keys(keys=ApiKey.objects.filter(name=NAME))
    assert find_key(KEY, load_keys()) is None
    problem = ensure_static_key()
    assert problem.startswith("MILLM_ADMIN_API_KEY is not accepted: the key Static key")
    assert KEY not in problem


def test_static_key_cannot_be_rotated(admin: User) -> None:
    load_keys()
    with pytest.raises(ValidationError, match="MILLM_ADMIN_API_KEY"):
        rotate_api_key(api_key=ApiKey.objects.get(name=NAME))


def test_without_a_superuser_the_server_says_what_to_do(db: None, settings: Any) -> None:
    settings.MILLM_ADMIN_API_KEY = KEY
    assert "createsuperuser" in ensure_static_key()
    assert not ApiKey.objects.exists()


def test_console_shows_whether_the_setting_is_there(admin: User, settings: Any, client: Client) -> None:
    load_keys()
    client.force_login(admin)
    assert "not usable" not in client.get("/admin/openai_api/apikey/").content.decode()
    settings.MILLM_ADMIN_API_KEY = ""
    page = client.get("/admin/openai_api/apikey/").content.decode()
    assert "not usable: MILLM_ADMIN_API_KEY is unset or has another value" in page
    assert KEY not in page
