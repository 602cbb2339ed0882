"""What a model is, told from its small files: of a directory, of a hub, and of those that lie."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.files.preview import LocalRepository, hub_repository, preview_model
from inference.files.sources import ModelSource, SourceError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
HERE = ModelSource("org/x")


@dataclass
class FakeRepository:
    """Files that are only named have no content."""

    files: Mapping[str, str]
    weights: Mapping[str, int] = field(default_factory=lambda: {"model.safetensors": 2_000_000})
    licence: str = "apache-2.0"
    gate: str = ""

    @property
    def sizes(self) -> Mapping[str, int]:
        return {**{name: len(text) for name, text in self.files.items()}, **self.weights}

    def text(self, name: str) -> str | None:
        return self.files.get(name)


def repository(config: Any = CONFIG, /, **files: Any) -> FakeRepository:
    named = {"config.json": json.dumps(config), "tokenizer.json": "{}", "chat_template.jinja": "{{ x }}"}
    return FakeRepository({**named, **files})


def test_the_facts_come_from_the_configuration():
    found = preview_model(HERE, repository())
    assert (found.kind, found.architecture, found.dtype) == ("generation", "LlamaForCausalLM", "bfloat16")
    assert (found.weight_bytes, found.num_parameters, found.context_length) == (2_000_000, 1_000_000, 2048)
    assert (found.num_layers, found.width, found.licence, found.has_chat_template) == (3, 64, "apache-2.0", True)
    assert (found.problems, found.doubts) == ((), ())


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (12_000, "6,000"),
        (1_998_998, "999,499"),
        (1_999_000, "1.00 million"),
        (6_957_512, "3.48 million"),
        (1_998_999_998, "999 million"),
        (1_999_000_000, "1.00 billion"),
        (141_107_412_992, "70.6 billion"),
    ],
)
def test_parameters_are_written_with_three_significant_digits(num_bytes: int, text: str):
    files = repository()
    files.weights = {"model.safetensors": num_bytes}
    assert preview_model(HERE, files).parameters_text == text


def test_media_models_need_no_tokenizer_json():
    whisper = {"architectures": ["WhisperForConditionalGeneration"], "torch_dtype": "float16"}
    found = preview_model(HERE, FakeRepository({"config.json": json.dumps(whisper)}))
    assert (found.kind, found.num_parameters, found.problems) == ("transcription", 1_000_000, ())


def test_a_pipeline_is_told_by_its_index():
    index = {"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet2DConditionModel"]}
    weights = {"unet/diffusion_pytorch_model.safetensors": 3_000, "vae/diffusion_pytorch_model.safetensors": 1_000}
    found = preview_model(HERE, FakeRepository({"model_index.json": json.dumps(index)}, weights))
    assert (found.kind, found.architecture, found.weight_bytes) == ("image", "StableDiffusionPipeline", 4_000)
    assert found.problems == ()


def test_parts_of_a_local_pipeline_are_counted(tmp_path: Path):
    (tmp_path / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(b"x" * 10)
    found = preview_model(HERE, LocalRepository(tmp_path))
    assert (found.kind, found.weight_bytes) == ("video", 10)


def test_models_with_parts_are_told_by_their_text_part():
    config = {"architectures": ["XForCausalLM"], "text_config": {"hidden_size": 8, "max_position_embeddings": 9}}
    found = preview_model(HERE, repository(config))
    assert (found.width, found.context_length) == (8, 9)


def test_what_keeps_it_from_being_served_is_said_before_the_download():
    files = FakeRepository(
        {"config.json": json.dumps({"architectures": ["XForImages"], "auto_map": {"a": "b"}})}, {"x.bin": 5}
    )
    told = " ".join(preview_model(HERE, files).problems)
    for words in ("of a kind that cannot be served", "no tokenizer.json", "only has pickled weights", "its own code"):
        assert words in told
    allowed = preview_model(ModelSource("org/x", trust_remote_code=True, allow_pickle=True), files).problems
    assert len(allowed) == 2
    assert "no weights" in " ".join(preview_model(HERE, FakeRepository(files.files, {})).problems)


def test_a_gate_a_missing_licence_and_foreign_quantisation_are_doubts():
    files = FakeRepository(repository({**CONFIG, "quantization_config": {}}).files, licence="", gate="manual")
    found = preview_model(HERE, files)
    assert found.problems == ()
    assert [
        any(word in doubt for doubt in found.doubts) for word in ("HF_TOKEN", "not name a licence", "quantised")
    ] == [True] * 3
    assert found.num_parameters == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "must contain a JSON object"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_configuration_that_is_none(text: str, told: str):
    with pytest.raises(SourceError, match=told):
        preview_model(HERE, repository(**{"config.json": text}))


def test_without_a_configuration_it_is_no_model():
    with pytest.raises(SourceError, match=r"config\.json is missing"):
        preview_model(HERE, FakeRepository({}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys((*CONFIG, "text_config", "dtype", "auto_map"), JSON)))
def test_configurations_may_hold_anything(config: dict[str, Any]):
    found = preview_model(HERE, repository(config))
    assert found.context_length >= 0
    assert found.weight_bytes == 2_000_000


class TestDirectory:
    def write(self, folder: Path, card: str = "") -> Path:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "tokenizer.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"x" * 1000)
        (folder / "README.md").write_text(card)
        return folder

    @pytest.mark.parametrize(
        ("card", "licence"),
        [
            ("---\nlicense: mit\n---\n# X", "mit"),
            ("---\nlicense: other\nlicense_name: own\n---\n", "own"),
            ("---\nlicense: [mit, apache-2.0]\n---\n", "mit, apache-2.0"),
            ("# no header", ""),
            ("---\n: : :\n---\n", ""),
            ("---\n- a\n---\n", ""),
            ("text\n---\nlicense: mit\n---\n", ""),
            ("---\nlicense: !!python/object/apply:os.system ['true']\n---\n", ""),
        ],
    )
    def test_the_licence_is_the_card_s(self, tmp_path: Path, card: str, licence: str):
        assert LocalRepository(self.write(tmp_path, card)).licence == licence

    def test_a_directory_is_previewed_where_it_lies(self, tmp_path: Path):
        found = preview_model(ModelSource(str(self.write(tmp_path))))
        assert (found.weight_bytes, found.gate) == (1000, "")
        assert "not name a licence" in found.doubts[0]

    def test_a_huge_configuration_is_not_read(self, tmp_path: Path):
        self.write(tmp_path)
        (tmp_path / "config.json").write_bytes(b" " * 1_000_001)
        with pytest.raises(SourceError, match="the limit is"):
            preview_model(ModelSource(str(tmp_path)))

    @pytest.mark.parametrize("source", ["/nowhere", "https://x", "../..", "a/b/c", ""])
    def test_what_is_no_source(self, source: str):
        with pytest.raises(SourceError):
            preview_model(ModelSource(source or "./nowhere"))


class TestHub:
    @pytest.fixture
    def api(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """The library's client, which is not ours, with an answer of the test's."""
        said = SimpleNamespace(info=None, error=None, asked=[])

        class Api:
            def model_info(self, source: str, **options: Any) -> Any:
                said.asked.append((source, options["revision"]))
                if said.error is not None:
                    raise said.error
                return said.info

        monkeypatch.setattr("huggingface_hub.HfApi", Api)
        return said

    def test_names_sizes_terms_and_gate(self, api: SimpleNamespace):
        files = [SimpleNamespace(rfilename=name, size=size) for name, size in (("a", 5), ("b", None), ("c/d", 9))]
        card = SimpleNamespace(to_dict=lambda: {"license": "llama3.2"})
        api.info = SimpleNamespace(siblings=files, card_data=card, gated="manual")
        found = hub_repository("org/x", "v1")
        assert (found.sizes, found.licence, found.gate) == ({"a": 5, "b": 0}, "llama3.2", "manual")
        assert api.asked == [("org/x", "v1")]

    @pytest.mark.parametrize(
        ("kind", "told"),
        [
            ("GatedRepoError", "is gated"),
            ("RepositoryNotFoundError", "org/x does not exist on the Hub"),
            ("RevisionNotFoundError", "no revision"),
            ("ConnectionError", "is not reachable"),
            ("Strange", "Strange"),
        ],
    )
    def test_refusals_are_sentences(self, api: SimpleNamespace, kind: str, told: str):
        api.error = type(kind, (Exception,), {})("x")
        with pytest.raises(SourceError, match=told):
            hub_repository("org/x", "v1")
