"""Comments and saved lists: who writes and sees them, what the audit trail says, and what goes with its object."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from audit.models import AuditEvent
from console.annotations import services
from console.models import Comment, SavedItem, SavedList
from inference.permissions import GROUPS, ensure_groups
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.retention import Retention, prune_log
from steering.features.admin import feature_url
from steering.models import VectorSet
from tests.console.test_pages import client_of, staff
from tests.openai_api.request_log.rows import row
from tests.steering.conftest import cold_snapshots, feature, model, sae  # noqa: F401 - fixtures
from tests.steering.pages import said
from tests.steering.test_vectors import calm  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db
COMMENT, SAVE = reverse("admin:console_comment"), reverse("admin:console_save")
WRITES = ("view_comment", "add_comment", "view_savedlist", "add_savedlist", "change_savedlist")
NASTY = "<script>alert(1)</script>"


@pytest.fixture
def rita() -> User:
    """A researcher."""
    return staff(*WRITES, "view_feature", "view_vectorset")


@pytest.fixture
def otto() -> User:
    """An auditor."""
    return staff(*WRITES, "view_requestlog", "view_prompt_text")


def about(subject: Any, **fields: object) -> dict[str, object]:
    return {"kind": services.subject_field(subject), "key": subject.pk, **fields}


def send(user: User, url: str, **fields: object) -> Any:
    return client_of(user).post(url, fields)


def text_of(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


class TestComments:
    def test_on_a_feature_a_vector_and_a_request(self, rita, otto, feature, calm):  # noqa: F811
        logged = row(1, prompt="Hello")
        pages = [
            (rita, feature, feature_url(feature)),
            (rita, calm, reverse("admin:steering_vectorset_change", args=[calm.pk])),
            (otto, logged, reverse("admin:openai_api_requestlog_change", args=[quote(logged.pk)])),
        ]
        for user, subject, url in pages:
            answer = send(user, COMMENT, **about(subject, text=f"  Odd {NASTY}\nindeed "))
            assert answer.url == f"{url}#comments"
            html = text_of(client_of(user), url)
            assert "Odd &lt;script&gt;alert(1)&lt;/script&gt;<br>indeed" in html
            assert user.username in html
        events = AuditEvent.objects.filter(kind="console.comment", action="add")
        assert sorted(event.subject for event in events) == [
            "comment on calm", "comment on req_1", f"comment on {feature}"
        ]  # fmt: skip
        assert "Odd" not in str(list(events.values())), "texts may quote prompts"

    @pytest.mark.parametrize("text", ["", "  \n ", "x" * 4001, "a\0b"])
    def test_texts_that_cannot_be_stored(self, text, rita, feature):  # noqa: F811
        assert "The comment was not saved." in said(send(rita, COMMENT, **about(feature, text=text)))
        assert not Comment.objects.exists()

    def test_one_too_many(self, rita, feature, monkeypatch):  # noqa: F811
        monkeypatch.setattr(services, "MAX_COMMENTS", 1)
        services.add_comment(subject=feature, text="one", user=rita)
        with pytest.raises(ValidationError, match="comments already"):
            services.add_comment(subject=feature, text="two", user=rita)

    def test_deleted_by_the_author_or_a_moderator(self, rita, feature):  # noqa: F811
        def deletes(user: User) -> int:
            comment = services.add_comment(subject=feature, text="Odd", user=rita)
            url = reverse("admin:console_delete_comment", args=[comment.pk])
            return int(client_of(user).post(url).status_code)

        assert deletes(staff("view_comment", "view_feature")) == 403
        assert deletes(rita) == 302
        assert deletes(staff("view_comment", "delete_comment", "view_feature")) == 302
        assert Comment.objects.count() == 1
        assert AuditEvent.objects.filter(kind="console.comment", action="delete").count() == 2

    def test_what_may_quote_texts_is_for_those_who_may_see_them(self, otto):
        logged = row(1, prompt="Hello")
        services.add_comment(subject=logged, text="It says Hello", user=otto)
        watcher = staff(*WRITES, "view_requestlog")
        url = reverse("admin:openai_api_requestlog_change", args=[quote(logged.pk)])
        assert "It says Hello" in text_of(client_of(otto), url)
        assert "It says Hello" not in text_of(client_of(watcher), url)
        assert send(watcher, COMMENT, **about(logged, text="So")).status_code == 403

    @pytest.mark.parametrize(
        ("kind", "key"),
        [("feature", "0"), ("feature", "-1"), ("feature", "9" * 30), ("feature", "x"), ("user", "1"), ("", ""),
         ("request", "req_none"), ("request", "\0"), ("vector_set", "1")],
    )  # fmt: skip
    def test_of_what_is_not_there(self, kind, key, rita, otto):
        for user in (rita, otto):
            assert send(user, COMMENT, kind=kind, key=key, text="Odd").status_code == 404

    def test_of_what_the_user_does_not_see(self, rita, otto, feature, calm):  # noqa: F811
        VectorSet.objects.update(created_by=otto)
        assert send(rita, COMMENT, **about(calm, text="Odd")).status_code == 404
        assert send(otto, COMMENT, **about(feature, text="Odd")).status_code == 404
        assert send(rita, COMMENT, **about(row(1), text="Odd")).status_code == 404

    def test_reading_is_not_writing(self, feature):  # noqa: F811
        reader = staff("view_comment", "view_feature")
        assert send(reader, COMMENT, **about(feature, text="Odd")).status_code == 403
        assert 'id="comments"' in text_of(client_of(reader), feature_url(feature))
        nobody = staff("view_feature")
        assert 'id="comments"' not in text_of(client_of(nobody), feature_url(feature))
        assert client_of(reader).get(COMMENT).status_code == 405


class TestLists:
    def test_a_new_list_then_another_entry_then_another_note(self, rita, feature, calm):  # noqa: F811
        answer = send(rita, SAVE, **about(feature, list="", name="Weather", note="for the demo"))
        assert 'Saved to "Weather".' in said(answer)
        weather = SavedList.objects.get()
        send(rita, SAVE, **about(calm, list=weather.pk))
        send(rita, SAVE, **about(feature, list=weather.pk, note="for the talk"))
        assert {str(item.subject): item.note for item in weather.items.all()} == {
            str(feature): "for the talk",
            "calm": "",
        }
        html = text_of(client_of(rita), reverse("admin:console_savedlist_change", args=[weather.pk]))
        assert [text in html for text in (str(feature), "calm", "for the talk")] == [True, True, True]
        assert "Weather" in text_of(client_of(rita), feature_url(feature))
        details = AuditEvent.objects.filter(kind="console.savedlist", action="change").order_by("pk")
        assert [event.detail for event in details] == [
            f"added {feature}", "added calm", f"changed the note of {feature}"
        ]  # fmt: skip

    def test_an_entry_shows_only_to_those_who_see_its_object(self, rita, otto, feature):  # noqa: F811
        listed = services.create_list(name="Odd", user=rita)
        logged = row(1, prompt="Hello")
        services.save_to_list(saved_list=listed, subject=feature, note="a feature", user=rita)
        services.save_to_list(saved_list=listed, subject=logged, note="says Hello", user=otto)
        url = reverse("admin:console_savedlist_change", args=[listed.pk])
        by_user = {user: text_of(client_of(user), url) for user in (rita, otto)}
        assert ["a feature" in html for html in by_user.values()] == [True, False]
        assert ["says Hello" in html for html in by_user.values()] == [False, True]
        access = LogAccess.objects.get(username=otto.username)
        assert (access.act, access.detail) == ("list", {"requests": ["req_1"]})
        watcher = staff(*WRITES, "view_requestlog")
        html = text_of(client_of(watcher), url)
        assert "req_1" in html
        assert "Hello" not in html

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({"list": "", "name": ""}, "Not saved."),
            ({"list": "", "name": "x" * 101}, "Not saved."),
            ({"list": "", "name": "Odd"}, "already exists"),
            ({"list": "99"}, "does not exist any more"),
            ({"list": "x"}, "does not exist any more"),
            ({"list": "own", "note": "x" * 501}, "Not saved."),
        ],
    )
    def test_what_cannot_be_saved(self, fields, problem, rita, feature):  # noqa: F811
        listed = services.create_list(name="Odd", user=rita)
        sent = {**fields, "list": listed.pk} if fields["list"] == "own" else fields
        assert problem in said(send(rita, SAVE, **about(feature, **sent)))
        assert not SavedItem.objects.exists()

    def test_removed_from_either_page(self, rita, feature):  # noqa: F811
        listed = services.create_list(name="Odd", user=rita)
        for place, url in (("", feature_url(feature)), ("list", f"/admin/console/savedlist/{listed.pk}/change/")):
            item = services.save_to_list(saved_list=listed, subject=feature, note="", user=rita)
            answer = send(rita, reverse("admin:console_unsave", args=[item.pk]), **{"from": place})
            assert answer.url == url
        assert not listed.items.exists()

    def test_renamed_and_deleted_by_who_created_it(self, rita, otto):
        listed = services.create_list(name="Odd", user=rita)
        change = reverse("admin:console_savedlist_change", args=[listed.pk])
        delete = reverse("admin:console_savedlist_delete", args=[listed.pk])
        client_of(otto).post(change, {"name": "Even", "description": "Not so odd."})
        assert str(SavedList.objects.get()) == "Even"
        assert client_of(otto).post(delete, {"post": "yes"}).status_code == 403
        assert client_of(rita).post(delete, {"post": "yes"}).status_code == 302
        assert [event.action for event in AuditEvent.objects.filter(kind="console.savedlist").order_by("pk")] == [
            "add", "change", "delete"
        ]  # fmt: skip

    def test_the_database_keeps_one_subject_and_one_entry(self, rita, feature, calm):  # noqa: F811
        listed = services.create_list(name="Odd", user=rita)
        SavedItem.objects.create(saved_list=listed, feature=feature)
        for wrong in ({"feature": feature}, {}, {"feature": feature, "vector_set": calm}):
            with pytest.raises(IntegrityError), transaction.atomic():
                SavedItem.objects.create(saved_list=listed, **wrong)

    def test_found_by_the_palette(self, rita):
        services.create_list(name="Harbour cases", user=rita)
        found = client_of(rita).get(reverse("admin:console_palette"), {"q": "harbour"}).json()
        assert [
            hit["name"] for group in found["groups"] if group["title"] == "Saved lists" for hit in group["hits"]
        ] == ["Harbour cases"]


def test_what_is_pruned_takes_its_notes_along(otto):
    listed = services.create_list(name="Odd", user=otto)
    for number in (0, 60 * 24 * 10):
        logged = row(number, prompt="Hello")
        services.add_comment(subject=logged, text="It says Hello", user=otto)
        services.save_to_list(saved_list=listed, subject=logged, note="", user=otto)
    assert prune_log(retention=Retention(days=5, text_days=0)).rows == 1
    assert [RequestLog.objects.count(), Comment.objects.count(), SavedItem.objects.count()] == [1, 1, 1]


def test_roles():
    """Researchers and auditors write and share; only admins moderate."""
    ensure_groups()
    for name in ("Researchers", "Auditors"):
        assert {f"console.{permission}" for permission in WRITES} <= set(GROUPS[name] or ())
        assert "console.delete_comment" not in (GROUPS[name] or ())
