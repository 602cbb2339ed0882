"""Keys from creation to their end: scopes, rotation with a grace period, revocation, use against limits."""

from __future__ import annotations

import re
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from audit.models import AuditEvent
from inference.models import LanguageModel
from openai_api.keys.authentication import find_key, load_keys, snapshot
from openai_api.keys.record import KEY_START
from openai_api.keys.scopes import Scope
from openai_api.keys.services import (
    CreatedKey,
    change_api_key,
    create_api_key,
    delete_api_keys,
    revoke_api_keys,
    rotate_api_key,
)
from openai_api.keys.usage import HEIGHT, WIDTH, usage_plot
from openai_api.models import ApiKey, KeyDay
from openai_api.routes import ROUTES
from steering.models import ProfileVersion, SteeringProfile
from tests.openai_api.conftest import Api
from tests.openai_api.test_admin import fields_of, staff

pytestmark = pytest.mark.slow

KEYS = "/admin/openai_api/apikey/"
EVIL = "<script>alert(1)</script>"
HOUR = timedelta(hours=1)


@pytest.fixture
def owner(db: None) -> Any:
    snapshot.forget()
    yield User.objects.create_user("owner")
    snapshot.forget()


@pytest.fixture
def created(owner: User) -> CreatedKey:
    return create_api_key(name="laptop", owner=owner)


@pytest.fixture
def key(created: CreatedKey) -> ApiKey:
    return created.api_key


def page(key: ApiKey, name: str = "change") -> str:
    return reverse(f"admin:openai_api_apikey_{name}", args=[key.pk])


def trail(action: str) -> AuditEvent:
    return AuditEvent.objects.filter(action=action, kind="openai_api.apikey").latest("pk")


class TestRotate:
    def test_both_secrets_open_the_door_until_the_old_one_ends(self, created: CreatedKey):
        again = rotate_api_key(api_key=created.api_key, grace=HOUR)
        assert again.plain != created.plain
        old, new = (find_key(plain, load_keys()) for plain in (created.plain, again.plain))
        assert old is not None
        assert new is not None
        assert old.pk == new.pk
        assert new.expires_at is None
        assert old.expires_at == again.api_key.old_valid_until
        assert (old.prefix, new.prefix) == (created.plain[:13], again.plain[:13])
        ApiKey.objects.update(old_valid_until=timezone.now() - HOUR)
        assert find_key(created.plain, load_keys()) is None
        assert find_key(again.plain, load_keys()) is not None

    def test_a_process_that_knows_the_old_secret_from_before_lets_it_expire(self, created: CreatedKey):
        rotate_api_key(api_key=created.api_key, grace=timedelta(microseconds=1))
        ApiKey.objects.update(old_valid_until=timezone.now() + HOUR)
        records = load_keys()
        ended = {digest: record for digest, record in records.items() if record.expires_at is not None}
        assert len(ended) == 1

    def test_the_old_secret_ends_no_later_than_the_key(self, owner: User):
        soon = timezone.now() + timedelta(minutes=5)
        created = create_api_key(name="a", owner=owner, expires_at=soon)
        rotate_api_key(api_key=created.api_key, grace=HOUR)
        record = find_key(created.plain, load_keys())
        assert record is not None
        assert record.expires_at == soon

    def test_without_grace_the_old_one_is_refused_at_once(self, created: CreatedKey):
        again = rotate_api_key(api_key=created.api_key)
        assert find_key(created.plain, load_keys()) is None
        assert find_key(again.plain, load_keys()) is not None
        assert again.api_key.old_valid_until is None

    def test_a_second_rotation_ends_the_first_one_s_grace(self, created: CreatedKey):
        second = rotate_api_key(api_key=created.api_key, grace=HOUR)
        third = rotate_api_key(api_key=created.api_key, grace=HOUR)
        found = [find_key(plain, load_keys()) is not None for plain in (created.plain, second.plain, third.plain)]
        assert found == [False, True, True]

    def test_rights_limits_and_history_stay(self, owner: User):
        created = create_api_key(name="a", owner=owner, requests_per_day=5, scopes=["generate"])
        KeyDay.objects.create(api_key=created.api_key, day=timezone.now().date(), requests=3)
        again = rotate_api_key(api_key=created.api_key)
        record = find_key(again.plain, load_keys())
        assert record is not None
        assert record.used is not None
        assert (record.requests_per_day, record.scopes, record.used.requests) == (5, frozenset({"generate"}), 3)

    def test_a_revoked_key_has_no_new_secret(self, key: ApiKey):
        revoke_api_keys(keys=ApiKey.objects.all())
        with pytest.raises(ValidationError, match="is revoked"):
            rotate_api_key(api_key=key)

    @pytest.mark.parametrize("grace", [timedelta(seconds=-1), timedelta(days=91)])
    def test_a_grace_that_makes_no_sense(self, key: ApiKey, grace: timedelta):
        with pytest.raises(ValidationError, match="0 to 90 days"):
            rotate_api_key(api_key=key, grace=grace)

    def test_revoking_ends_the_old_secret_too(self, created: CreatedKey):
        again = rotate_api_key(api_key=created.api_key, grace=HOUR)
        revoke_api_keys(keys=ApiKey.objects.all(), reason="it leaked")
        assert [find_key(plain, load_keys()) for plain in (created.plain, again.plain)] == [None, None]
        row = ApiKey.objects.get()
        assert (row.revoked_reason, row.old_digest, row.old_valid_until) == ("it leaked", None, None)

    def test_an_edit_that_was_open_meanwhile_does_not_bring_the_old_secret_back(self, created: CreatedKey):
        stale = ApiKey.objects.get()
        again = rotate_api_key(api_key=stale, grace=HOUR)
        stale.name = "b"
        change_api_key(api_key=stale)
        revoke_api_keys(keys=ApiKey.objects.all())
        change_api_key(api_key=stale)
        row = ApiKey.objects.get()
        assert (row.name, row.digest) == ("b", again.api_key.digest)
        assert row.revoked_at is not None


