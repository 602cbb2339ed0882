"""Registering, editing and removing models, by hand and from a file."""

from __future__ import annotations

import shutil
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import IntegrityError

from inference import services
from inference.files.sources import SourceError
from inference.models import LanguageModel
from inference.registry.records import default_of, model_record, write_state
from inference.registry.registry import get_registry

pytestmark = pytest.mark.django_db


def run(*arguments: object) -> str:
    out = StringIO()
    call_command(*map(str, arguments), stdout=out)
    return out.getvalue()


def problems(**values) -> str:
    with pytest.raises(ValidationError) as caught:
        services.register_model(**values)
    return " ".join(caught.value.messages)


def test_a_registered_model_is_found_at_once(model_dir):
    assert get_registry().records() == ()
    services.register_model(name="org/tiny", source=str(model_dir), aliases=["tiny"], default_sampling={"top_p": 0.9})

    assert get_registry().find("tiny").default_sampling == {"top_p": 0.9}


def test_a_local_source_is_kept_absolute(model_dir, monkeypatch):
    monkeypatch.chdir(model_dir.parent)

    assert services.register_model(name="m", source="./tiny").source == str(model_dir.resolve())


def test_a_name_is_registered_once_unless_asked_for(model_dir):
    first = services.register_model(name="m", source=str(model_dir), aliases=["a"])

    assert "already" in problems(name="m", source=str(model_dir))
    second = services.register_model(name="m", source=str(model_dir), aliases=["b"], exist_ok=True)
    assert (second.pk, second.aliases) == (first.pk, ["b"])


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a..b", "../a", "a\nb", "ä", "a:", ":a", "x" * 201])
def test_bad_names_are_refused(model_dir, name):
    assert problems(name=name, source=str(model_dir))
    assert problems(name="good", source=str(model_dir), aliases=[name])


@pytest.mark.parametrize("name", ["a", "org/model-1.5_b", "a/b/c", "m@v1", "1B+", "llama3:8b", "ft:m:me::1"])
def test_good_names_are_accepted(model_dir, name):
    assert services.register_model(name=name, source=str(model_dir)).name == name


def test_names_and_aliases_are_unique_together(model_dir):
    services.register_model(name="a", source=str(model_dir), aliases=["b"])

    assert "The model a already uses" in problems(name="b", source=str(model_dir))
    assert "The model a already uses" in problems(name="c", source=str(model_dir), aliases=["a"])
    assert "The model a already uses" in problems(name="c", source=str(model_dir), aliases=["b"])
    assert "twice" in problems(name="c", source=str(model_dir), aliases=["c"])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"device": "tpu"}, "device must be auto"),
        ({"dtype": "int4"}, "int4"),
        ({"quantization": "awq"}, "awq"),
        ({"context_length": -1}, "greater than or equal to 0"),
        ({"chat_template": "{% if %}"}, "cannot be compiled"),
        ({"chat_template": "{{ 'x' * 10**9 }}"}, "was stopped"),
        ({"default_sampling": {"temperature": 3}}, "between 0 and 2"),
        ({"default_sampling": {"temperature": "0.7"}}, "must be a number"),
        ({"default_sampling": {"temperature": True}}, "must be a number"),
        ({"default_sampling": {"temperature": float("nan")}}, "must be a number"),
        ({"default_sampling": {"max_tokens": 1.5}}, "must be an integer"),
        ({"default_sampling": {"top_p": 0}}, "top_p must be between"),
        ({"default_sampling": {"beams": 3}}, "not a parameter of this kind"),
    ],
)
def test_bad_values_are_refused_with_a_reason(model_dir, values, told):
    assert told in problems(name="m", source=str(model_dir), **values)
    assert not LanguageModel.objects.exists()


def test_a_source_that_cannot_be_served_is_refused(tmp_path):
    with pytest.raises(SourceError, match="does not exist; give a directory"):
        services.register_model(name="m", source=str(tmp_path / "nothing"))
    assert "no config.json" in problems(name="m", source=str(tmp_path))
    assert "neither a directory nor a Hub id" in problems(name="m", source="a b")


