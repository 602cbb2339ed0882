"""Only real, complete, harmless model directories are accepted, and only what is needed is downloaded."""

from __future__ import annotations

import json
import os
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from inference.files.sources import ModelSource, SourceError, fetch, resolve_source


class FakeHub:
    """Has ``snapshot_download``'s signature; copies what the patterns allow."""

    def __init__(self, files: Path | None = None, error: Exception | None = None) -> None:
        self.files = files
        self.error = error
        self.calls: list[dict] = []

    def __call__(self, *, repo_id, revision, local_dir, allow_patterns):
        self.calls.append({"repo_id": repo_id, "revision": revision, "allow_patterns": allow_patterns})
        if self.error is not None:
            raise self.error
        Path(local_dir).mkdir(parents=True, exist_ok=True)
        for file in self.files.iterdir() if self.files else ():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, local_dir)


@pytest.fixture
def copy(model_dir, tmp_path) -> Path:
    return Path(shutil.copytree(model_dir, tmp_path / "copy"))


def edit_config(path: Path, **values) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def refused(source, **options) -> str:
    with pytest.raises(SourceError) as caught:
        resolve_source(ModelSource(str(source), **options), download=FakeHub(error=AssertionError("no download")))
    return str(caught.value)


def test_a_local_directory_is_taken_by_its_real_path(model_dir, tmp_path):
    (tmp_path / "link").symlink_to(model_dir)

    assert resolve_source(ModelSource(str(tmp_path / "link"))) == model_dir.resolve()


def test_a_relative_directory_is_a_directory(model_dir, monkeypatch):
    monkeypatch.chdir(model_dir.parent)

    assert resolve_source(ModelSource("./tiny")) == model_dir.resolve()


@pytest.mark.parametrize("source", ["/nowhere/at/all", "./nowhere", "~/nowhere-at-all", "/etc/passwd", "/dev/zero"])
def test_what_is_no_directory_is_refused(source):
    assert "does not exist; give a directory" in refused(source)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "a b",
        "a/b/c",
        "../x/../y"[3:],
        "https://example.com/m",
        "org/../x",
        "org/",
        "-org/m",
        "x\0y",
        "a" * 10_000 + " ",
    ],
)
def test_what_is_no_hub_id_is_refused(source):
    message = refused(source)

    assert "neither a directory nor a Hub id" in message
    assert len(message) < 400


def test_links_out_of_the_directory_are_refused(copy, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    (copy / "extra.json").symlink_to(secret)

    assert "links to a file outside the model's directory" in refused(copy)


def test_links_inside_the_directory_are_fine(copy):
    (copy / "again.safetensors").symlink_to(copy / "model.safetensors")

    assert resolve_source(ModelSource(str(copy))) == copy


def test_the_hubs_own_cache_may_link_to_its_blobs(copy, tmp_path):
    repo = tmp_path / "models--org--m"
    snapshot = repo / "snapshots" / "abc"
    (repo / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in copy.iterdir():
        shutil.copy(file, repo / "blobs" / file.name)
        (snapshot / file.name).symlink_to(repo / "blobs" / file.name)

    assert resolve_source(ModelSource(str(snapshot))) == snapshot


def test_dangling_links_and_pipes_are_refused(copy):
    (copy / "gone").symlink_to(copy / "nothing")
    assert "could not be read" in refused(copy)
    (copy / "gone").unlink()
    os.mkfifo(copy / "pipe")

    assert "not a regular file" in refused(copy)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "JSON object"),
        ("[" * 100_000, "not valid JSON"),
        (" " * 1_100_000, "the limit is"),
    ],
)
def test_a_broken_config_is_refused(copy, content, told):
    (copy / "config.json").write_text(content)

    assert told in refused(copy)


@pytest.mark.parametrize(
    "architectures", [["BertForQuestionAnswering"], ["T5ForConditionalGeneration"], [], None, "LlamaForCausalLM"]
)
def test_only_models_that_can_be_served_are_accepted(copy, architectures):
    edit_config(copy, architectures=architectures)

    assert "is not a model that can be served" in refused(copy)