class TestTrail:
    def test_every_act_is_in_it_without_any_secret(self, created: CreatedKey):
        key = created.api_key
        key.requests_per_minute = 7
        change_api_key(api_key=key)
        again = rotate_api_key(api_key=key, grace=HOUR)
        revoke_api_keys(keys=ApiKey.objects.all(), reason="it leaked")
        delete_api_keys(keys=ApiKey.objects.all())
        events = list(AuditEvent.objects.filter(kind="openai_api.apikey").order_by("pk"))
        assert [event.action for event in events] == ["add", "change", "rotate", "revoke", "delete"]
        assert events[1].changes == {"requests_per_minute": [None, 7]}
        assert "is valid until" in events[2].detail
        assert events[3].detail == "it leaked"
        kept = "".join(f"{event.subject}{event.detail}{event.changes}" for event in events)
        for secret in (created.plain, again.plain, key.digest, again.api_key.digest):
            assert secret not in kept

    def test_a_key_that_is_saved_as_it_was_leaves_nothing(self, key: ApiKey):
        before = AuditEvent.objects.count()
        change_api_key(api_key=key)
        assert AuditEvent.objects.count() == before


class TestScopes:
    @pytest.mark.parametrize(
        ("endpoint", "scope"),
        [
            ("/v1/chat/completions", "generate"),
            ("/v1/responses/{id}", "generate"),
            ("/v1/rerank", "generate"),
            ("/v1/features/search", "features"),
            ("/v1/files/{id}/content", "files"),
            ("/v1/vector_stores/{id}/search", "files"),
            ("/v1/batches", "files"),
            ("/v1/models", None),
            ("/v1/models/{id}", None),
        ],
    )
    def test_every_endpoint_has_one(self, endpoint: str, scope: str | None):
        assert {route.scope for route in ROUTES if route.endpoint == endpoint} == {scope}

    @pytest.mark.parametrize(
        ("scopes", "status"),
        [((), 200), (("generate",), 200), (("generate", "files"), 200), (("files",), 403), (("manage",), 403)],
    )
    async def test_a_key_is_used_for_its_scopes_only(self, api: Api, scopes: tuple[str, ...], status: int):
        headers = api.keys.add("key", scopes=frozenset(scopes))
        response = await api.chat(headers)
        assert response.status_code == status
        assert api.log.only.status == status
        if status == 403:
            error = response.json()["error"]
            assert (error["type"], error["code"], error["param"]) == ("permission_error", "scope_required", None)
            assert "`generate`" in error["message"]
        assert (await api.client.get("/v1/models", headers=headers)).status_code == 200

    async def test_an_unknown_url_is_unknown_whatever_the_scopes(self, api: Api):
        headers = api.keys.add("key", scopes=frozenset({"files"}))
        assert (await api.client.get("/v1/nothing", headers=headers)).status_code == 404

    def test_unloading_needs_the_scope_where_there_are_any(self, owner: User):
        owner.is_superuser = True
        owner.save()
        may = {
            scopes: create_api_key(name="a", owner=owner, scopes=list(scopes)).api_key.record().may_manage_models
            for scopes in ((), ("generate",), ("generate", "manage"))
        }
        assert may == {(): True, ("generate",): False, ("generate", "manage"): True}

    def test_only_a_key_that_was_given_it_manages(self, owner: User):
        records = [create_api_key(name="a", owner=owner, scopes=s).api_key.record() for s in ([], ["manage"])]
        assert [record.may_manage for record in records] == [False, True]

    def test_an_unknown_scope_is_refused(self, owner: User):
        with pytest.raises(ValidationError, match="not a valid choice"):
            create_api_key(name="a", owner=owner, scopes=["root"])


