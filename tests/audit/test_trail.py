"""What the trail keeps: who, through what, which fields, and never a secret."""

from __future__ import annotations

import json
import math

import psycopg
import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from audit.models import AuditEvent
from audit.origin import Origin, acting, as_the_program, command_origin
from audit.record import HIDDEN, changes_of, plain, record, record_deleted, record_saved, stored_fields
from inference.models import LanguageModel
from inference.permissions import ensure_groups
from inference.services import pin_model, register_model, remove_models, save_model, set_default_model
from tests import live

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
Action = AuditEvent.Action


def newest() -> AuditEvent:
    return AuditEvent.objects.latest("pk")


class TestRecord:
    def test_an_event_names_user_key_command_and_request(self):
        origin = Origin(username=lambda: "rita", key="laptop", command="manage.py x", request_id="req_1")
        with acting(origin):
            record(Action.EXPORT, "the log", detail="3 rows")
        event = newest()
        assert (event.user, event.key, event.command, event.request_id) == ("rita", "laptop", "manage.py x", "req_1")
        assert (event.subject, event.detail, event.kind, event.object_id) == ("the log", "3 rows", "", "")

    def test_a_given_user_goes_before_the_one_at_hand(self):
        user = User.objects.create_user("ada")
        with acting(Origin(username=lambda: "rita")):
            record(Action.EXPORT, "the log", user=user)
        assert newest().user == "ada"

    def test_nobody_is_nobody(self):
        record(Action.EXPORT, "the log")
        assert newest().user == ""

    @pytest.mark.parametrize("text", ["\0nul\0", "lone \ud800 surrogate", "x" * 1000, "<script>", "\u202eevil", ""])
    def test_any_text_can_be_kept(self, text: str):
        record(Action.EXPORT, text, detail=text, changes={"a": [plain(text), None]})
        assert len(newest().subject) <= 300

    def test_a_rolled_back_change_leaves_no_event(self):
        before = AuditEvent.objects.count()
        with transaction.atomic():
            register_model(name="m", source="org/x")
            transaction.set_rollback(True)
        assert AuditEvent.objects.count() == before

    def test_the_origin_ends_with_its_frame(self):
        with acting(Origin(command="a")), acting(Origin(command="b")):
            pass
        record(Action.EXPORT, "x")
        assert newest().command == ""

    def test_the_options_of_a_command_are_not_kept(self):
        origin = command_origin(["manage.py", "create_api_key", "--password", "hunter2"])
        assert origin.command == "manage.py create_api_key"
        assert command_origin(["manage.py"]).command == "manage.py"


class TestImmutable:
    def test_an_event_can_neither_be_saved_nor_deleted(self):
        event = record(Action.EXPORT, "x")
        for change in (event.save, event.delete, AuditEvent.objects.all().delete):
            with pytest.raises(ValidationError, match="never changed"):
                change()
        with pytest.raises(ValidationError, match="never changed"):
            AuditEvent.objects.update(subject="y")

    @pytest.mark.parametrize("sql", ["UPDATE audit_auditevent SET subject = 'y'", "DELETE FROM audit_auditevent"])
    def test_nor_behind_the_models_back(self, sql: str):
        record(Action.EXPORT, "x")
        with pytest.raises(DatabaseError, match="never changed"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql)
        assert newest().subject == "x"

    def test_nor_can_the_table_be_emptied(self):
        record(Action.EXPORT, "x")
        truncate = "TRUNCATE audit_auditevent"
        with connection.cursor() as cursor:
            with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
                cursor.execute(truncate)
            with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
                cursor.execute("TRUNCATE auth_user, audit_auditevent CASCADE")
        assert newest().subject == "x"

    def test_the_application_s_role_has_no_right_to(self):
        """A role that owns the table, as the migration leaves it; superusers have every right."""
        record(Action.EXPORT, "x")
        with connection.cursor() as cursor:
            cursor.execute("CREATE ROLE millm_test_owner")
            cursor.execute("ALTER TABLE audit_auditevent OWNER TO millm_test_owner")
            cursor.execute("GRANT USAGE ON SCHEMA public TO millm_test_owner")
            cursor.execute("SET ROLE millm_test_owner")
            cursor.execute("REVOKE UPDATE, DELETE, TRUNCATE ON audit_auditevent FROM CURRENT_USER")
            for sql in (
                "TRUNCATE audit_auditevent",
                "DELETE FROM audit_auditevent",
                "UPDATE audit_auditevent SET subject = ''",
            ):
                with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
                    cursor.execute(sql)
            cursor.execute("SELECT count(*) FROM audit_auditevent")
            assert cursor.fetchone()[0] == AuditEvent.objects.count()
            cursor.execute("RESET ROLE")

    def test_a_migrated_table_grants_no_more_than_reading_and_adding(self, empty_database_url: str):
        """Of a database as `migrate` leaves it."""
        live.manage("migrate", environment={"MILLM_DATABASE_URL": empty_database_url})
        with psycopg.connect(empty_database_url) as fresh:
            granted = {
                row[0]
                for row in fresh.execute(
                    "SELECT (aclexplode(relacl)).privilege_type FROM pg_class WHERE relname = 'audit_auditevent'"
                )
            }
            assert {"SELECT", "INSERT"} <= granted
            assert not granted & {"UPDATE", "DELETE", "TRUNCATE"}
            with pytest.raises(psycopg.errors.RestrictViolation):
                fresh.execute("TRUNCATE audit_auditevent")


