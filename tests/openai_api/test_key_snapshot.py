"""Keys in the process: few queries however many keys, one key's change reads one key, and nothing old for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group, Permission, User
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from core.errors import MillmError
from core.runtime import runtime
from core.snapshots import MAX_CHANGED, Snapshot, SnapshotListener, announced_ids, announcement, process_token
from openai_api.backend import BACKEND, Backend
from openai_api.http.file_uploads import upload_refusal
from openai_api.keys import authentication as keys_module
from openai_api.keys.authentication import current_keys, find_key, load_changed_keys, load_keys, snapshot
from openai_api.keys.record import KeyRecord
from openai_api.keys.services import change_api_key, create_api_key, delete_api_keys, revoke_api_keys
from openai_api.models import ApiKey
from tests.openai_api.conftest import Api

MANY = 10_000
MODELS = "/v1/models"


@pytest.fixture(autouse=True)
def cold_snapshot() -> Iterator[None]:
    snapshot.forget()
    yield
    snapshot.forget()


def many_keys(owner: User, count: int = MANY) -> None:
    rows = (
        ApiKey(name=f"k{number}", owner=owner, prefix="sk-millm-aaaa", digest=f"{number:064x}", scopes=[])
        for number in range(count)
    )
    ApiKey.objects.bulk_create(rows, batch_size=2_000)


def in_scope_of_models(*names: str) -> list[Permission]:
    return list(Permission.objects.filter(codename__in=names, content_type__app_label="inference"))


@pytest.mark.slow
@pytest.mark.django_db
def test_ten_thousand_keys_are_read_with_three_queries(django_assert_num_queries: Any):
    """It was two for each key."""
    owners = [User.objects.create_user(f"u{number}") for number in range(20)]
    for owner in owners:
        many_keys_of = ApiKey.objects.bulk_create(
            ApiKey(name=f"{owner}-{n}", owner=owner, prefix="p", digest=f"{owner.pk:032x}{n:032x}") for n in range(500)
        )
        assert len(many_keys_of) == 500
    with django_assert_num_queries(3):
        assert len(load_keys()) == MANY


@pytest.mark.django_db
def test_the_rights_of_owners_are_those_that_they_have():
    plain, direct, grouped, root = (User.objects.create_user(name) for name in ("plain", "direct", "grouped", "root"))
    root.is_superuser = True
    root.save()
    direct.user_permissions.set(in_scope_of_models("change_languagemodel"))
    group = Group.objects.create(name="loaders")
    group.permissions.set(in_scope_of_models("change_languagemodel"))
    grouped.groups.add(group)
    made = {user: create_api_key(name=str(user), owner=user).api_key for user in (plain, direct, grouped, root)}
    found = load_keys()
    assert {str(user): found[key.digest].may_manage_models for user, key in made.items()} == {
        "plain": False,
        "direct": True,
        "grouped": True,
        "root": True,
    }
    for key in made.values():
        assert found[key.digest] == ApiKey.objects.get(pk=key.pk).record()
        assert load_keys([key.pk]) == {key.digest: found[key.digest]}


@pytest.mark.django_db(transaction=True)
def test_a_change_reads_the_key_that_changed_and_no_other():
    owner = User.objects.create_user("owner")
    many_keys(owner, 2_000)
    snapshot.get()
    with CaptureQueriesContext(connection) as queries:
        created = create_api_key(name="new", owner=owner)
    assert len(queries) < 20
    assert len(snapshot.get()) == 2_001
    row = ApiKey.objects.get(name="k7")
    row.requests_per_minute = 5
    change_api_key(api_key=row)
    assert snapshot.get()[row.digest].requests_per_minute == 5
    assert revoke_api_keys(keys=ApiKey.objects.filter(name__in=["k1", "k2"])) == 2
    delete_api_keys(keys=ApiKey.objects.filter(name="k3"))
    assert len(snapshot.get()) == 1_998
    assert find_key(created.plain, snapshot.get()) is not None
    assert snapshot.get() == load_keys()


@pytest.mark.django_db(transaction=True)
def test_nothing_but_the_changed_rows_is_loaded():
    owner = User.objects.create_user("owner")
    loads: list[str] = []

    def load() -> dict[str, KeyRecord]:
        loads.append("all")
        return load_keys()

    def load_changed(known: dict[str, KeyRecord], ids: frozenset[int]) -> dict[str, KeyRecord]:
        loads.append(f"{len(ids)}")
        return load_changed_keys(known, ids)

    mine = Snapshot("millm_api_keys_of_test", load, load_changed)
    mine.get()
    with transaction.atomic():  # one load for all that a transaction changes
        for number in range(5):
            key = create_api_key(name=f"k{number}", owner=owner).api_key
            mine.invalidate([key.pk])
    assert loads == ["all", "5"]
    assert len(mine.get()) == 5
    with transaction.atomic():
        mine.invalidate(range(MAX_CHANGED + 1))
    assert loads == ["all", "5", "all"]
    with transaction.atomic():
        mine.invalidate([1])
        transaction.set_rollback(True)
    assert loads == ["all", "5", "all"]


def test_what_is_announced_is_read_again():
    assert announced_ids(announcement([3, 5])) == {3, 5}
    assert announced_ids(announcement(None)) is None
    assert announced_ids("anything else") is None
    assert announced_ids("") is None
    assert len(announcement(range(10**12, 10**12 + MAX_CHANGED))) < 8_000  # PostgreSQL's limit of a payload


def test_a_load_that_fails_is_made_up_for():
    """What was to be read again is still known afterwards."""
    value, is_failing = {1: "a", 2: "b"}, False
    source = {1: "A", 2: "B"}

    def load_changed(known: dict[int, str], ids: frozenset[int]) -> dict[int, str]:
        if is_failing:
            raise RuntimeError
        return {**known, **{number: source[number] for number in ids}}

    mine = Snapshot("millm_test_failing", lambda: value, load_changed)
    mine.get()
    is_failing = True
    mine.mark_stale([1])
    with pytest.raises(RuntimeError):
        mine.catch_up()
    is_failing = False
    mine.mark_stale([2])
    mine.catch_up()
    assert mine.get() == {1: "A", 2: "B"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", ["permissions of the group", "members", "the group", "single permission", "owner"])
def test_what_takes_rights_away_reaches_the_keys(change: str):
    """Only a change of the user did."""
    owner = User.objects.create_user("owner")
    group = Group.objects.create(name="loaders")
    group.permissions.set(in_scope_of_models("change_languagemodel"))
    if change == "single permission":
        owner.user_permissions.set(in_scope_of_models("change_languagemodel"))
    else:
        owner.groups.add(group)
    key = create_api_key(name="k", owner=owner).api_key
    assert snapshot.get()[key.digest].may_manage_models
    if change == "permissions of the group":
        group.permissions.clear()
    elif change == "members":
        group.user_set.remove(owner)
    elif change == "the group":
        group.delete()
    elif change == "single permission":
        owner.user_permissions.clear()
    else:
        owner.delete()
        assert snapshot.get() == {}
        return
    assert not snapshot.get()[key.digest].may_manage_models


@pytest.mark.django_db(transaction=True)
def test_rights_that_are_given_reach_the_keys_too():
    owner = User.objects.create_user("owner")
    key = create_api_key(name="k", owner=owner).api_key
    group = Group.objects.create(name="loaders")
    owner.groups.add(group)
    assert not snapshot.get()[key.digest].may_manage_models
    group.permissions.set(in_scope_of_models("change_languagemodel"))
    assert snapshot.get()[key.digest].may_manage_models


# Old keys


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_value_ages_unless_it_is_confirmed():
    clock = Clock()
    mine = Snapshot("millm_test_age", lambda: 1, clock=clock)
    mine.get()
    clock.now = 100.0
    assert mine.age_s == 100
    mine.confirm(90.0)
    assert mine.age_s == 10
    mine.mark_stale()
    mine.confirm(100.0)
    assert mine.age_s == 10  # a change was announced that it does not show
    mine.abandon_reload()
    mine.confirm(100.0)
    assert mine.age_s == 10  # and cannot be loaded
    mine.refresh()
    assert mine.age_s == 0


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Clock:
    """A server that hears nothing of the database; its clock is ours."""
    clock = Clock()
    monkeypatch.setattr(keys_module, "is_listening", lambda: True)
    monkeypatch.setattr(snapshot, "_clock", clock)
    monkeypatch.setattr(snapshot, "_current_at", 0.0)
    settings.MILLM_KEY_MAX_AGE = 60
    return clock


@pytest.mark.django_db
def test_old_keys_and_unknown_ones_are_refused_alike(deaf: Clock, settings: Any):
    settings.MILLM_AUTH = "required"
    owner = User.objects.create_user("owner")
    plain = create_api_key(name="k", owner=owner).plain
    snapshot.forget()
    header = [(b"authorization", f"Bearer {plain}".encode())]
    assert find_key(plain, current_keys()) is not None
    assert upload_refusal(header, "127.0.0.1") is None
    deaf.now = 61.0
    with pytest.raises(MillmError) as refused:
        current_keys()
    assert (refused.value.status, refused.value.code) == (503, "database_unavailable")
    for sent in (header, [(b"authorization", b"Bearer sk-unknown")]):
        refusal = upload_refusal(sent, "127.0.0.1")
        assert refusal is not None
        assert (refusal.status, refusal.code) == (503, "database_unavailable")
    snapshot.confirm(61.0)
    assert find_key(plain, current_keys()) is not None


@pytest.mark.django_db(transaction=True)
async def test_v1_and_the_management_api_refuse_them(api: Api, deaf: Clock, settings: Any, async_client: Any):
    settings.MILLM_AUTH = "required"
    runtime.install(BACKEND, Backend(lambda: api.engine, lambda: api.registry))
    owner = await sync_to_async(User.objects.create_user)("owner", is_staff=True)
    created = await sync_to_async(create_api_key)(name="k", owner=owner, scopes=["manage"])
    deaf.now = 1_000.0
    snapshot._current_at = 0.0
    for path in (MODELS, "/api/models"):
        response = await async_client.get(path, headers={"authorization": f"Bearer {created.plain}"})
        assert response.status_code == 503, path
        assert response.json()["error"]["code"] == "database_unavailable"
    await sync_to_async(connections.close_all)()


@pytest.mark.django_db(transaction=True)
def test_a_listening_server_confirms_what_it_knows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("core.snapshots.HEARTBEAT_S", 0.0)
    mine = Snapshot("millm_test_heartbeat", lambda: 1)
    mine.get()
    listener = SnapshotListener()
    listener.start()
    try:
        assert listener.connected.wait(10)
        monkeypatch.setattr(mine, "_current_at", 0.0)
        deadline = time.monotonic() + 20
        while mine._current_at == 0.0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert mine._current_at > 0
    finally:
        listener.stop()


@pytest.mark.django_db(transaction=True)
def test_another_process_reads_the_changed_key_alone():
    owner = User.objects.create_user("owner")
    key = create_api_key(name="k", owner=owner).api_key
    heard: list[frozenset[int] | None] = []

    class Heard(Snapshot[int]):
        def mark_stale(self, ids: Any = None) -> int:
            heard.append(ids)
            return super().mark_stale(ids)

    mine = Heard("millm_test_heard", lambda: 1, lambda known, ids: known)
    listener = SnapshotListener()
    listener.start()
    try:
        assert listener.connected.wait(10)
        deadline = time.monotonic() + 20
        while not heard and time.monotonic() < deadline:
            time.sleep(0.05)  # the subscription reads everything once
        heard.clear()
        with connection.cursor() as cursor:
            payload = announcement([key.pk]).replace(process_token(), "1-other")
            cursor.execute("SELECT pg_notify(%s, %s)", [mine.channel, payload])
        while not heard and time.monotonic() < deadline:
            time.sleep(0.05)
        assert heard == [frozenset({key.pk})]
    finally:
        listener.stop()