class TestForm:
    def test_names_are_choices(self, admin_client: Client, admin_user: User):
        model = LanguageModel.objects.create(name="tiny", source="org/tiny")
        profile = SteeringProfile.objects.create(name="gloomy", model=model)
        for number in (1, 2):
            ProfileVersion.objects.create(profile=profile, number=number, edits=[], fingerprint="f")
        text = admin_client.get(KEYS + "add/").content.decode()
        for shown in ("gloomy (latest)", 'value="gloomy@1"', "gloomy (tiny)", 'value="tiny"'):
            assert shown in text
        data = fields_of(
            admin_user, default_profile="gloomy@1", allowed_models=["tiny"], allowed_profiles=["gloomy"],
            scopes=["generate", "files"],
        )  # fmt: skip
        assert admin_client.post(KEYS + "add/", data).status_code == 200
        row = ApiKey.objects.get()
        assert (row.allowed_models, row.scopes) == (["tiny"], ["generate", "files"])
        assert row.default_profile == "gloomy@1"

    def test_a_default_that_the_key_may_not_use_is_refused(self, admin_client: Client, admin_user: User):
        model = LanguageModel.objects.create(name="tiny", source="org/tiny")
        for name in ("gloomy", "joyful"):
            profile = SteeringProfile.objects.create(name=name, model=model)
            ProfileVersion.objects.create(profile=profile, number=1, edits=[], fingerprint="f")
        data = fields_of(admin_user, default_profile="gloomy", allowed_profiles=["joyful"])
        response = admin_client.post(KEYS + "add/", data)
        assert "use gloomy. Allow it" in response.content.decode()
        assert not ApiKey.objects.exists()

    @pytest.mark.parametrize(
        ("values", "told"),
        [
            ({"default_profile": "nothing"}, "Select a valid choice"),
            ({"allowed_models": ["nothing"]}, "Select a valid choice"),
            ({"scopes": ["root"]}, "Select a valid choice"),
            ({"expires_at_0": "2001-01-01", "expires_at_1": "00:00:00"}, "Must be in the future"),
            ({"max_intensity": "nan"}, "Enter a number"),
            ({"requests_per_day": "-1"}, "greater than or equal to 0"),
        ],
    )
    def test_what_makes_no_sense_is_said_at_its_field(
        self, admin_client: Client, admin_user: User, values: dict[str, Any], told: str
    ):
        response = admin_client.post(KEYS + "add/", fields_of(admin_user, **values))
        assert told in response.content.decode()
        assert not ApiKey.objects.exists()

    def test_what_is_gone_can_stay(self, admin_client: Client, owner: User):
        key = create_api_key(name="a", owner=owner, default_profile="old@3", allowed_models=[EVIL]).api_key
        text = admin_client.get(page(key)).content.decode()
        assert "old@3 (unavailable: not published or archived)" in text
        assert EVIL not in text
        data = fields_of(owner, name="b", default_profile="old@3", allowed_models=[EVIL])
        assert admin_client.post(page(key), data).status_code == 302
        assert ApiKey.objects.get().allowed_models == [EVIL]