def test_there_is_one_default_at_most(model_dir):
    first = services.register_model(name="a", source=str(model_dir), is_default=True)
    second = services.register_model(name="b", source=str(model_dir), is_default=True)
    assert list(LanguageModel.objects.filter(is_default=True)) == [second]
    services.set_default_model(model=first)
    assert list(LanguageModel.objects.filter(is_default=True)) == [first]
    assert [record.name for record in get_registry().records()] == ["a", "b"]
    services.set_default_model(model=second)
    assert [record.name for record in get_registry().records()] == ["b", "a"]
    with pytest.raises(IntegrityError):
        LanguageModel.objects.filter(pk=first.pk).update(is_default=True)


def test_there_is_a_default_of_each_kind(model_dir):
    first = services.register_model(name="a", source=str(model_dir), is_default=True)
    LanguageModel.objects.create(name="e", source="org/e", kind=LanguageModel.Kind.EMBEDDING, is_default=True)
    second = services.register_model(name="b", source=str(model_dir), is_default=True)
    assert {row.name for row in LanguageModel.objects.filter(is_default=True)} == {"b", "e"}
    services.set_default_model(model=first)
    assert {row.name for row in LanguageModel.objects.filter(is_default=True)} == {"a", "e"}
    records = get_registry().records()
    assert [default_of(records, kind) for kind in ("generation", "embedding", "classification")] == [
        get_registry().find("a"),
        get_registry().find("e"),
        None,
    ]
    # The kind of a Hub model is known when it is loaded; another default of that kind stays.
    hub = LanguageModel.objects.create(
        name="h", source="org/h", kind=LanguageModel.Kind.CLASSIFICATION, is_default=True
    )
    write_state(hub.pk, LanguageModel.State.LOADED, kind="embedding")
    hub.refresh_from_db()
    assert (hub.kind, hub.is_default, second.pk) == ("embedding", False, second.pk)


def test_saving_does_not_touch_the_live_fields(model_dir):
    stale = services.register_model(name="a", source=str(model_dir))
    LanguageModel.objects.update(state="loaded", memory_bytes=9)
    stale.aliases = ["x"]
    services.save_model(stale)
    stale.refresh_from_db()

    assert (stale.state, stale.memory_bytes, stale.aliases) == ("loaded", 9, ["x"])


def test_removed_models_are_not_found_any_more(model_dir):
    model = services.register_model(name="a", source=str(model_dir))
    services.remove_models(models=[model])

    assert get_registry().records() == ()


def test_add_model_registers_with_all_its_options(model_dir):
    out = run(
        "add_model", "org/tiny", model_dir, "--dtype", "float32", "--device", "cpu", "--alias", "a", "--alias", "b/c",
        "--default", "--autoload", "--pinned", "--context-length", "64", "--keep-alive", "90",
        "--shared-prefix-cache",
    )  # fmt: skip
    model = LanguageModel.objects.get()

    assert "Registered org/tiny" in out
    assert (model.dtype, model.device, model.aliases, model.context_length) == ("float32", "cpu", ["a", "b/c"], 64)
    assert model.keep_alive_s == 90
    assert model.shared_prefix_cache
    assert model.is_default
    assert model.autoload
    assert model.pinned
    assert not model.trust_remote_code


@pytest.mark.parametrize(
    "arguments", [("m", "/nowhere"), ("m", "a b"), ("bad name", None), ("m", None, "--device", "x")]
)
def test_add_model_says_what_is_wrong(model_dir, arguments):
    with pytest.raises(CommandError) as caught:
        run("add_model", *(model_dir if argument is None else argument for argument in arguments))

    assert str(caught.value).endswith((".", "model"))
    assert not LanguageModel.objects.exists()