def test_code_of_the_model_needs_trust(copy):
    edit_config(copy, auto_map={"AutoConfig": "own.Config"})

    assert "--trust-remote-code" in refused(copy)
    assert resolve_source(ModelSource(str(copy), trust_remote_code=True)) == copy


@pytest.mark.parametrize(
    ("file", "told"),
    [("config.json", "no config.json"), ("tokenizer.json", "tokenizer.json"), ("model.safetensors", "no weights")],
)
def test_missing_files_are_named(copy, file, told):
    (copy / file).unlink()

    assert told in refused(copy)


def test_pickled_weights_need_permission(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")

    assert "--allow-pickle" in refused(copy)
    assert resolve_source(ModelSource(str(copy), allow_pickle=True)) == copy


def test_a_hub_id_is_downloaded_once_without_pickles_or_code(copy, tmp_path):
    (copy / "evil.bin").write_text("x")
    (copy / "evil.py").write_text("x")
    hub = FakeHub(copy)
    path = resolve_source(ModelSource("org/tiny", revision="v1/x"), download=hub, downloads_dir=tmp_path / "models")
    again = resolve_source(ModelSource("org/tiny", revision="v1/x"), download=hub, downloads_dir=tmp_path / "models")

    assert path == again == tmp_path / "models" / "org--tiny@v1--x"
    assert [(call["repo_id"], call["revision"]) for call in hub.calls] == [("org/tiny", "v1/x")]
    assert (path / "model.safetensors").is_file()
    assert not list(path.glob("evil*"))


def test_pickles_and_code_are_downloaded_where_allowed(copy, tmp_path):
    (copy / "pytorch_model.bin").write_text("x")
    (copy / "own.py").write_text("x")
    source = ModelSource("org/tiny", allow_pickle=True, trust_remote_code=True)
    path = resolve_source(source, download=FakeHub(copy), downloads_dir=tmp_path / "models")

    assert (path / "pytorch_model.bin").is_file()
    assert (path / "own.py").is_file()


def test_an_interrupted_download_is_resumed(copy, tmp_path):
    with pytest.raises(SourceError):
        fetch("org/tiny", allow_patterns=["*"], download=FakeHub(error=OSError("cut")), downloads_dir=tmp_path)
    hub = FakeHub(copy)
    fetch("org/tiny", allow_patterns=["*"], download=hub, downloads_dir=tmp_path)

    assert len(hub.calls) == 1


def test_files_of_other_kinds_are_fetched_later(copy, tmp_path):
    hub = FakeHub(copy)
    fetch("org/tiny", allow_patterns=["config.json"], download=hub, downloads_dir=tmp_path)
    fetch("org/tiny", allow_patterns=["*.json"], download=hub, downloads_dir=tmp_path)
    fetch("org/tiny", allow_patterns=["config.json"], download=hub, downloads_dir=tmp_path)

    assert [call["allow_patterns"] for call in hub.calls] == [["config.json"], ["*.json"]]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("GatedRepoError", "gated: accept its terms"),
        ("RepositoryNotFoundError", "org/tiny does not exist on the Hub"),
        ("RevisionNotFoundError", "no revision 'v9'"),
        ("LocalEntryNotFoundError", "Hub is not reachable"),
        ("ConnectError", "Hub is not reachable"),
        ("OSError", "could not be downloaded: OSError: disk full"),
    ],
)
def test_download_problems_are_told_in_a_sentence(tmp_path, kind, told):
    error = type(kind, (Exception,), {})("disk full")

    with pytest.raises(SourceError, match=told):
        fetch("org/tiny", revision="v9", allow_patterns=["*"], download=FakeHub(error=error), downloads_dir=tmp_path)


def test_the_errors_that_are_told_apart_exist_in_the_hubs_library():
    """They are matched by name, so a renaming would go unnoticed."""
    from huggingface_hub import errors

    for name in ("GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError", "LocalEntryNotFoundError"):
        assert issubclass(getattr(errors, name), Exception)
    assert issubclass(errors.GatedRepoError, errors.RepositoryNotFoundError)