class TestPages:
    def test_rotating_asks_and_then_shows_the_secret_once(self, admin_client: Client, created: CreatedKey):
        key = created.api_key
        assert "Create new secret" in admin_client.get(page(key, "rotate")).content.decode()
        assert find_key(created.plain, load_keys()) is not None
        response = admin_client.post(page(key, "rotate"), {"grace_s": "86400"})
        text = response.content.decode()
        found = re.search(re.escape(KEY_START) + r"[\w-]{20,}", text)
        assert found is not None
        assert "no-store" in response["Cache-Control"]
        assert "is valid until" in text
        assert find_key(found[0], load_keys()) is not None
        later = admin_client.get(page(key)).content.decode()
        assert found[0] not in later
        assert f"old secret {created.api_key.prefix}" in later
        assert "The key was rotated recently" in admin_client.get(page(key, "rotate")).content.decode()

    @pytest.mark.parametrize("grace", ["", "7", "-1", "junk"])
    def test_only_the_offered_graces(self, admin_client: Client, key: ApiKey, grace: str):
        response = admin_client.post(page(key, "rotate"), {"grace_s": grace})
        assert response.status_code == 200
        assert ApiKey.objects.get().rotated_at is None

    def test_revoking_warns_and_keeps_the_reason(self, admin_client: Client, key: ApiKey):
        text = admin_client.get(page(key, "revoke")).content.decode()
        assert "be undone" in text
        assert "Never used" in text
        assert admin_client.post(page(key, "revoke"), {"reason": ""}).status_code == 200
        assert ApiKey.objects.get().revoked_at is None
        done = admin_client.post(page(key, "revoke"), {"reason": f"leaked {EVIL}"}, follow=True)
        assert f">Revoked {key}." in done.content.decode()  # its name as it is, in small letters
        assert ApiKey.objects.get().revoked_reason == f"leaked {EVIL}"
        shown = admin_client.get(page(key)).content.decode()
        assert EVIL not in shown
        assert "UTC. Requests with it are refused. Reason: leaked &lt;script&gt;" in shown
        assert f"{reverse('admin:openai_api_requestlog_changelist')}?key=laptop" in shown
        assert trail("revoke").user == "admin"
        assert 'id="key-acts"' not in admin_client.get(page(key)).content.decode()
        again = admin_client.post(page(key, "revoke"), {"reason": "x"}, follow=True)
        assert "is already revoked" in again.content.decode()
        assert (
            "is revoked; create a new one" in admin_client.post(page(key, "rotate"), {"grace_s": "0"}).content.decode()
        )

    @pytest.mark.parametrize("act", ["rotate", "revoke"])
    def test_who_may_only_look_may_not_act(self, client: Client, key: ApiKey, act: str):
        client.force_login(staff("view_apikey", "see_all_apikeys"))
        assert client.get(page(key, act)).status_code == 403
        assert client.post(page(key, act), {"grace_s": "0", "reason": "x"}).status_code == 403
        assert 'id="key-acts"' not in client.get(page(key)).content.decode()
        row = ApiKey.objects.get()
        assert (row.revoked_at, row.rotated_at) == (None, None)

    @pytest.mark.parametrize("act", ["rotate", "revoke"])
    def test_who_may_not_see_the_key_is_told_that_there_is_none(self, client: Client, key: ApiKey, act: str):
        client.force_login(staff("change_apikey"))
        for pk in (key.pk, key.pk + 1):
            url = reverse(f"admin:openai_api_apikey_{act}", args=[pk])
            assert client.get(url).status_code == 404
            assert client.post(url, {"grace_s": "0", "reason": "x"}).status_code == 404
        row = ApiKey.objects.get()
        assert (row.revoked_at, row.rotated_at) == (None, None)

    @pytest.mark.django_db
    @pytest.mark.parametrize("act", ["rotate", "revoke"])
    def test_one_s_own_key_can_be_changed(self, client: Client, act: str):
        user = staff("view_apikey", "change_apikey")
        client.force_login(user)
        own = create_api_key(name="own", owner=user).api_key
        assert client.get(page(own, act)).status_code == 200

    def test_text_is_escaped(self, admin_client: Client, owner: User):
        key = create_api_key(name=EVIL, owner=owner, note=EVIL).api_key
        for url in (KEYS, page(key), page(key, "rotate"), page(key, "revoke")):
            assert EVIL not in admin_client.get(url).content.decode()

    def test_the_list_takes_the_same_queries_for_few_keys_and_for_many(self, admin_client: Client, owner: User):
        counts = []
        for more in (1, 20):
            for number in range(more):
                one = create_api_key(name=f"{more}-{number}", owner=owner).api_key
                KeyDay.objects.create(api_key=one, day=timezone.now().date(), requests=1)
            with CaptureQueriesContext(connection) as queries:
                assert admin_client.get(KEYS).status_code == 200
            counts.append(len(queries))
        assert counts[0] == counts[1]


