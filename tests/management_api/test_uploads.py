"""Files that clients send to /api: vectors, SAEs, labels and corpora."""

from __future__ import annotations

import base64
import io
import json
import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from audit.models import AuditEvent
from inference.models import LanguageModel
from jobs.models import Job
from jobs.periodic import enqueue_due
from openai_api.http.file_uploads import accepts_files, body_limit, upload_refusal
from steering import services
from steering.corpora.corpus_registry import open_corpus
from steering.effects.recipe import EffectResult
from steering.effects.store import store_vector_effect
from steering.model_shape import read_model_shape
from steering.models import SAE, PlainVector, SteeringProfile, VectorSet
from steering.sae_registry.jobs import request_sae
from steering.sae_registry.registration import SAELocation
from steering.sae_registry.uploads import abandoned_uploads, has_abandoned_uploads, run_prune_uploads, uploads_folder
from tests.management_api.conftest import Api, refusal
from tests.steering.sae_files import D_IN, random_weights, sae_config, write_sae
from tests.steering.test_jobs import RecordedJob


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Iterator[Path]:
    settings.MILLM_HOME = tmp_path / "home"
    settings.MILLM_HOME.mkdir()
    yield settings.MILLM_HOME
    assert not list((settings.MILLM_HOME / "incoming").glob("*")), "temporary files are deleted"


def send(api: Api, path: str, files: dict[str, Any], **fields: Any) -> Any:
    """Post a form; files are (name, content), or several of them."""
    parts: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    for name, value in files.items():
        many = value if isinstance(value, list) else [value]
        sent = [SimpleUploadedFile(file_name, content) for file_name, content in many]
        parts[name] = sent if isinstance(value, list) else sent[0]
    return api.client.post(f"/api/{path}", parts, headers=api.headers)


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def width_of(model: LanguageModel) -> int:
    return read_model_shape(model).hidden_size


def sae_content(folder: Path, d_in: int = D_IN) -> list[tuple[str, bytes]]:
    """The files of an SAE, with weights of its own."""
    path = write_sae(folder, sae_config(d_in=d_in), random_weights(5, d_in=d_in))
    return [(file.name, file.read_bytes()) for file in sorted(path.iterdir())]


