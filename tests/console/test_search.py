"""The search, on its page and in the palette: results by permission, ids by their beginning, and odd input."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from console.search import MAX_CHARS, MAX_IN_PALETTE, MAX_ON_PAGE, SOURCES
from inference.models import LanguageModel
from jobs.models import Job
from openai_api.keys.services import create_api_key
from openai_api.models import RequestLog
from openai_api.responses.models import Conversation, StoredResponse
from openai_api.stored_chats.models import StoredChat
from steering.models import ProfileVersion, SteeringProfile
from storage.models import Batch, StoredFile, VectorStore
from tests.console.test_pages import client_of, staff

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def model() -> LanguageModel:
    return LanguageModel.objects.create(name="rainmaker", source="/m")


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root")


def found(user: User, text: str) -> str:
    answer = client_of(user).get("/admin/search/", {"q": text})
    assert answer.status_code == 200
    return answer.content.decode().split('<main id="content-start"')[1]


def test_names_and_descriptions_are_found_by_parts(root: User, model: LanguageModel):
    SteeringProfile.objects.create(name="gloomy", description="Rain and mist.", model=model)
    text = found(root, "RAIN")
    assert "rainmaker" in text
    assert "gloomy" in text
    assert "No results for" in found(root, "sunshine")


def test_only_what_one_may_see(model: LanguageModel):
    SteeringProfile.objects.create(name="rainy", model=model)
    text = found(staff("view_steeringprofile"), "rain")
    assert "rainy" in text
    assert "rainmaker" not in text
    assert "No results for" in found(staff(), "rain")


def test_somebody_else_s_profiles_are_as_if_they_were_not_there(model: LanguageModel, root: User):
    SteeringProfile.objects.create(name="rainy", model=model, owner=root)
    assert "No results for" in found(staff("view_steeringprofile"), "rain")


def test_many_are_cut_with_a_link_to_the_list(root: User, model: LanguageModel):
    for number in range(MAX_ON_PAGE + 1):
        SteeringProfile.objects.create(name=f"p{number}", model=model)
    text = found(root, "p")
    assert text.count("/change/") == MAX_ON_PAGE
    assert "/admin/steering/steeringprofile/?q=p" in text


@pytest.mark.parametrize(
    "text", ["", "  ", "\0", "a\0b", "%", "'; drop table", "x" * 10_000, "🙂", '"', "or", "-a", EVIL]
)
def test_strange_texts_are_texts(root: User, model: LanguageModel, text: str):
    page = found(root, text)
    assert EVIL not in page


def test_texts_of_strangers_are_escaped(root: User, model: LanguageModel):
    SteeringProfile.objects.create(name="p", description=EVIL, model=model)
    page = found(root, "p")
    assert EVIL not in page
    assert "&lt;script&gt;" in page


def palette(user: User, text: str) -> dict[str, list[dict[str, str]]]:
    """The results by kind."""
    answer = client_of(user).get("/admin/search/palette/", {"q": text})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    return {group["title"]: group["hits"] for group in answer.json()["groups"]}


def names(user: User, text: str) -> list[str]:
    return [hit["name"] for hits in palette(user, text).values() for hit in hits]


def test_the_field_of_the_page_holds_what_was_searched(root: User, model: LanguageModel):
    client = client_of(root)
    assert 'name="q" value="rain"' in client.get("/admin/search/", {"q": "rain"}).content.decode()
    assert 'name="q" value=""' in client.get("/admin/search/").content.decode()


def test_the_palette_needs_a_login():
    assert Client().get("/admin/search/palette/", headers={"host": "localhost"}).status_code == 302
    assert client_of(User.objects.create_user("guest")).get("/admin/search/palette/").status_code == 302
    assert client_of(staff()).post("/admin/search/palette/").status_code == 405


def test_without_a_text_the_palette_lists_the_pages_that_one_may_open(root: User):
    assert list(palette(root, " ")) == ["Pages"]
    assert len(palette(root, "")["Pages"]) > 25
    assert [hit["name"] for hit in palette(staff("view_sae"), "")["Pages"]] == ["Dashboard", "SAEs", "API reference"]


def test_pages_are_found_by_their_words_and_those_of_their_entry(root: User):
    assert names(root, "vector stor") == ["Vector stores"]
    assert names(root, "STORAGE files")[0] == "Files"
    assert palette(root, "log")["Pages"][0] == {
        "name": "Log access",
        "note": "Audit",
        "url": "/admin/openai_api/logaccess/",
        "icon": "history",
    }
    assert names(staff("view_sae"), "Request log") == []
    for hit in palette(root, "")["Pages"]:
        assert client_of(root).get(hit["url"]).status_code == 200, hit


def test_the_page_and_the_palette_find_the_same(root: User, model: LanguageModel):
    SteeringProfile.objects.create(name="gloomy", description="Rain and mist.", model=model)
    assert names(root, "rain") == ["rainmaker", "gloomy"]
    text = found(root, "rain")
    assert text.index("rainmaker") < text.index("gloomy")
    assert palette(root, "rain")["Profiles"][0]["note"] == "Rain and mist."


def test_many_are_cut_in_the_palette_too(root: User, model: LanguageModel):
    for number in range(MAX_IN_PALETTE + 1):
        SteeringProfile.objects.create(name=f"pond-{number}", model=model)
    groups = client_of(root).get("/admin/search/palette/", {"q": "pond"}).json()["groups"]
    assert [(group["title"], len(group["hits"])) for group in groups] == [("Profiles", MAX_IN_PALETTE)]
    assert groups[0]["more"] == "/admin/steering/steeringprofile/?q=pond"


STAMP = "2026abcdef"


@pytest.fixture
def stored(root: User, model: LanguageModel) -> dict[str, tuple[str, str, str]]:
    """One object of each kind that has an id: its beginning, its address and the permission that shows it."""
    now = timezone.now()
    job = Job.objects.create(id=uuid.UUID(f"{STAMP}0000000000000000000000"), kind="example", title="Count sheep")
    file = StoredFile.objects.create(public_id=f"file-{STAMP}1", filename="cats.txt", size=1, blob="b" * 32)
    batch = Batch.objects.create(public_id=f"batch_{STAMP}1", endpoint="/v1/x", expires_at=now)
    store = VectorStore.objects.create(public_id=f"vs_{STAMP}1", name="handbook")
    RequestLog.objects.create(id=f"req_{STAMP}1", created_at=now, endpoint="/v1/chat/completions", status=200)
    StoredResponse.objects.create(id=f"resp_{STAMP}9", model="m", status="completed", body={})
    Conversation.objects.create(id=f"conv_{STAMP}1")
    StoredChat.objects.create(id=f"chatcmpl-{STAMP}9", model="m", messages=[], body={})
    return {
        "Jobs": (STAMP[:8], f"jobs/job/{job.pk}", "manage_all_jobs view_job"),
        "Files": (f"file-{STAMP}", f"storage/storedfile/{file.pk}", "view_storedfile"),
        "Batches": (f"batch_{STAMP}", f"storage/batch/{batch.pk}", "view_batch"),
        "Vector stores": (f"vs_{STAMP}", f"storage/vectorstore/{store.pk}", "view_vectorstore"),
        "Requests": (f"req_{STAMP}", f"openai_api/requestlog/req_5F{STAMP}1", "view_requestlog"),
        "Responses": (f"resp_{STAMP}9", f"responses/storedresponse/resp_5F{STAMP}9", "view_storedresponse"),
        "Conversations": (f"conv_{STAMP}", f"responses/conversation/conv_5F{STAMP}1", "view_conversation"),
        "Stored completions": (
            f"chatcmpl-{STAMP}9",
            f"stored_chats/storedchat/chatcmpl-{STAMP}9",
            "view_storedchat",
        ),
    }


def test_ids_are_found_by_their_beginning_by_those_who_see_the_list(
    root: User, stored: dict[str, tuple[str, str, str]]
):
    other = staff("view_sae")
    for kind, (begin, path, permissions) in stored.items():
        for user in (root, staff(*permissions.split())):
            hits = palette(user, begin)
            assert list(hits) == [kind]
            assert [hit["url"] for hit in hits[kind]] == [f"/admin/{path}/change/"]
            assert client_of(root).get(hits[kind][0]["url"]).status_code == 200
        assert begin in found(root, begin)
        assert palette(other, begin) == {}, kind


def test_the_beginning_of_an_id_is_not_found_inside_it(root: User, stored: dict[str, tuple[str, str, str]]):
    for text in (f"{STAMP}1", f"q_{STAMP}", "eq_2", "re%", "req_%"):
        assert palette(root, text) == {}, text
    assert list(palette(root, "req")) == ["Pages"]  # too short for an id


def test_a_request_is_found_by_the_id_of_its_answer(root: User, stored: dict[str, tuple[str, str, str]]):
    hits = palette(root, f"chatcmpl-{STAMP}1")
    assert [hit["name"] for hit in hits["Requests"]] == [f"req_{STAMP}1"]
    assert "/v1/chat/completions, no model, 200" in hits["Requests"][0]["note"]


def test_more_requests_are_in_the_log_by_the_same_beginning(root: User):
    now = timezone.now()
    RequestLog.objects.bulk_create(
        RequestLog(id=f"req_{number}", created_at=now + timedelta(seconds=number), endpoint="/v1/x", status=200)
        for number in range(MAX_IN_PALETTE + 1)
    )
    (group,) = client_of(root).get("/admin/search/palette/", {"q": "req_"}).json()["groups"]
    assert [hit["name"] for hit in group["hits"]] == [f"req_{number}" for number in range(MAX_IN_PALETTE, 0, -1)]
    page = client_of(root).get(group["more"]).content.decode()
    assert page.count('<th scope="row"') == MAX_IN_PALETTE + 1


def test_ids_that_clients_chose_lead_to_their_request(root: User):
    """Any text of up to 64 characters may be an id in the log, in links and in the palette."""
    evil = "a_b/../c?d#<i>\u202e"
    RequestLog.objects.create(id=evil, created_at=timezone.now(), endpoint="/v1/x", status=200)
    RequestLog.objects.create(id="my.id:1", created_at=timezone.now(), endpoint="/v1/x", model=EVIL, status=200)
    (hit,) = palette(root, "my.id")["Requests"]
    assert EVIL in hit["note"]  # JSON; the script sets it as text
    assert client_of(root).get(hit["url"]).status_code == 200
    assert EVIL not in found(root, "my.id")
    assert palette(root, evil) == {}


def test_jobs_of_others_are_found_by_those_who_manage_them(root: User):
    job = Job.objects.create(kind="example", title="Count sheep", owner=root)
    text = str(job.pk)[:13]
    assert [hit["name"] for hit in palette(root, text)["Jobs"]] == ["Count sheep"]
    assert palette(root, "sheep").keys() == {"Jobs"}
    assert palette(staff("view_job"), text) == palette(staff("view_job", "view_sae"), "sheep") == {}


def test_keys_are_found_by_name_or_by_the_beginning_of_their_secret(root: User):
    created = create_api_key(name="laptop", owner=root)
    for text in ("lapt", created.plain, created.plain[: len(created.api_key.prefix)]):
        (hit,) = palette(root, text)["API keys"]
        assert hit["url"] == f"/admin/openai_api/apikey/{created.api_key.pk}/change/"
        assert created.plain not in str(hit)
    assert palette(root, "sk-millm-nope") == {}
    other = staff("view_apikey")
    assert palette(other, "lapt") == palette(other, created.plain) == {}  # not theirs


def test_published_versions_are_found_as_requests_name_them(root: User, model: LanguageModel):
    profile = SteeringProfile.objects.create(name="rainy", model=model, owner=root)
    ProfileVersion.objects.create(profile=profile, number=1, edits=[], published_by=root)
    assert [hit["name"] for hit in palette(root, "rainy@1")["Published versions"]] == ["rainy@1"]
    for text in ("rainy@2", "rainy@", "@1", "rainy@1x", "rainy@" + "9" * 30):
        assert "Published versions" not in palette(root, text), text
    assert palette(staff("view_profileversion"), "rainy@1") == {}  # somebody else's


@pytest.mark.parametrize(
    "text",
    [
        "\0",
        "a\0b",
        "%",
        "_",
        "'; drop table",
        "x" * 10_000,
        "🙂",
        '"',
        "or",
        "-a",
        EVIL,
        "\u202e",
        "9" * 400,
        "f" * 32,
        "@1",
    ],
)
def test_the_palette_takes_strange_texts(root: User, model: LanguageModel, text: str):
    palette(root, text)


def test_only_the_beginning_of_a_long_text_is_searched(root: User, model: LanguageModel):
    SteeringProfile.objects.create(name="p", description="x" * MAX_CHARS, model=model)
    assert names(root, "x" * 10_000) == ["p"]
    assert names(root, "\0rain\0maker\0") == ["rainmaker"]


def test_markup_in_names_is_text_in_the_palette(root: User, model: LanguageModel):
    SteeringProfile.objects.create(name="p", description=f"{EVIL} \u202e" + "y" * 500, model=model)
    (hit,) = palette(root, "script")["Profiles"]
    assert hit["note"].startswith(f"{EVIL} ⟨U+202E⟩yyy")
    assert hit["note"].endswith("…")
    answer = client_of(root).get("/admin/search/palette/", {"q": "script"})
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_kind_has_a_list_and_reads_little(root: User, model: LanguageModel, django_assert_max_num_queries: Any):
    for source in SOURCES:
        assert source.model in admin.site._registry
    client = client_of(root)
    with django_assert_max_num_queries(30):
        client.get("/admin/search/palette/", {"q": "rain"})
