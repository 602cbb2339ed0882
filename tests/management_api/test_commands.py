"""Commands that do what the pages and the API do."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command

from core.runtime import runtime
from inference.job_kinds import LOAD
from inference.models import LanguageModel
from inference.registry.registry import MODEL_REGISTRY, ModelRegistry
from jobs.kinds import find_kind
from jobs.models import Job
from openai_api.keys.authentication import find_key, load_keys
from steering import services
from steering.models import SteeringProfile
from steering.profiles import lifecycle
from tests.inference.fakes import FakeLoop


def run(command: str, *args: Any, **options: Any) -> str:
    out = StringIO()
    call_command(command, *args, stdout=out, stderr=StringIO(), **options)
    return out.getvalue()


def test_list_models(model: LanguageModel, other_model: LanguageModel):
    LanguageModel.objects.filter(pk=other_model.pk).update(state="failed", error="No room.", pinned=True)
    assert [row["name"] for row in json.loads(run("list_models", json=True))] == ["other", "tiny"]
    text = run("list_models")
    assert f"tiny (generation, unloaded) from {model.source}\n" in text
    assert "other (generation, failed, pinned)" in text
    assert text.count("\n") == 2
    assert run("list_models", state="loaded") == ""


def test_list_profiles(profile: SteeringProfile, model: LanguageModel):
    services.create_profile(name="bare", model=model)
    services.publish_profile(profile=profile)
    assert run("list_profiles").splitlines() == ["bare (tiny, a draft)", "gloomy (tiny, @1) Sad weather."]
    lifecycle.archive_profile(profile=profile)
    rows = json.loads(run("list_profiles", model="tiny", json=True))
    assert [(row["name"], row["newest"], row["archived"]) for row in rows] == [
        ("bare", None, False),
        ("gloomy", 1, True),
    ]
    assert json.loads(run("list_profiles", model="none", json=True)) == []


def test_export_profiles_and_import_them_again(profile: SteeringProfile, model: LanguageModel, tmp_path: Path):
    version = services.publish_profile(profile=profile)
    services.create_profile(name="draft", model=model)
    assert "Wrote 1 profiles" in run("export_profiles", tmp_path / "files", model="tiny")
    (file,) = (tmp_path / "files").iterdir()
    assert file.name == "gloomy@1.json"
    run("import_profile", file, model="tiny", name="again")
    again = SteeringProfile.objects.get(name="again")
    assert services.publish_profile(profile=again).fingerprint == version.fingerprint


@pytest.mark.parametrize(
    ("folder", "named", "said"), [("full", "tiny", "not empty"), ("new", "none", "The model none does not exist")]
)
def test_export_profiles_refuses(folder: str, named: str, said: str, profile: SteeringProfile, tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("")
    with pytest.raises(CommandError, match=said):
        run("export_profiles", tmp_path / folder, model=named)


def test_a_managing_key(db: None):
    User.objects.create_user("ada")
    plain = run("create_api_key", "laptop", user="ada", scopes=["manage"]).strip()
    record = find_key(plain, load_keys())
    assert record is not None
    assert record.may_manage
    other = find_key(run("create_api_key", "other", user="ada").strip(), load_keys())
    assert other is not None
    assert not other.may_manage


def test_sync_roles_gives_back_what_was_taken(db: None):
    group = Group.objects.get(name="Auditors")
    group.permissions.clear()
    Group.objects.get(name="Researchers").delete()
    for _ in range(2):
        assert "Researchers, Auditors, Admins" in run("sync_roles")
    assert group.permissions.filter(codename="view_requestlog").exists()
    assert Group.objects.get(name="Researchers").permissions.filter(codename="publish_steeringprofile").exists()
    assert Group.objects.get(name="Admins").permissions.count() == Permission.objects.count()


@pytest.mark.parametrize(("command", "kind"), [("load_model", LOAD), ("unload_model", "inference.unload_model")])
def test_loading_is_a_job_of_the_server(command: str, kind: str, model: LanguageModel):
    found = json.loads(run(command, "tiny", no_wait=True, json=True))
    job = Job.objects.get()
    assert (found["job"], found["state"], job.kind, job.params) == (str(job.pk), "queued", kind, {"model": "tiny"})
    assert "Queued job" in run(command, "tiny", no_wait=True)


def test_a_model_that_there_is_not(db: None):
    with pytest.raises(CommandError, match="The model none does not exist"):
        run("load_model", "none")
    assert not Job.objects.exists()


class Told:
    """A running job that keeps what it is told."""

    def __init__(self) -> None:
        self.params = {"model": "tiny"}
        self.messages: list[str] = []

    def progress(self, done: int, total: int, message: str = "") -> None:
        self.messages.append(message)


class Registry(ModelRegistry):
    """Loads when the test says so."""

    def __init__(self) -> None:
        loop: Any = FakeLoop()
        super().__init__(loop)
        self.future: Future[None] = Future()

    def load(self, name: str) -> Future[None]:
        assert name == "tiny"
        return self.future

    def unload(self, name: str, *, now: bool = False) -> Future[None]:
        return self.load(name)


@pytest.fixture
def registry() -> Any:
    found = Registry()
    runtime.install(MODEL_REGISTRY, found)
    yield found
    runtime.remove(MODEL_REGISTRY)


@pytest.mark.parametrize(("kind", "word"), [(LOAD, "Loading"), ("inference.unload_model", "Unloading")])
def test_the_job_waits_for_the_registry(kind: str, word: str, registry: Registry):
    told: Any = Told()
    timer = threading.Timer(0.05, lambda: registry.future.set_result(None))
    timer.start()
    assert find_kind(kind).load_run()(told) == {"model": "tiny"}
    assert set(told.messages) == {word}


def test_a_load_that_fails_fails_the_job(registry: Registry):
    registry.future.set_exception(ValueError("no room"))
    with pytest.raises(ValueError, match="no room"):
        find_kind(LOAD).load_run()(Told())  # type: ignore[arg-type]  # it tells as a running job does