@pytest.fixture
def declare(tmp_path):
    def write(text: str):
        file = tmp_path / "models.toml"
        file.write_text(text)
        return file

    return write


def test_a_file_is_applied_and_applied_again(declare, model_dir):
    file = declare(f"""
        [models."org/tiny"]
        source = "{model_dir}"
        default = true
        preload = true
        aliases = ["tiny"]
        profile = "joyful"
        [models."org/tiny".config]
        dtype = "float32"
        device = "cpu"
        context_length = 128
        keep_alive_s = 5
        replicas = 2
        shared_prefix_cache = true
        sampling = {{ top_k = 5 }}
    """)
    assert run("sync_models", file).split() == ["created", "org/tiny"]
    model = LanguageModel.objects.get()
    assert (model.is_default, model.autoload, model.aliases, model.default_profile) == (True, True, ["tiny"], "joyful")
    assert (model.dtype, model.device, model.context_length, model.keep_alive_s) == ("float32", "cpu", 128, 5)
    assert model.replicas == 2
    assert model.default_sampling == {"top_k": 5}
    assert model.shared_prefix_cache
    assert model_record(model).shared_prefix_cache

    assert run("sync_models", file).split() == ["unchanged", "org/tiny"]
    declare(file.read_text().replace("128", "64"))
    assert run("sync_models", file).split() == ["updated", "org/tiny"]
    assert LanguageModel.objects.get().context_length == 64


def test_models_that_the_file_does_not_name_stay(declare, model_dir):
    services.register_model(name="other", source=str(model_dir))
    run("sync_models", declare(f'[models.m]\nsource = "{model_dir}"'))

    assert set(LanguageModel.objects.values_list("name", flat=True)) == {"m", "other"}


def test_relative_sources_are_relative_to_the_file(declare, model_dir):
    file = declare('[models.m]\nsource = "./copy"')
    shutil.copytree(model_dir, file.parent / "copy")
    run("sync_models", file)

    assert LanguageModel.objects.get().source == str(file.parent / "copy")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[models.bad]\nsource = '{dir}'\nsrc = 1", "models.bad.src: unknown key"),
        ("[models.bad]\nsource = '{dir}'\nconfig = {{ ctx = 1 }}", "models.bad.config.ctx: unknown key"),
        ("[models.bad]\ndefault = true", "models.bad.source: missing key"),
        ("[models.bad]\nsource = '{dir}'\ndefault = 'yes'", "models.bad.default"),
        ("[models.bad]\nsource = '{dir}'\nconfig = {{ device = 'tpu' }}", "models.bad: The device must be"),
        ("[models.bad]\nsource = '/nowhere'", "models.bad.source: The directory '/nowhere' does not exist"),
        ("[models.bad]\nsource = '{dir}'\naliases = ['good']", "models.bad: The model good already uses"),
        (
            "[models.bad]\nsource = '{dir}'\ndefault = true\n[models.b2]\nsource = '{dir}'\ndefault = true",
            "models.bad.default: another generation model is declared as default too",
        ),
        ("[serve.models.x]\nsource = 'x'", "serve: unknown key"),
        ("[models", "not valid TOML"),
    ],
)
def test_a_file_with_a_mistake_changes_nothing(declare, model_dir, text, told):
    good = f"[models.good]\nsource = '{model_dir}'\n"

    with pytest.raises(CommandError) as caught:
        run("sync_models", declare(good + text.format(dir=model_dir)))

    assert told in str(caught.value)
    assert "Nothing was changed" in str(caught.value)
    assert not LanguageModel.objects.exists()


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(CommandError, match="could not be read: No such file"):
        run("sync_models", tmp_path / "none.toml")


@pytest.mark.parametrize(("given", "listed"), [(0, 256), (64, 64), (9999, 256)])
def test_a_local_model_s_length_is_known_when_it_is_registered(model_dir, given, listed):
    services.register_model(name="m", source=str(model_dir), context_length=given)
    assert get_registry().find("m").max_model_len == listed


