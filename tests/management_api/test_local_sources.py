"""Which directories of the server can be named over the network, and what is said of the others: nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.urls import reverse

from inference.files.sources import OUTSIDE_ROOTS, ModelSource, SourceError, check_directory, check_within_roots
from inference.models import LanguageModel
from openai_api.http.errors import unavailable, without_paths
from steering.sae_registry.hub import list_saes
from tests.builders import build_model
from tests.console.test_pages import client_of
from tests.management_api.conftest import api_of, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(build_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def roots(tmp_path: Path, settings: Any) -> Path:
    root = tmp_path / "roots"
    root.mkdir()
    settings.MILLM_MODEL_ROOTS = (root,)
    return root


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def outside(roots: Path, elsewhere: Path) -> Iterator[str]:
    """What there is and what there is not, in every spelling."""
    (roots / "link").symlink_to(elsewhere)
    yield from (
        str(elsewhere),
        str(elsewhere / "none"),
        "/",
        "/root",
        "/nowhere",
        "~",
        "~root",
        "~nobody-at-all",
        ".",
        "..",
    )
    yield from (f"{roots}/../secret", f"{roots}-beside", f"{roots}/link", "./var", f"{elsewhere}/config.json")


def answers(post: Any, roots: Path, elsewhere: Path) -> set[str]:
    return {post(source) for source in outside(roots, elsewhere)}


def test_the_api_tells_nothing_of_directories_outside(roots: Path, elsewhere: Path, model: LanguageModel):
    """A researcher's POST /api/saes told which directories exist."""
    researcher = api_of(make_user("rita", "Researchers"))
    root = api_of(User.objects.create_superuser("root"))

    def add_sae(source: str) -> str:
        response = researcher.post("saes", {"name": "s", "model": model.pk, "source": source})
        assert response.status_code == 400
        return str(response.json()["error"])

    def add_model(source: str) -> str:
        response = root.post("models", {"name": "m", "source": source})
        assert response.status_code == 400
        return str(response.json()["error"])

    def move_model(source: str) -> str:
        response = root("PATCH", f"models/{model.pk}", {"source": source})
        assert response.status_code == 400
        return str(response.json()["error"])

    for post in (add_sae, add_model, move_model):
        (told,) = answers(post, roots, elsewhere)
        (roots / "link").unlink()
        assert OUTSIDE_ROOTS in told
        assert "'param': 'source'" in told


def test_nor_does_a_form_of_the_console(roots: Path, elsewhere: Path, model: LanguageModel):
    client = client_of(User.objects.create_superuser("root"))
    forms: list[tuple[str, dict[str, Any]]] = [
        (reverse("admin:inference_languagemodel_preview"), {}),
        (reverse("admin:inference_languagemodel_add"), {"name": "m", "dtype": "auto", "device": "auto"}),
        (reverse("admin:inference_languagemodel_change", args=[model.pk]), {"name": "m", "dtype": "auto"}),
        (reverse("admin:steering_sae_add"), {"name": "s", "model": model.pk, "_list": "1"}),
        (reverse("admin:steering_sae_add"), {"name": "s", "model": model.pk, "_preview": ""}),
        (reverse("admin:steering_sae_add"), {"name": "s", "model": model.pk}),
    ]
    for url, fields in forms:
        for source in outside(roots, elsewhere):
            page = client.post(url, {**fields, "source": source}).content.decode()
            assert "MILLM_MODEL_ROOTS" in page, f"{url}: {source}"
            assert "no config.json" not in page
            assert "does not exist; give a directory" not in page
        (roots / "link").unlink()


def test_nothing_outside_is_walked(roots: Path, elsewhere: Path, model: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    """`/root` was walked for 73 s."""
    asked: list[str] = []

    def spy(real: Any) -> Any:
        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            asked.append(str(path))
            return real(path, *args, **options)

        return call

    for name in ("walk", "scandir", "stat"):
        monkeypatch.setattr(os, name, spy(getattr(os, name)))
    with pytest.raises(SourceError):
        check_within_roots(str(elsewhere))
    assert [path for path in asked if str(elsewhere) in path] == []


def test_what_lies_below_a_root_is_served(roots: Path, model_dir: Path, tmp_path: Path, settings: Any):
    settings.MILLM_MODEL_ROOTS = (roots, model_dir.parent)
    root = api_of(User.objects.create_superuser("root"))
    added = root.post("models", {"name": "m", "source": str(model_dir)})
    assert added.status_code == 201, added.content
    by_link = tmp_path / "linked-roots"
    by_link.symlink_to(model_dir.parent)
    settings.MILLM_MODEL_ROOTS = (by_link,)
    assert root.post("models", {"name": "n", "source": f"{by_link}/{model_dir.name}"}).status_code == 201


def test_hub_ids_are_not_paths(roots: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A directory of the server's that is called like a repository changes nothing."""
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    root = api_of(User.objects.create_superuser("root"))
    assert root.post("models", {"name": "m", "source": "org/model"}).status_code == 201
    assert LanguageModel.objects.get().source == "org/model"


def test_an_operator_at_the_shell_names_any_path(roots: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch):
    call_command("add_model", "m", str(model_dir), verbosity=0)
    monkeypatch.chdir(model_dir.parent)
    call_command("add_model", "n", model_dir.name, verbosity=0)
    assert {row.source for row in LanguageModel.objects.all()} == {str(model_dir.resolve())}
    # and what was registered so is edited in the console without a move
    root = api_of(User.objects.create_superuser("root"))
    row = LanguageModel.objects.get(name="m")
    assert root("PATCH", f"models/{row.pk}", {"pinned": True}).status_code == 200


@pytest.mark.parametrize("source", ["./tiny", "tiny"])
def test_declarations_name_directories_beside_them(
    source: str, roots: Path, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where the file itself is named by a relative path."""
    (tmp_path / "tiny").symlink_to(model_dir)
    (tmp_path / "models.toml").write_text(f'[models.m]\nsource = "{source}"\n')
    monkeypatch.chdir(tmp_path)
    call_command("sync_models", "models.toml", verbosity=0)
    assert LanguageModel.objects.get().source == str(model_dir.resolve())


def test_a_directory_that_is_no_model_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "walk", lambda *_: pytest.fail("it was walked"))
    with pytest.raises(SourceError, match=r"no config\.json"):
        check_directory(tmp_path, ModelSource(str(tmp_path)))


def test_a_tree_of_empty_directories_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("steering.sae_registry.hub._MAX_FILES", 50)
    for number in range(60):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(SourceError, match="more than 50 files"):
        list_saes(str(tmp_path))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("/root/models/tiny has no config.json; it is not", "…/tiny has no config.json; it is not"),
        ("The directory '/root/my models/tiny' does not exist; give", "The directory '…/tiny' does not exist; give"),
        ("[Errno 2] No such file: '/srv/a/b.safetensors'", "[Errno 2] No such file: '…/b.safetensors'"),
        ("in ~/models/x have changed", "in …/x have changed"),
        ("GET /v1/models lists the models; see https://example.org/a/b and docs/x/y.", None),
        ("Send `Content-Type: application/json`, 3/4 of it and/or more.", None),
    ],
)
def test_errors_of_v1_hold_no_paths_of_the_machine(message: str, shown: str | None):
    assert without_paths(message) == (shown or message)
    assert unavailable(message, code="x").message == (shown or message)
