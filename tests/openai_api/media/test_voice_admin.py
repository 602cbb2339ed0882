"""Voices in the console and under /api: their parts, recordings, audit events, and who hears them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from audit.models import AuditEvent
from core.errors import MillmError
from core.runtime import runtime
from inference.models import LanguageModel
from inference.registry.registry import MODEL_REGISTRY, ModelRegistry
from media.messages import ModelFacts
from media.models import Voice
from media.voices import read_embedding
from openai_api.models import LogAccess
from tests.console.test_pages import client_of, staff
from tests.management_api.conftest import api_of, make_user

pytestmark = pytest.mark.django_db
ADD = "/admin/media/voice/add/"


@pytest.fixture
def model() -> LanguageModel:
    return LanguageModel.objects.create(name="speaker", source="/models/speaker", kind="speech")


def change_url(voice: Voice) -> str:
    return f"/admin/media/voice/{voice.pk}/change/"


def save(client: Client, model: LanguageModel, url: str = ADD, **fields: Any) -> Any:
    form = {"name": "Rita", "model": model.pk, "speaker": "", "embedding": "", "consent": "", **fields}
    return client.post(url, form)


def errors_of(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200
    return dict(response.context["adminform"].form.errors)


def upload(data: bytes, name: str = "voice") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, data)


def test_a_recording_is_stored_as_flac_and_heard_by_few(
    admin_client: Client, model: LanguageModel, sound: Callable[[float], Path]
) -> None:
    response = save(admin_client, model, recording=upload(sound(1.0).read_bytes()), consent="Rita, today.")
    assert response.status_code == 302, errors_of(response)
    voice = Voice.objects.get()
    assert bytes(voice.reference or b"").startswith(b"fLaC")
    url = f"/admin/media/voice/{voice.pk}/recording/"
    assert url in admin_client.get(change_url(voice)).content.decode()
    assert LogAccess.objects.count() == 0, "nothing was played"

    played = admin_client.get(url)
    assert (played["Content-Type"], played.content[:4]) == ("audio/flac", b"fLaC")
    access = LogAccess.objects.get()
    assert (access.act, access.username, access.detail) == ("play", "admin", {"voice": "Rita"})

    reader = client_of(staff("view_voice"))
    assert url not in reader.get(change_url(voice)).content.decode()
    assert reader.get(url).status_code == 403
    assert client_of(staff("view_prompt_text")).get(url).status_code in (302, 403)
    assert LogAccess.objects.count() == 1


def test_a_recording_needs_consent_and_is_short_sound(
    admin_client: Client, model: LanguageModel, sound: Callable[[float], Path]
) -> None:
    good = sound(1.0).read_bytes()
    assert "consent" in errors_of(save(admin_client, model, recording=upload(good)))
    assert "30" in errors_of(save(admin_client, model, recording=upload(sound(31.0).read_bytes())))["recording"][0]
    assert "recording" in errors_of(save(admin_client, model, recording=upload(b"no sound"), consent="x"))
    both = errors_of(save(admin_client, model, recording=upload(good), consent="x", speaker="3"))
    assert both["__all__"] == ["Give one of a speaker, an embedding or a recording."]
    assert Voice.objects.count() == 0


def test_a_recording_is_removed(admin_client: Client, model: LanguageModel) -> None:
    voice = Voice.objects.create(name="Rita", model=model, reference=b"fLaC", consent="x")
    assert save(admin_client, model, change_url(voice), consent="x").status_code == 302
    voice.refresh_from_db()
    assert voice.reference is not None
    response = save(admin_client, model, change_url(voice), remove_recording="on", speaker="2")
    assert response.status_code == 302, errors_of(response)
    voice = Voice.objects.get()
    assert (voice.reference, voice.speaker) == (None, "2")
    changes = AuditEvent.objects.filter(kind="media.voice", action="change").latest("pk").changes
    assert changes["reference"] == ["4 bytes", None]
    assert admin_client.get(f"/admin/media/voice/{voice.pk}/recording/").status_code == 404


def test_an_embedding_from_a_file(admin_client: Client, model: LanguageModel) -> None:
    file = io.BytesIO()
    np.save(file, np.array([[0.5, -1.0]], dtype=np.float32))
    response = save(admin_client, model, embedding_file=upload(file.getvalue(), "rita.npy"))
    assert response.status_code == 302, errors_of(response)
    assert Voice.objects.get().embedding == [0.5, -1.0]
    assert "embedding of 2 numbers" in admin_client.get("/admin/media/voice/").content.decode()
    event = AuditEvent.objects.get(kind="media.voice", action="add")
    assert (event.model, event.changes["embedding"]) == ("speaker", [None, "2 numbers"])


def bomb() -> bytes:
    """An array whose header claims a terabyte."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (2**37,)})
    return file.getvalue()


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "a.npy"),
        (b"\x93NUMPY\x01\x00", "a.npy"),
        (bomb(), "a.npy"),
        (pickled(), "a.npy"),
        (b"[]", "a.json"),
        (b'{"a": 1}', "a.json"),
        (b"[1, null]", "a.json"),
        (b"[NaN]", "a.json"),
        (b"[1" + b",1" * 5_000 + b"]", "a.json"),
        (b"[" * 100_000, "a.json"),
        (b"\xff", "a.json"),
    ],
)
def test_bad_embeddings(data: bytes, name: str) -> None:
    with pytest.raises(MillmError, match="one vector"):
        read_embedding(data, name)


