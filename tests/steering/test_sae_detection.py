"""What a format's files must say, and that none is read as something that it is not."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from inference.interventions import Site
from steering.saes.config import SAEMath
from steering.saes.errors import InvalidSAEError
from steering.saes.loader import load_sae
from steering.saes.place import SAEPlace
from steering.saes.preview import as_place, preview_sae
from tests.steering.format_files import (
    CASES,
    circuit_tracer,
    dictionary_learning,
    gemma_scope,
    gemma_scope_2,
    llama_scope,
    llamascopium,
    openmoss,
    qwen_scope,
    save_json,
    sparsify,
)
from tests.steering.sae_files import as_tensor, random_weights, residuals, sae_config, write_sae


def refused(path: Path) -> str:
    with pytest.raises(InvalidSAEError) as caught:
        load_sae(path)
    return str(caught.value)


CONFIGURATIONS: list[tuple[Any, dict[str, Any], str]] = [
    (gemma_scope_2, {"architecture": "relu"}, "architecture must be jump_relu for Gemma Scope 2, got 'relu'"),
    (gemma_scope_2, {"type": "clt"}, "type 'clt' is not supported"),
    (gemma_scope_2, {"hf_hook_point_in": "model.layers.7.self_attn.output"}, "Supported: an MLP's input"),
    (gemma_scope_2, {"hf_hook_point_in": "lm_head", "hf_hook_point_out": "lm_head"}, "hook 'lm_head' is not supported"),
    (
        gemma_scope_2,
        {"hf_hook_point_out": "model.layers.8.output"},
        "The transcoder's input hook 'model.layers.7.output' is not supported",
    ),
    (llama_scope, {"act_fn": "relu"}, "act_fn must be jumprelu for Llama Scope, got 'relu'"),
    (llama_scope, {"act_fn": "tanh"}, "act_fn 'tanh' is not supported. Supported: relu, jumprelu, topk"),
    (llama_scope, {"jump_relu_threshold": None}, "jump_relu_threshold must be a finite number above 0"),
    (llama_scope, {"jump_relu_threshold": float("nan")}, "jump_relu_threshold must be a finite number above 0"),
    (llama_scope, {"dataset_average_activation_norm": {}}, "in must be a finite number above 0"),
    (llama_scope, {"norm_activation": "batch-wise"}, "norm_activation 'batch-wise' is not supported"),
    (llama_scope, {"hook_point_out": "blocks.8.hook_mlp_out"}, "transcoders are not supported in this format"),
    (llama_scope, {"use_glu_encoder": True}, "use_glu_encoder is not supported"),
    (
        llama_scope,
        {"hook_point_in": "blocks.8.hook_attn_out", "hook_point_out": "blocks.8.hook_attn_out"},
        "hook 'blocks.8.hook_attn_out' is not supported",
    ),
    (openmoss, {"norm_activation": "batch-wise"}, "norm_activation 'batch-wise' is not supported"),
    (openmoss, {"act_fn": "batchtopk"}, "act_fn 'batchtopk' is not supported"),
    (openmoss, {"expansion_factor": 0.3, "d_sae": None}, "is not a whole number of features"),
    (openmoss, {"expansion_factor": "8", "d_sae": None}, "expansion_factor must be a finite number above 0"),
    (openmoss, {"d_model": "12"}, "d_model in the configuration must be an integer"),
    (llamascopium, {"sae_type": "crosscoder"}, "sae_type 'crosscoder' is not supported"),
    (llamascopium, {"act_fn": "topk", "top_k": 41}, "k must be between 1 and d_sae (40), got 41"),
    (sparsify, {"signed": True}, "signed is not supported"),
    (sparsify, {"activation": "groupmax"}, "activation 'groupmax' is not supported"),
    (sparsify, {"skip_connection": True}, "skip_connection is only supported for transcoders"),
    (sparsify, {"k": 0}, "k must be between 1 and d_sae (40), got 0"),
    (sparsify, {"k": None}, "k in the configuration must be an integer"),
    (circuit_tracer, {"model_kind": "cross_layer_transcoder"}, "model_kind 'cross_layer_transcoder' is not supported"),
    (circuit_tracer, {"feature_input_hook": "hook_resid_pre"}, "Supported: an MLP's input"),
    (circuit_tracer, {"feature_output_hook": "hook_attn_out"}, "hook 'blocks.1.hook_attn_out' is not supported"),
    (circuit_tracer, {"feature_output_hook": "hook_resid_post"}, "only an MLP of one layer is supported"),
    (circuit_tracer, {"activation": "gelu"}, "activation 'gelu' is not supported"),
    (circuit_tracer, {"activation": "jump_relu"}, "layer_1.safetensors lacks activation_function.threshold"),
    (circuit_tracer, {"activation": "relu", "k": 5}, "activation is 'relu', but the file is of a topk_transcoder"),
]


@pytest.mark.parametrize(("write", "change", "message"), CONFIGURATIONS)
def test_what_is_not_supported_is_refused_by_name(write, change, message, tmp_path):
    path = write(tmp_path / "sae").path
    folder = path if path.is_dir() else path.parent
    for name in ("config.json", "hyperparams.json", "cfg.json"):
        if (folder / name).exists():
            save_json(folder / name, json.loads((folder / name).read_text()) | change)
    if (folder / "config.yaml").exists():
        text = yaml.safe_dump(yaml.safe_load((folder / "config.yaml").read_text()) | change)
        (folder / "config.yaml").write_text(text)
    assert message in refused(path)


class TestNeverRelu:
    """Where a threshold or a k is left out or left over, the files are refused."""

    def change(self, path: Path, drop: str = "", **add: torch.Tensor) -> None:
        tensors = load_file(path) | add
        tensors.pop(drop, None)
        save_file(tensors, path)

    def test_llama_scope_with_a_relu_configuration(self, tmp_path):
        path = openmoss(tmp_path).path
        save_json(path / "config.json", json.loads((path / "config.json").read_text()) | {"act_fn": "relu"})
        assert "contains log_jumprelu_threshold, which this architecture does not have" in refused(path)

    def test_openmoss_without_its_thresholds(self, tmp_path):
        path = openmoss(tmp_path).path
        self.change(path / "sae_weights.safetensors", "log_jumprelu_threshold")
        assert "lacks log_jumprelu_threshold" in refused(path)

    def test_openmoss_without_the_norm_that_it_scales_by(self, tmp_path):
        path = openmoss(tmp_path, norm_activation="dataset-wise").path
        name = "dataset_average_activation_norm.blocks.2.hook_resid_post"
        self.change(path / "sae_weights.safetensors", name)
        assert f"lacks {name}" in refused(path)

    @pytest.mark.parametrize("norm", [0.0, -1.0])
    def test_openmoss_with_an_impossible_norm(self, norm, tmp_path):
        path = openmoss(tmp_path, norm_activation="dataset-wise").path
        name = "dataset_average_activation_norm.blocks.2.hook_resid_post"
        self.change(path / "sae_weights.safetensors", **{name: torch.tensor(norm)})
        assert "dataset_average_activation_norm must be above 0" in refused(path)

    def test_threshold_of_circuit_tracer_decides(self, tmp_path):
        path = circuit_tracer(tmp_path, activation="jump_relu").path
        assert preview_sae(path).math.architecture == "jumprelu_transcoder"

    def test_k_of_circuit_tracer_decides(self, tmp_path):
        path = circuit_tracer(tmp_path).path
        self.change(path, k=torch.tensor(5))
        assert "k in the configuration must be an integer" in refused(path)

    @pytest.mark.parametrize("dict_class", ["BatchTopKSAE", "MatryoshkaBatchTopKSAE"])
    def test_batch_topk_whose_threshold_was_not_measured(self, dict_class, tmp_path):
        path = dictionary_learning(tmp_path, dict_class).path
        state = torch.load(path / "ae.pt", weights_only=True)
        torch.save(state | {"threshold": torch.tensor(-1.0)}, path / "ae.pt")
        assert "threshold is -1.0: it was not measured" in refused(path)

    def test_topk_saved_as_another_class(self, tmp_path):
        path = dictionary_learning(tmp_path, "AutoEncoderTopK").path
        config = json.loads((path / "config.json").read_text())
        config["trainer"]["dict_class"] = "AutoEncoder"
        save_json(path / "config.json", config)
        assert "ae.pt lacks bias" in refused(path)

    def test_k_that_differs(self, tmp_path):
        assert "k is 5 in ae.pt, but 6 in config.json" in refused(
            dictionary_learning(tmp_path, "AutoEncoderTopK", k=6).path
        )

    @pytest.mark.parametrize("dict_class", ["CrossCoder", "IdentityDict", ""])
    def test_unknown_class(self, dict_class, tmp_path):
        path = dictionary_learning(tmp_path, "AutoEncoder").path
        config = json.loads((path / "config.json").read_text())
        config["trainer"]["dict_class"] = dict_class
        save_json(path / "config.json", config)
        assert f"dict_class {dict_class!r} is not supported. Supported: AutoEncoder, AutoEncoderNew" in refused(path)

    def test_qwen_scope_in_a_folder_without_its_name(self, tmp_path):
        assert "only given by the repository's name" in refused(qwen_scope(tmp_path, repository="mine").path)

    def test_qwen_scope_of_another_width_than_its_name(self, tmp_path):
        path = qwen_scope(tmp_path, repository="SAE-Res-Qwen3-8B-Base-W64K-L0_50").path
        assert "W_enc has 1024 features, but the name says W64K" in refused(path)

    def test_gated_is_not_read_as_standard(self, tmp_path):
        write_sae(tmp_path, sae_config("gated"))
        assert "lacks b_gate, b_mag, r_mag" in refused(tmp_path)


def test_scaling_factor_that_no_configuration_speaks_of(tmp_path):
    """SAELens before version 6 wrote ones where there was nothing to scale."""
    old = {"d_in": 12, "d_sae": 40, "hook_name": "blocks.1.hook_resid_post", "dtype": "float32"}
    path = write_sae(tmp_path, old) / "sae_weights.safetensors"
    plain, h = load_sae(tmp_path), as_tensor(residuals())
    save_file(load_file(path) | {"scaling_factor": torch.ones(40)}, path)
    assert torch.equal(load_sae(tmp_path).encode(h), plain.encode(h))
    save_file(load_file(path) | {"scaling_factor": torch.full((40,), 2.0)}, path)
    assert "finetuning_scaling_factor is not set" in refused(tmp_path)


class TestPlaces:
    def test_folder_with_several_asks_for_one(self, tmp_path):
        folder = circuit_tracer(tmp_path).path.parent
        assert "contains 3 transcoders (layer_0.safetensors, layer_1.safetensors, layer_2.safetensors" in refused(
            folder
        )

    def test_folder_with_one_needs_no_name(self, tmp_path):
        written = qwen_scope(tmp_path)
        assert load_sae(written.path.parent).key == load_sae(written.path).key

    def test_two_formats_in_one_folder(self, tmp_path):
        folder = gemma_scope(tmp_path).path
        write_sae(folder)
        assert "matches several formats (SAELens and Gemma Scope); keep each SAE in its own folder" in refused(folder)

    def test_embedding_of_gemma_scope(self, tmp_path):
        layer = gemma_scope(tmp_path).path.parent.parent
        layer.rename(layer.parent / "embedding")
        message = refused(layer.parent / "embedding" / "width_16k" / "average_l0_71")
        assert "SAEs of the embedding are not supported" in message

    @pytest.mark.parametrize(
        ("folder", "hook"), [("layers.3.self_attn", "layers.3.self_attn"), ("embed_tokens", ""), ("mine", "")]
    )
    def test_sparsify_of_another_module_needs_a_site(self, folder, hook, tmp_path):
        path = sparsify(tmp_path).path
        config = preview_sae(path.rename(path.parent / folder))
        assert (config.site, config.hook_name) == (None, hook)

    @pytest.mark.parametrize("text", ["", "[]", "a: [", "1: 2", "!!python/object:os.system x", "[" * 5000])
    def test_yaml_that_is_no_configuration(self, text, tmp_path):
        path = circuit_tracer(tmp_path).path
        (path.parent / "config.yaml").write_text(text)
        assert "config.yaml" in refused(path)


def test_yaml_that_grows_when_it_is_shown(tmp_path):
    """Nine lists of nine, nested thirty deep, are a few hundred bytes, and no end of text."""
    path = circuit_tracer(tmp_path).path
    bomb = "a0: &a0 x\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    (path.parent / "config.yaml").write_text(bomb + "model_kind: *a29\n")
    assert len(refused(path)) < 2000


@pytest.mark.parametrize(("value", "expected"), [(True, True), (False, False), (None, None)])
def test_beginning_of_text_may_be_left_open(value, expected, tmp_path):
    hook = {"hook_name": "blocks.1.hook_resid_post", "prepend_bos": value}
    assert preview_sae(write_sae(tmp_path, sae_config(metadata=hook))).prepend_bos is expected


class TestNamesAlone:
    """Gemma Scope has no configuration: what the Hub's folders are called is enough to say whether it fits."""

    def preview(self, tmp_path: Path, name: str) -> Any:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        return preview_sae(SAEPlace(folder, listed=frozenset({"params.npz"})))

    @pytest.mark.parametrize(
        ("repository", "d_in", "site"),
        [
            ("google--gemma-scope-2b-pt-res", 2304, Site(20)),
            ("google--gemma-scope-9b-pt-mlp", 3584, Site(20, "mlp_out")),
            ("google--gemma-scope-2b-pt-att", 2048, Site(20, "attn_out")),
            ("google--gemma-scope-27b-pt-res-canonical", 4608, Site(20)),
            ("google--gemma-scope-2b-pt-transcoders", 2304, Site(20, "mlp_out")),
        ],
    )
    def test_without_weights(self, repository, d_in, site, tmp_path):
        config = self.preview(tmp_path, f"{repository}/layer_20/width_16k/average_l0_71")
        assert (config.math.d_in, config.math.d_sae, config.site) == (d_in, 16384, site)

    def test_million(self, tmp_path):
        config = self.preview(tmp_path, "gemma-scope-9b-it-res@main/layer_31/width_1m/canonical")
        assert (config.math.d_sae, config.model_name) == (1 << 20, "gemma-2-9b-it")

    def test_header_decides_where_the_file_is_here(self, tmp_path):
        assert preview_sae(gemma_scope(tmp_path).path).math.d_in == 12