class TestVectors:
    def test_a_file_becomes_a_set_whose_numbers_can_be_read(self, researcher_api: Api, model: LanguageModel):
        values = np.linspace(-1, 1, width_of(model), dtype=np.float32)
        content = npz(**{"direction.0": values, "direction.1": 2 * values})
        response = send(
            researcher_api, "vectors", {"file": ("calm.npz", content)}, name="calm", model=model.pk, description="Calm."
        )
        assert response.status_code == 201, response.content
        made = response.json()
        assert (made["name"], made["origin"], made["created_by"]) == ("calm", "calm.npz", "rita")
        assert [vector["layer"] for vector in made["vectors"]] == [0, 1]

        data = researcher_api.get(f"vectors/{made['id']}/values").json()["data"]
        found = [np.frombuffer(base64.b64decode(one["values"]), "<f4") for one in data]
        np.testing.assert_array_equal(found, [values, 2 * values])
        assert AuditEvent.objects.get(action="vectors").user == "rita"

    def test_effects_are_measured_by_a_job_and_shown(self, researcher_api: Api, model: LanguageModel):
        content = npz(**{"direction.0": np.ones(width_of(model), np.float32)})
        made = send(researcher_api, "vectors", {"file": ("calm.npz", content)}, name="calm", model=model.pk).json()
        assert made["vectors"][0]["effect"] is None
        asked = {"target": 0.2, "prompts": ["Tell me a story."], "replaces": True}
        response = researcher_api.post(f"vectors/{made['id']}/effects", asked)
        assert (response.status_code, response.json()["kind"]) == (202, "steering.vector_effects")
        params = Job.objects.get().params
        assert (params["vector_set"], params["recipe"]["target"], params["replaces"]) == (made["id"], 0.2, True)
        for wrong, param in (({"target": 0}, "target"), ({"prompts": []}, "prompts"), ({"features": [1]}, "features")):
            refused = researcher_api.post(f"vectors/{made['id']}/effects", wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert researcher_api.post("vectors/1000000/effects", {}).status_code == 404
        result = EffectResult(None, 2.0, 0.3, 0.4, is_capped=True, curve=((2.0, 0.3),))
        store_vector_effect(
            vector=PlainVector.objects.get(),
            result=result,
            output_tokens=[(" rain", 0.1)],
            recipe="r",
            measured_at=timezone.now(),
        )
        effect = researcher_api.get(f"vectors/{made['id']}").json()["vectors"][0]["effect"]
        assert (effect["strength"], effect["is_capped"], effect["fluency"]) == (2.0, True, None)
        assert (effect["curve"], effect["output_tokens"]) == ([[2.0, 0.3]], [[" rain", 0.1]])

    @pytest.mark.parametrize(
        ("file", "fields", "param"),
        [
            (None, {}, "file"),
            (("calm.pickle", b"x"), {}, "file"),
            (("calm.npz", b"no archive"), {}, "file"),
            (("calm.safetensors", b"\xff" * 64), {}, "file"),
            (("calm.npz", b""), {}, "file"),
            (("wrong.npz", "narrow"), {}, "file"),
            (("deep.npz", "deep"), {}, "file"),
            (("nan.npz", "nan"), {}, "file"),
            (("fine.npz", "fine"), {"layer": "x"}, "layer"),
            (("fine.npz", "fine"), {"model": "tiny"}, "model"),
            (("fine.npz", "fine"), {"model": 10**6}, "model"),
            (("fine.npz", "fine"), {"name": "not a slug"}, "name"),
            (("fine.npz", "fine"), {"colour": "blue"}, "colour"),
        ],
    )
    def test_refused(self, file: Any, fields: Any, param: str, researcher_api: Api, model: LanguageModel):
        width = width_of(model)
        contents = {
            "narrow": npz(**{"direction.0": np.ones(3, np.float32)}),
            "deep": npz(**{"direction.99": np.ones(width, np.float32)}),
            "nan": npz(**{"direction.0": np.full(width, np.nan, np.float32)}),
            "fine": npz(**{"direction.0": np.ones(width, np.float32)}),
        }
        files = {} if file is None else {"file": (file[0], contents.get(file[1], file[1]))}
        response = send(researcher_api, "vectors", files, **{"name": "calm", "model": model.pk, **fields})
        assert response.status_code in {400, 404}, response.content
        assert refusal(response)[2] == param
        assert not VectorSet.objects.exists()

    def test_json_is_not_a_form(self, researcher_api: Api):
        assert refusal(researcher_api.post("vectors", {"name": "calm"}))[:2] == (415, "unsupported_media_type")
        broken = researcher_api.client.post(
            "/api/vectors", b"nothing", content_type="multipart/form-data; boundary=x", headers=researcher_api.headers
        )
        assert broken.status_code == 400

    def test_extraction_is_a_job(self, researcher_api: Api, model: LanguageModel):
        pairs = [{"positive": "I am calm.", "negative": "I am angry."}] * 2
        body = {"name": "calm", "model": model.pk, "pairs": pairs, "layers": [0, 1], "method": "pca"}
        assert researcher_api.post("vectors/extract", body).status_code == 202
        job = Job.objects.get()
        assert (job.kind, job.owner) == ("steering.extract", researcher_api.user)
        assert job.params["sites"] == [[0, "resid_post"], [1, "resid_post"]]
        assert job.params["pairs"] == pairs

    def test_extraction_refused(self, researcher_api: Api, model: LanguageModel):
        pair = {"positive": "a", "negative": "b"}
        fine = {"name": "calm", "model": model.pk, "pairs": [pair], "layers": [0]}
        cases: list[tuple[dict[str, Any], str | None]] = [
            ({"pairs": []}, "pairs"),
            ({"pairs": [{"positive": "a"}]}, "pairs[0].negative"),
            ({"pairs": [{**pair, "positive": " "}]}, "pairs[0].positive"),
            ({"layers": []}, "layers"),
            ({"layers": [99]}, "model"),
            ({"layers": [0, 0]}, None),
            ({"site": "nowhere"}, "site"),
            ({"method": "magic"}, "method"),
            ({"method": "pca"}, None),
            ({"position": "first"}, "position"),
            ({"name": "not a slug"}, "name"),
            ({"chat": "yes"}, "chat"),
        ]
        for change, param in cases:
            response = researcher_api.post("vectors/extract", {**fine, **change})
            assert response.status_code == 400, change
            assert refusal(response)[2] == param, change
        assert not Job.objects.exists()


class TestSAEs:
    @pytest.mark.parametrize("is_zipped", [False, True])
    def test_files_become_an_sae_and_go_with_it(
        self, is_zipped: bool, researcher_api: Api, model: LanguageModel, tmp_path: Path,
        django_capture_on_commit_callbacks: Any,
    ):  # fmt: skip
        content = sae_content(tmp_path / "mine")
        sent = [("mine.zip", zipped(content, "mine/"))] if is_zipped else content
        response = send(researcher_api, "saes/upload", {"files": sent}, name="mine", model=model.pk, measures="false")
        assert response.status_code == 202, response.content
        job = Job.objects.get()
        (folder,) = uploads_folder().iterdir()
        assert job.params["source"] == str(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == dict(content)

        sae = services.register_sae(name="mine", model=model, location=SAELocation(str(folder)))
        with django_capture_on_commit_callbacks(execute=True):
            services.delete_sae(sae=sae)
        assert not folder.exists()

    def test_refused(self, researcher_api: Api, model: LanguageModel, sae: SAE, tmp_path: Path, settings: Any):
        content = sae_content(tmp_path / "mine")
        weights = next(one for one in content if one[0].endswith(".safetensors"))
        config = next(one for one in content if one[0].endswith(".json"))
        wide = sae_content(tmp_path / "wide", D_IN + 1)
        cases: list[tuple[list[tuple[str, bytes]], dict[str, Any], str | None]] = [
            ([], {}, "files"),
            ([config], {}, None),
            ([weights], {}, None),
            ([("run.py", b"import os")], {}, "files"),
            ([*content, config], {}, "files"),
            ([("cfg.json", b"{"), weights], {}, None),
            ([("mine.zip", b"no archive")], {}, "files"),
            ([("mine.zip", zipped([("a/x.json", b""), ("b/y.json", b"")]))], {}, "files"),
            ([("mine.zip", zipped([("../../cfg.json", b"{}"), ("other.json", b"{}")]))], {}, "files"),
            ([("mine.zip", linked())], {}, "files"),
            (wide, {}, "model"),
            (content, {"layer": 99}, "model"),
            (content, {"name": sae.name}, "name"),
            (content, {"site": "nowhere"}, "site"),
            (content, {"measures": "perhaps"}, "measures"),
        ]
        for files, fields, param in cases:
            response = send(
                researcher_api,
                "saes/upload",
                {"files": files} if files else {},
                **{"name": "mine", "model": model.pk, **fields},
            )
            assert response.status_code == 400, (files, fields, response.content)
            assert refusal(response)[2] == param or param is None, (fields, response.content)
        settings.MILLM_MAX_FILE_BYTES = 100
        assert (
            "limit is 100"
            in send(researcher_api, "saes/upload", {"files": content}, name="mine", model=model.pk).json()["error"][
                "message"
            ]
        )
        assert not list(uploads_folder().iterdir()), "nothing is left"
        assert not Job.objects.exists()

    def test_abandoned_uploads_are_deleted_after_a_day(self, model: LanguageModel, sae: SAE, tmp_path: Path):
        def upload(*, hours: float = 30, name: str = "") -> Path:
            folder = uploads_folder() / (name or uuid4().hex)
            folder.mkdir(parents=True)
            (folder / "cfg.json").write_text("{}")
            os.utime(folder, (time.time() - 3600 * hours,) * 2)
            return folder

        left, unfinished, recent = upload(), upload(name=f".{uuid4().hex}"), upload(hours=2)
        trained, registered, queued, failed = upload(name="my-sae"), upload(), upload(), upload()
        (uploads_folder() / uuid4().hex).symlink_to(tmp_path)
        SAE.objects.update(source=str(registered))
        for folder, state in ((queued, Job.State.QUEUED), (failed, Job.State.FAILED)):
            job = request_sae(name="x", model=model, location=SAELocation(str(folder)))
            Job.objects.filter(pk=job.pk).update(state=state)
        assert set(abandoned_uploads()) == {left, unfinished, failed}
        (job,) = enqueue_due()
        assert (job.kind, enqueue_due()) == ("steering.prune_uploads", [])
        recorded: Any = RecordedJob({})
        assert run_prune_uploads(recorded) == {"folders": 3}
        assert all(folder.is_dir() for folder in (recent, trained, registered, queued, tmp_path))
        assert not any(folder.exists() for folder in (left, unfinished, failed))
        assert not has_abandoned_uploads()

    def test_labels(self, researcher_api: Api, sae: SAE):
        lines = [{"index": 0, "label": "rain"}, {"index": 1, "label": "sun", "max_activation": 3.0}]
        content = "\n".join(map(json.dumps, lines)).encode()
        response = send(researcher_api, f"saes/{sae.pk}/labels", {"file": ("labels.jsonl", content)})
        assert response.status_code == 200, response.content
        assert (response.json()["num_features"], response.json()["num_labels"]) == (2, 2)
        assert sae.features.get(index=1).label == "sun"
        assert AuditEvent.objects.get(action="import").user == "rita"

        for name, bad in (
            ("labels.exe", b"x"),
            ("labels.jsonl", b'{"index": 1000000, "label": "x"}'),
            ("x.csv", b"\xff"),
        ):
            assert send(researcher_api, f"saes/{sae.pk}/labels", {"file": (name, bad)}).status_code == 400
        assert send(researcher_api, "saes/999999/labels", {"file": ("labels.jsonl", content)}).status_code == 404
        assert refusal(send(researcher_api, f"saes/{sae.pk}/labels", {}))[2] == "file"


class TestCorpora:
    def test_uploaded_used_and_deleted(self, researcher_api: Api, profile: SteeringProfile, home: Path):
        documents = [{"text": "The sea."}, {"messages": [{"role": "user", "content": "Hello."}]}, {"text": "x" * 9000}]
        content = "\n".join(map(json.dumps, documents)).encode()
        made = send(researcher_api, "corpora", {"file": ("mine.jsonl", content)})
        assert made.status_code == 201, made.content
        assert (made.json()["name"], made.json()["documents"]) == ("mine.jsonl", 3)
        rows = {row["name"]: row for row in researcher_api.found("corpora")}
        assert (rows["mine.jsonl"]["kind"], rows["mine.jsonl"]["size"]) == ("file", len(content))
        assert rows["default"]["kind"] == "shipped"
        assert len(open_corpus("mine.jsonl").documents) == 3

        version = services.publish_profile(profile=profile)
        body = {"corpus": "mine.jsonl", "num_prompts": 5}
        assert researcher_api.post(f"versions/{version.pk}/sweep", body).status_code == 202
        assert Job.objects.get().params["texts"]["prompts"] == ["The sea.", "Hello."]
        both = researcher_api.post(f"versions/{version.pk}/sweep", {**body, "prompts": ["x"]})
        assert refusal(both)[2] == "corpus"
        assert researcher_api.post(f"versions/{version.pk}/sweep", {"corpus": "none.txt"}).status_code == 400

        assert researcher_api("DELETE", "corpora/mine.jsonl").status_code == 204
        assert researcher_api("DELETE", "corpora/mine.jsonl").status_code == 404
        assert not list((home / "corpora").iterdir())
        assert [event.subject for event in AuditEvent.objects.filter(subject="corpus mine.jsonl")] == [
            "corpus mine.jsonl"
        ] * 2

    def test_refused(self, researcher_api: Api, home: Path):
        send(researcher_api, "corpora", {"file": ("taken.txt", b"Text.")})
        cases = [
            ({}, {}, "file"),
            ({"file": ("x.exe", b"Text.")}, {}, "name"),
            ({"file": ("x.txt", b"")}, {}, "file"),
            ({"file": ("x.txt", b"\n\n")}, {}, None),
            ({"file": ("x.txt", b"\xff\xfe")}, {}, None),
            ({"file": ("x.jsonl", b"{")}, {}, None),
            ({"file": ("x.jsonl", b'{"text": "a\\u0000b"}')}, {}, None),
            ({"file": ("x.txt", b"Text.")}, {"name": "../x.txt"}, "name"),
            ({"file": ("x.txt", b"Text.")}, {"name": ".x.txt"}, "name"),
            ({"file": ("x.txt", b"Text.")}, {"name": "default"}, "name"),
            ({"file": ("taken.txt", b"Other.")}, {}, "name"),
        ]
        for files, fields, param in cases:
            response = send(researcher_api, "corpora", files, **fields)
            assert response.status_code == 400, (files, fields, response.content)
            assert refusal(response)[2] == param, (files, fields)
        assert [path.name for path in (home / "corpora").iterdir()] == ["taken.txt"]
        assert refusal(researcher_api("DELETE", "corpora/default"))[0] == 400


def test_only_those_who_may_in_the_console_may_upload(auditor_api: Api, model: LanguageModel, sae: SAE):
    for path in ("vectors", "saes/upload", f"saes/{sae.pk}/labels", "corpora"):
        response = send(auditor_api, path, {"file": ("x.txt", b"Text.")}, model=model.pk)
        assert refusal(response)[:2] == (403, "permission_denied"), path
    assert auditor_api.post("vectors/extract", {}).status_code == 403
    assert auditor_api.found("corpora")


def test_large_bodies_need_a_key_before_they_are_read(researcher_api: Api, settings: Any):
    settings.MILLM_MAX_FILE_BYTES = 1 << 30
    headers = [(name.lower().encode(), value.encode()) for name, value in researcher_api.headers.items()]
    for path in ("/api/saes/upload", "/api/saes/7/labels", "/api/corpora"):
        assert accepts_files(path)
        assert body_limit(path) > 1 << 30
        assert upload_refusal(headers, "127.0.0.1", path) is None
        refused = upload_refusal([], "127.0.0.1", path)
        assert refused is not None
        assert refused.status == 401
    assert body_limit("/api/vectors") == settings.MILLM_MAX_BODY_BYTES


def zipped(content: list[tuple[str, bytes]], folder: str = "") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in content:
            archive.writestr(f"{folder}{name}", data)
    return file.getvalue()


def linked() -> bytes:
    file = io.BytesIO()
    entry = zipfile.ZipInfo("cfg.json")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    return file.getvalue()