class TestUse:
    def test_the_page_plots_thirty_days_against_the_limits(self, admin_client: Client, owner: User):
        key = create_api_key(name="a", owner=owner, requests_per_day=10, requests_per_minute=4).api_key
        today = timezone.now().date()
        for back, requests in ((0, 9), (1, 4), (29, 1), (30, 1000)):
            KeyDay.objects.create(api_key=key, day=today - timedelta(days=back), requests=requests, tokens=7)
        text = admin_client.get(page(key)).content.decode()
        assert "14 in total, 9 on the busiest day" in text
        assert "Today 9 of 10 (90 %)" in text
        assert 'class="key-near"' in text
        assert "no daily limit" in text
        assert "4 of 4 requests per minute left" in text
        assert "1000" not in text
        assert text.count('class="key-bar"') == 60
        assert "style=" not in text[text.index('aria-label="Usage"') : text.index("</section>")]

    @given(st.lists(st.integers(0, 2**62), min_size=1, max_size=40), st.none() | st.integers(0, 2**62))
    def test_bars_and_the_limit_stay_inside_of_the_plot(self, values: list[int], limit: int | None):
        days = [timezone.now().date()] * len(values)
        plot = usage_plot("Requests", days, values, limit)
        assert all(0 <= bar.y <= HEIGHT and 0 <= bar.height <= HEIGHT and 0 <= bar.x <= WIDTH for bar in plot.bars)
        assert plot.limit_y is None or 0 <= plot.limit_y <= HEIGHT
        assert plot.share is None or 0 <= plot.share <= 100
        assert (plot.share is None) == (limit is None)


class TestCommands:
    def run(self, *arguments: str) -> str:
        out = StringIO()
        call_command(*arguments, stdout=out, stderr=StringIO())
        return out.getvalue().strip()

    def test_rotate(self, created: CreatedKey):
        plain = self.run("rotate_api_key", "laptop", "--grace-hours", "2")
        assert find_key(plain, load_keys()) is not None
        assert find_key(created.plain, load_keys()) is not None
        plain = self.run("rotate_api_key", str(created.api_key.pk), "--grace-hours=0")
        assert set(load_keys()) == {ApiKey.objects.get().digest}

    def test_revoke(self, key: ApiKey):
        self.run("revoke_api_key", key.prefix + "…", "--reason", "it leaked")
        assert ApiKey.objects.get().revoked_reason == "it leaked"
        with pytest.raises(CommandError, match="already revoked"):
            self.run("revoke_api_key", "laptop", "--reason", "x")
        with pytest.raises(CommandError, match="is revoked"):
            self.run("rotate_api_key", "laptop")

    def test_create_with_scopes_and_a_note(self, owner: User):
        self.run("create_api_key", "ci", "--user", "owner", "--scope", "generate", "--scope", "files", "--note", "CI")
        row = ApiKey.objects.get()
        assert (row.scopes, row.note) == (["generate", "files"], "CI")
        with pytest.raises(CommandError, match="invalid choice"):
            self.run("create_api_key", "ci", "--user", "owner", "--scope", "root")

    @pytest.mark.parametrize("name", ["nothing", "0", "9" * 40, "", "\0", EVIL])
    def test_a_key_that_is_not_there(self, key: ApiKey, name: str):
        with pytest.raises(CommandError, match="does not exist"):
            self.run("revoke_api_key", name, "--reason", "x")

    def test_two_of_one_name_are_told_apart(self, key: ApiKey, owner: User):
        other = create_api_key(name="laptop", owner=owner).api_key
        with pytest.raises(CommandError, match=f"give the number of one: {key.pk} .*, {other.pk} "):
            self.run("revoke_api_key", "laptop", "--reason", "x")
        assert not ApiKey.objects.filter(revoked_at__isnull=False).exists()

    @pytest.mark.parametrize("hours", ["-1", "1e9", "nan"])
    def test_a_grace_that_makes_no_sense(self, key: ApiKey, hours: str):
        with pytest.raises(CommandError):
            self.run("rotate_api_key", "laptop", f"--grace-hours={hours}")
        assert ApiKey.objects.get().rotated_at is None


def test_every_scope_is_explained():
    assert all(label for _, label in Scope.choices)