class TestDamage:
    """Whatever a byte of a file becomes, the answer is an SAE or a refusal, and nothing else."""

    @pytest.mark.parametrize("name", ["saelens-gated", "gemma-scope-res", "goodfire", "circuit-tracer", "llama-scope"])
    def test_bytes_that_changed(self, name, tmp_path):
        written = CASES[name].write(tmp_path)
        place = as_place(written.path)
        files = [path for path in place.folder.rglob("*") if path.is_file()]
        rng = np.random.default_rng(0)
        refusals = 0
        for path in files:
            data = path.read_bytes()
            for _ in range(40):
                damaged = bytearray(data)
                head = min(len(data), 2000) if rng.random() < 0.7 else len(data)
                for position in rng.integers(head, size=rng.integers(1, 4)):
                    damaged[position] = rng.integers(256)
                path.write_bytes(bytes(damaged[: rng.integers(len(data)) if rng.random() < 0.2 else len(data)]))
                with contextlib.suppress(InvalidSAEError):
                    refusals += 1
                    load_sae(written.path)
                    refusals -= 1
            path.write_bytes(data)
        assert refusals > 10
        assert load_sae(written.path)


class TestChecksum:
    def test_old_saes_keep_theirs(self):
        """Published versions name it: new fields must not enter it as long as they are not used."""
        math = SAEMath("topk", 12, 40, k=5)
        assert math.checksum("0" * 64) == "d4841dddf9286cbdefc9aaaa76a64586c0daf1fd52f734cee23ca131c1462a3a"

    def test_same_bytes_in_another_layout_are_another_sae(self, tmp_path):
        first = load_sae(llama_scope(tmp_path / "a").path)
        other = load_sae(llama_scope(tmp_path / "b", jump_relu_threshold=0.3).path)
        assert first.key != other.key


def test_folding_that_overflows(tmp_path):
    weights = random_weights()
    weights["W_enc"][0, 0] = np.float32(3e38)
    (tmp_path / "activation_scaler.json").write_text(json.dumps({"scaling_factor": 100.0}))
    config = sae_config(normalize_activations="expected_average_only_in")
    assert "encoder is not finite (NaN or infinite) after" in refused(write_sae(tmp_path, config, weights))
