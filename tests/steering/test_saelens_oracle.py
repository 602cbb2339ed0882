"""SAELens itself as the judge, of its own files and through its loaders of others'.

It is too heavy for every developer: the extra ``oracles`` installs it, and without it these are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open

from steering.saes.loader import load_sae
from tests.steering import format_files
from tests.steering.format_files import (
    AVERAGE_NORM,
    Written,
    circuit_tracer,
    dictionary_learning,
    gemma_scope,
    gemma_scope_2,
    goodfire,
    llama_scope,
    openmoss,
    qwen_scope,
    saelens_gated,
    saelens_transcoder,
    with_unit_rows,
)
from tests.steering.sae_files import D_IN, D_SAE, as_tensor, random_weights, residuals, sae_config, write_sae

sae_lens = pytest.importorskip("sae_lens", reason="sae-lens is not installed")
SIZES = {"d_in": D_IN, "d_sae": D_SAE}


@pytest.mark.parametrize("architecture", ["standard", "jumprelu", "topk"])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("normalization", ["none", "constant_norm_rescale", "layer_norm"])
def test_reads_our_fixture_like_saelens(architecture, applied, normalization, tmp_path):
    config = sae_config(architecture, apply_b_dec_to_input=applied, normalize_activations=normalization)
    assert_same(write_sae(tmp_path, config))


def test_topk_ranked_by_decoder_norms(tmp_path):
    assert_same(write_sae(tmp_path, sae_config("topk", rescale_acts_by_decoder_norm=True)))


@pytest.mark.parametrize("normalization", ["none", "constant_norm_rescale", "layer_norm"])
def test_gated(normalization, tmp_path):
    assert_same(saelens_gated(tmp_path, normalize_activations=normalization).path)


@pytest.mark.parametrize(
    "architecture", ["transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder"]
)
def test_transcoders(architecture, tmp_path):
    path = saelens_transcoder(tmp_path, architecture).path
    compare(sae_lens.SAE.load_from_disk(path), path)


def test_flat_configuration(tmp_path):
    old = {
        "d_in": 12, "d_sae": 40, "hook_name": "blocks.1.hook_resid_post", "activation_fn_str": "topk",
        "activation_fn_kwargs": {"k": 5}, "dtype": "float32", "device": "cpu", "normalize_activations": "none",
    }  # fmt: skip
    assert_same(write_sae(tmp_path, old))


@pytest.mark.parametrize("kind", ["BatchTopK", "MatryoshkaBatchTopK", "TopK", "JumpReLU", "Standard", "Gated"])
def test_reads_what_saelens_saves_for_inference(kind, tmp_path):
    config_class = getattr(sae_lens, f"{kind}TrainingSAEConfig")
    extra: dict[str, Any] = {"matryoshka_widths": [10, 40]} if kind.startswith("Matryoshka") else {}
    extra |= {"k": 5} if "TopK" in kind else {}
    torch.manual_seed(0)
    sae = getattr(sae_lens, f"{kind}TrainingSAE")(config_class(d_in=12, d_sae=40, **extra))
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter).abs())
        if hasattr(sae, "topk_threshold"):
            sae.topk_threshold.fill_(0.4)
    sae.cfg.metadata.hook_name = "blocks.1.hook_resid_post"
    sae.save_inference_model(tmp_path)
    assert_same(tmp_path)


@pytest.mark.parametrize("kind", ["transcoder", "skip_transcoder", "jumprelu_transcoder"])
def test_reads_transcoders_that_saelens_saves(kind, tmp_path):
    torch.manual_seed(0)
    sae_class, config_class = sae_lens.registry.get_sae_class(kind)
    sae = sae_class(config_class(d_in=12, d_sae=40, d_out=12, apply_b_dec_to_input=False))
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter).abs())
    sae.cfg.metadata.hook_name = "blocks.1.mlp.hook_in"
    sae.cfg.metadata.hook_name_out = "blocks.1.hook_mlp_out"
    sae.save_model(tmp_path)
    compare(sae_lens.SAE.load_from_disk(tmp_path), tmp_path)


class TestOthersFormats:
    """What SAELens makes of the files that others publish; the Hub is the test's folder."""

    @pytest.fixture(autouse=True)
    def local_hub(self, tmp_path, monkeypatch):
        loaders = pytest.importorskip("sae_lens.loading.pretrained_sae_loaders")

        def download(repo_id: str, filename: str, subfolder: str = "", **_: Any) -> str:
            path = tmp_path / subfolder / filename
            if not path.exists():
                raise loaders.EntryNotFoundError(f"{filename} is not there")
            return str(path)

        def shapes(repo_id: str, filename: str) -> dict[str, list[int]]:
            with safe_open(tmp_path / filename, framework="np") as file:
                return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118

        monkeypatch.setattr(loaders, "hf_hub_download", download)
        monkeypatch.setattr(loaders, "get_safetensors_tensor_shapes", shapes)
        self.loaders, self.root = loaders, tmp_path

    def check(
        self,
        loader: str,
        repository: str,
        written: Written,
        prepare: Callable[[Any], None] = lambda _: None,
        **overrides: Any,
    ) -> None:
        folder = written.path.relative_to(self.root).as_posix()
        load = self.loaders.NAMED_PRETRAINED_SAE_LOADERS[loader]
        config, state, _ = load(repository, folder, "cpu", False, {"dtype": "float32"} | overrides)
        config = self.loaders.handle_config_defaulting(config)
        theirs = sae_lens.SAE.from_dict(config)
        theirs.load_state_dict({name: tensor.float() for name, tensor in state.items()})
        prepare(theirs)
        compare(theirs, written.path)

    @pytest.mark.parametrize("kind", ["res", "mlp"])
    def test_gemma_scope(self, kind):
        written = gemma_scope(self.root, repository=f"google--gemma-scope-2b-pt-{kind}")
        self.check("gemma_2", f"google/gemma-scope-2b-pt-{kind}", written, **SIZES)

    def test_gemma_scope_transcoder(self):
        written = gemma_scope(self.root, repository="google--gemma-scope-2b-pt-transcoders")
        sizes = SIZES | {"d_out": D_IN}
        self.check("gemma_2_transcoder", "google/gemma-scope-2b-pt-transcoders", written, **sizes)

    def test_gemma_scope_2(self):
        self.check("gemma_3", "google/x", gemma_scope_2(self.root / "resid_post" / "layer_7_width_16k_l0_small"))

    @pytest.mark.parametrize("affine", [True, False])
    def test_gemma_scope_2_transcoder(self, affine):
        folder = self.root / "transcoder_all" / "layer_7_width_16k_l0_small"
        self.check("gemma_3", "google/x", gemma_scope_2(folder, kind="transcoder", affine=affine))

    def test_llama_scope(self):
        written = llama_scope(self.root / "Llama3_1-8B-Base-L8R-8x")
        factor = float(np.sqrt(D_IN) / AVERAGE_NORM)
        self.check("llama_scope", "fnlp/x", written, lambda sae: sae.fold_activation_norm_scaling_factor(factor))

    def test_llama_scope_r1_distill(self):
        """SAELens knows nothing of the gating by decoder norms, nor of an expansion that is no whole number."""
        written = openmoss(self.root / "L2R", sparsity_include_decoder_norm=False)
        self.check("llama_scope_r1_distill", "fnlp/x", written, d_sae=D_SAE)

    @pytest.mark.parametrize(("suffix", "number", "size"), [(".pth", 19, "3.1-8B"), (".pt", 50, "3.3-70B")])
    def test_goodfire(self, suffix, number, size):
        written = goodfire(self.root, suffix=suffix)
        name = f"Llama-{size}-Instruct-SAE-l{number}"
        path = written.path.rename(self.root / f"{name}{suffix}")
        self.check("goodfire", f"Goodfire/{name}", Written(path, written.encode, written.decode), **SIZES)

    def test_deepseek(self):
        self.check("deepseek_r1", "x", goodfire(self.root, suffix=".pt", linear=""), **SIZES)

    @pytest.mark.parametrize("dict_class", ["AutoEncoder", "AutoEncoderTopK"])
    def test_dictionary_learning(self, dict_class):
        written = dictionary_learning(self.root / "ae", dict_class)
        if dict_class == "AutoEncoderTopK":
            state = torch.load(written.path / "ae.pt", weights_only=True)
            torch.save({name: state[name] for name in state if name not in {"k", "threshold"}}, written.path / "ae.pt")
        self.check("dictionary_learning_1", "x", written)

    def test_dictionary_learning_gated(self, monkeypatch):
        """SAELens leaves out the norms by which dictionary_learning multiplies: 1 for trained ones."""
        monkeypatch.setattr(format_files, "random_weights", lambda: with_unit_rows(random_weights()))
        self.check("dictionary_learning_1", "x", dictionary_learning(self.root / "ae", "GatedAutoEncoder"))

    def test_qwen_scope(self):
        self.check("qwen_scope", "Qwen/SAE-Res-Qwen3-1.7B-Base-W1K-L0_5", qwen_scope(self.root), d_in=D_IN)

    def test_circuit_tracer(self):
        written = circuit_tracer(self.root)
        sizes = {"d_model": {"value": D_IN}, "d_feature": {"value": D_SAE}, "batch_size": {"value": 8}}
        (self.root / "wandb-config.yaml").write_text(yaml.safe_dump(sizes))
        self.check("mwhanna_transcoder", "x", written)


def assert_same(folder: Path) -> None:
    compare(sae_lens.SAE.load_from_disk(folder), folder)


def compare(theirs: Any, path: Path) -> None:
    """A skip connection is part of what theirs computes at once, and of our decoding."""
    ours, h = load_sae(path), as_tensor(residuals())
    with torch.no_grad():
        expected = theirs.encode(h)
        reconstruction = theirs(h) if hasattr(theirs, "W_skip") else theirs.decode(theirs.encode(h))
    assert (expected > 0).any()
    torch.testing.assert_close(ours.encode(h), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.decode(expected, h), reconstruction, atol=1e-5, rtol=0)