class TestChanges:
    def test_a_new_row_tells_what_is_not_as_usual(self):
        changes = changes_of(LanguageModel(name="m", source="org/x", pinned=True), None)
        assert changes == {"name": ["", "m"], "source": ["", "org/x"], "pinned": [False, True]}

    def test_a_changed_row_tells_what_differs(self):
        row = LanguageModel.objects.create(name="m", source="org/x")
        before = stored_fields(row)
        row.pinned, row.aliases = True, ["a", "b"]
        assert changes_of(row, before) == {"pinned": [False, True], "aliases": [[], ["a", "b"]]}
        assert changes_of(row, before, leave_out={"pinned"}) == {"aliases": [[], ["a", "b"]]}

    def test_nothing_is_recorded_where_nothing_differs(self):
        row = LanguageModel.objects.create(name="m", source="org/x")
        assert record_saved(row, before=stored_fields(row)) is None

    def test_secrets_are_named_and_not_shown(self):
        user = User.objects.create_user("ada", password="hunter2")
        before = stored_fields(user)
        user.set_password("hunter3")
        assert changes_of(user, before) == {"password": [HIDDEN, HIDDEN]}

    def test_long_values_keep_their_beginning(self):
        assert plain("x" * 1000) == "x" * 300 + "… (1000 characters)"
        assert plain(list(range(60)))[-1] == "… 10 more"

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
            max_leaves=20,
        )
    )
    def test_whatever_a_field_holds_becomes_json_that_postgres_takes(self, value: object):
        text = json.dumps(plain(value), allow_nan=False)
        assert "\\u0000" not in text
        assert not any("\ud800" <= character <= "\udfff" for character in json.dumps(plain(value), ensure_ascii=False))

    def test_numbers_that_are_none_are_words(self):
        assert [plain(math.nan), plain(math.inf)] == ["nan", "inf"]


class TestAccounts:
    def test_users_come_change_and_go(self):
        user = User.objects.create_user("ada", password="hunter2", email="a@example.org")
        added = newest()
        assert (added.action, added.subject, added.kind) == ("add", "ada", "auth.user")
        assert added.changes["password"] == [HIDDEN, HIDDEN]
        user.is_staff = True
        user.save()
        assert newest().changes == {"is_staff": [False, True]}
        pk = user.pk
        user.delete()
        assert (newest().action, newest().object_id) == ("delete", str(pk))

    def test_signing_in_is_no_change(self, client):
        user = User.objects.create_user("ada")
        before = AuditEvent.objects.count()
        client.force_login(user)
        assert AuditEvent.objects.count() == before

    def test_groups_and_permissions_given_and_taken(self):
        user, group = User.objects.create_user("ada"), Group.objects.create(name="Own")
        user.groups.add(group)
        assert newest().changes == {"groups": [None, ["Own"]]}
        group.user_set.remove(user)
        assert (newest().subject, newest().changes) == ("Own", {"users": [["ada"], None]})
        permission = Permission.objects.get(codename="view_languagemodel")
        group.permissions.add(permission)
        assert newest().changes == {"permissions": [None, [str(permission)]]}
        user.user_permissions.add(permission)
        user.user_permissions.clear()
        assert newest().changes == {"user permissions": [[str(permission)], None]}

    def test_giving_what_is_there_already_is_no_change(self):
        user, group = User.objects.create_user("ada"), Group.objects.create(name="Own")
        user.groups.add(group)
        before = AuditEvent.objects.count()
        user.groups.add(group)
        assert AuditEvent.objects.count() == before

    def test_the_groups_that_ship_are_nobody_s_change(self):
        Group.objects.all().delete()
        before = AuditEvent.objects.count()
        ensure_groups()
        assert AuditEvent.objects.count() == before
        with as_the_program():
            Group.objects.create(name="x")
        assert AuditEvent.objects.count() == before

    def test_commands_of_django_are_in_the_trail(self):
        with acting(command_origin(["manage.py", "createsuperuser"])):
            call_command("createsuperuser", username="root", email="r@example.org", interactive=False, verbosity=0)
        assert (newest().subject, newest().command) == ("root", "manage.py createsuperuser")


class TestModels:
    def test_every_act_on_a_model_is_there(self):
        row = register_model(name="m", source="org/x", default_sampling={"top_p": 0.5})
        assert newest().changes["default_sampling"] == [{}, {"top_p": 0.5}]
        row.context_length = 100
        save_model(row)
        assert newest().changes == {"context_length": [0, 100]}
        pin_model(model=row, is_pinned=True)
        assert newest().changes == {"pinned": [False, True]}
        set_default_model(model=row)
        assert newest().action == "default"
        pk = row.pk
        remove_models(models=[row])
        event = newest()
        assert (event.action, event.subject, event.object_id, event.model) == ("delete", "m", str(pk), "m")

    def test_a_row_that_is_deleted_keeps_its_name_in_the_trail(self):
        row = LanguageModel.objects.create(name="m", source="org/x")
        record_deleted(row)
        row.delete()
        assert newest().subject == "m"