class TestMediaModels:
    """Kinds, uses and default parameters of models for audio, images and videos."""

    @pytest.fixture
    def whisper(self, tmp_path):
        (tmp_path / "config.json").write_text('{"architectures": ["WhisperForConditionalGeneration"]}')
        (tmp_path / "model.safetensors").write_bytes(b"")
        return str(tmp_path)

    def test_the_same_files_may_have_both_uses(self, whisper):
        writes = services.add_model(name="whisper-1", source=whisper, is_default=True)
        translates = services.add_model(name="english", source=whisper, use_as="translation", is_default=True)
        assert (writes.kind, translates.kind) == ("transcription", "translation")
        assert LanguageModel.objects.filter(is_default=True).count() == 2

    def test_other_models_cannot_translate(self, tmp_path):
        (tmp_path / "config.json").write_text('{"architectures": ["VitsModel"]}')
        (tmp_path / "model.safetensors").write_bytes(b"")
        with pytest.raises(ValidationError, match="transcription can translate"):
            services.add_model(name="tts", source=str(tmp_path), use_as="translation")

    def test_pipelines_are_registered_without_a_tokenizer(self, tmp_path):
        (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
        (tmp_path / "unet").mkdir()
        (tmp_path / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"")
        row = services.add_model(name="sd", source=str(tmp_path), default_sampling={"steps": 20, "size": "64x64"})
        assert row.kind == "image"

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"steps": 20}, "steps is not a parameter of this kind"),
            ({"language": "English"}, "language must be a language code"),
            ({"temperature": 1.5}, "temperature must be between 0 and 1"),
            ({"temperature": "hot"}, "temperature must be a number"),
        ],
    )
    def test_parameters_are_those_of_the_kind(self, whisper, values, words):
        with pytest.raises(ValidationError, match=words):
            services.add_model(name="whisper-1", source=whisper, default_sampling=values)


class TestEnsureModel:
    """What `manage.py serve --model` registers."""

    @pytest.mark.parametrize("named", ["", "mine=", "org/mine="])
    def test_a_directory_is_registered_once_by_its_name_or_another(self, model_dir, named):
        row = services.ensure_model(f"{named}{model_dir}")
        assert row.name == (named.removesuffix("=") or model_dir.name)
        assert services.ensure_model(f"{named}{model_dir}/").pk == row.pk
        assert LanguageModel.objects.count() == 1

    def test_options_of_a_registered_model_stay(self, model_dir):
        services.register_model(name="mine", source=str(model_dir), pinned=True, aliases=["m"])
        for given in ("mine", f"mine={model_dir}"):
            row = services.ensure_model(given)
            assert (row.pinned, row.aliases) == (True, ["m"])

    def test_a_bare_name_of_a_directory_is_a_path(self, model_dir, monkeypatch):
        monkeypatch.chdir(model_dir.parent)
        assert services.ensure_model(model_dir.name).source == str(model_dir)

    def test_a_hub_id_is_its_own_name(self):
        assert services.named_source("org/model-1") == ("org/model-1", "org/model-1")
        assert services.named_source("mine=org/model-1") == ("mine", "org/model-1")

    def test_another_source_under_the_same_name_is_refused(self, model_dir, tmp_path):
        services.register_model(name="mine", source=str(model_dir))
        with pytest.raises(ValidationError, match="already exists, with the source"):
            services.ensure_model(f"mine={tmp_path}")

    @pytest.mark.parametrize("given", ["", "=", "mine=", "=/models/x"])
    def test_nothing_to_register_is_refused(self, given):
        with pytest.raises(ValidationError, match="NAME=SOURCE"):
            services.ensure_model(given)

    @pytest.mark.parametrize("given", ["/nowhere/model", "a b c", "mine=../../nowhere"])
    def test_a_source_that_is_not_there_is_refused(self, given):
        with pytest.raises(SourceError):
            services.ensure_model(given)