def test_speakers_of_a_loaded_model(admin_client: Client, model: LanguageModel) -> None:
    class Registry(ModelRegistry):
        def media_facts(self, name: str) -> object | None:
            return ModelFacts("VitsModel", "cpu", "float32", 1, 1, speakers=("0", "1"))

    runtime.install(MODEL_REGISTRY, Registry())
    try:
        page = admin_client.get(ADD).content.decode()
        assert '<option value="1">speaker</option>' in page
        assert "speaker" in errors_of(save(admin_client, model, speaker="2"))
        assert save(admin_client, model, speaker="1").status_code == 302
    finally:
        runtime.remove(MODEL_REGISTRY)
    assert "speaker 1" in admin_client.get("/admin/media/voice/").content.decode()


def test_only_speech_models_and_names_once(admin_client: Client, model: LanguageModel) -> None:
    other = LanguageModel.objects.create(name="writer", source="/models/writer", kind="generation")
    assert "model" in errors_of(save(admin_client, other))
    Voice.objects.create(name="rita", model=model)
    assert errors_of(save(admin_client, model)) == {
        "name": ["There is a voice of this name. Names are the same in any case."]
    }
    assert Voice.objects.count() == 1


def test_the_page_offers_to_hear_it(admin_client: Client, model: LanguageModel) -> None:
    voice = Voice.objects.create(name="Rita", model=model)
    page = admin_client.get(change_url(voice)).content.decode()
    assert "Hear it" in page
    assert '<input type="hidden" name="voice" value="Rita">' in page
    assert "Hear it" not in client_of(staff("view_voice", "change_voice")).get(change_url(voice)).content.decode()


def test_the_page_of_a_speech_model(admin_client: Client, model: LanguageModel) -> None:
    Voice.objects.create(name="Rita", model=model)
    page = admin_client.get(f"/admin/inference/languagemodel/{model.pk}/change/").content.decode()
    assert '<option value="Rita"></option>' in page
    assert "Chat template" not in page
    assert "Quantization" not in page
    assert ">Warm<" not in page


def test_under_api(model: LanguageModel) -> None:
    api = api_of(make_user("root", is_superuser=True))
    created = api.post("voices", {"name": "Rita", "model": model.pk, "embedding": [0.5]})
    assert created.status_code == 201, created.content
    body = created.json()
    assert (body["embedding"], body["is_recorded"]) == ([0.5], False)
    assert [row["id"] for row in api.found("voices", name="RITA")] == [body["id"]]
    path = f"voices/{body['id']}"
    assert api("PATCH", path, {"embedding": None, "speaker": "3"}).json()["speaker"] == "3"
    assert api("PATCH", path, {"embedding": ["x"]}).status_code == 400
    assert api("PATCH", path, {"embedding": json.loads("[1]")}).status_code == 400, "besides a speaker"
    assert api("DELETE", path).status_code == 204
    assert [event.action for event in AuditEvent.objects.filter(kind="media.voice")] == ["delete", "change", "add"]
