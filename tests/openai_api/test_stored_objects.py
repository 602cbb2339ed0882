"""Stored responses and chat completions: how long they are kept, and who sees what of them in the admin."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from jobs.execution import run_job
from jobs.models import Job
from jobs.periodic import enqueue_due
from jobs.services import enqueue_job
from openai_api.apps import PRUNE_KEPT
from openai_api.models import RequestLog
from openai_api.request_log.access import HIDDEN, SEE_TEXT
from openai_api.responses.models import Conversation, StoredItem, StoredResponse
from openai_api.stored_chats.models import StoredChat

pytestmark = pytest.mark.django_db
SECRET = "<script>alert(1)</script> I live in Rome."
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt; I live in Rome."


def chat(name: str, days: int = 0) -> StoredChat:
    body = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": SECRET}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    made = StoredChat.objects.create(
        id=name,
        model="tiny",
        body=body,
        messages=[{"role": "user", "content": SECRET}],
        metadata={"note": SECRET},
        created_at=timezone.now() - timedelta(days=days),
    )
    assert isinstance(made, StoredChat)
    return made


def response(name: str, days: int = 0) -> StoredResponse:
    used_at = timezone.now() - timedelta(days=days)
    body = {"id": name, "instructions": SECRET, "usage": {"input_tokens": 3, "output_tokens": 4}}
    talk = Conversation.objects.create(id=f"conv_{name}", metadata={"note": SECRET})
    made = StoredResponse.objects.create(
        id=name, model="tiny", status="completed", body=body, used_at=used_at, conversation=talk
    )
    for is_output, role in ((False, "user"), (True, "assistant")):
        item = {"id": f"msg_{role}", "type": "message", "role": role, "content": [{"type": "text", "text": SECRET}]}
        StoredItem.objects.create(response=made, item_id=f"msg_{role}", is_output=is_output, body=item)
    StoredItem.objects.create(conversation=talk, item_id="msg_1", body=item)
    return made


def test_old_chats_go_where_the_setting_says_so(settings: Any):
    chat("new"), chat("old", days=8)
    settings.MILLM_CHAT_RETENTION_DAYS = 0
    assert pruned() == "0 responses, 0 chat completions, 0 webhook deliveries deleted."
    settings.MILLM_CHAT_RETENTION_DAYS = 7
    assert pruned() == "0 responses, 1 chat completions, 0 webhook deliveries deleted."
    assert [row.pk for row in StoredChat.objects.all()] == ["new"]


def pruned() -> str:
    out = StringIO()
    call_command("prune_kept", stdout=out)
    return out.getvalue().strip()


@pytest.mark.django_db(transaction=True)
def test_the_job_prunes_both(settings: Any):
    settings.MILLM_CHAT_RETENTION_DAYS = settings.MILLM_RESPONSE_RETENTION_DAYS = 7
    chat("old", days=8), response("resp_old", days=8), response("resp_new")
    job = enqueue_job(kind=PRUNE_KEPT, params={})
    run_job(job.pk)
    done = Job.objects.get()
    assert (done.state, done.result) == ("succeeded", {"responses": 1, "chat completions": 1, "webhook deliveries": 0})
    assert [row.pk for row in StoredResponse.objects.all()] == ["resp_new"]


@pytest.mark.django_db(transaction=True)
def test_the_job_comes_by_itself_when_something_is_old(settings: Any):
    settings.MILLM_CHAT_RETENTION_DAYS = 7
    chat("new")
    assert PRUNE_KEPT not in {job.kind for job in enqueue_due()}
    chat("old", days=8)
    assert PRUNE_KEPT in {job.kind for job in enqueue_due()}
    assert PRUNE_KEPT not in {job.kind for job in enqueue_due()}


PAGES = ("responses/storedresponse", "responses/conversation", "stored_chats/storedchat")


@pytest.fixture
def pages() -> list[str]:
    made = response("resp_1")
    keys = (made.pk, made.conversation_id, chat("chatcmpl_1").pk)
    return [f"/admin/{page}/{key}/change/" for page, key in zip(PAGES, keys, strict=True)]


def auditor(*permissions: str) -> Client:
    user: User = get_user_model().objects.create_user("eve", is_staff=True)
    for name in ("storedresponse", "conversation", "storedchat"):
        user.user_permissions.add(Permission.objects.get(codename=f"view_{name}"))
    for name in permissions:
        content_type = ContentType.objects.get_for_model(RequestLog)
        codename = name.partition(".")[2]
        user.user_permissions.add(
            Permission.objects.get_or_create(codename=codename, content_type=content_type, defaults={"name": name})[0]
        )
    client = Client()
    client.force_login(user)
    return client


def test_texts_are_shown_escaped_to_those_with_the_permission(pages: list[str]):
    client = auditor(SEE_TEXT)
    for page in pages:
        text = client.get(page).content.decode()
        assert SHOWN in text, page
        assert SECRET not in text
        assert HIDDEN not in text


def test_others_see_that_there_is_something_and_no_word_of_it(pages: list[str]):
    client = auditor()
    for page in pages:
        answer = client.get(page)
        assert answer.status_code == 200
        assert "Rome" not in answer.content.decode(), page
        assert HIDDEN in answer.content.decode()
    for page in PAGES:
        listed = client.get(f"/admin/{page}/")
        assert listed.status_code == 200
        assert "Rome" not in listed.content.decode()


def test_texts_cannot_be_found_by_searching(pages: list[str]):
    for page in PAGES:
        assert "0 " in auditor_search(page), page


def auditor_search(page: str) -> str:
    client = Client()
    user, _ = get_user_model().objects.get_or_create(username="root", is_staff=True, is_superuser=True)
    client.force_login(user)
    return client.get(f"/admin/{page}/?q=Rome").content.decode()


def test_nothing_can_be_changed(admin_client: Client, pages: list[str]):
    for page in pages:
        assert admin_client.post(page, {"model": "x"}).status_code == 403
        assert admin_client.get(page.replace("change", "delete")).status_code == 403
    for page in PAGES:
        assert admin_client.get(f"/admin/{page}/add/").status_code == 403


def test_who_has_no_permission_sees_no_page(pages: list[str]):
    client = Client()
    client.force_login(get_user_model().objects.create_user("mia", is_staff=True))
    for page in pages:
        assert client.get(page).status_code == 403
