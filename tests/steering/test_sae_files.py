"""Damaged, dangerous and unknown files are refused with a sentence, and without harm."""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from inference.interventions import Site
from steering.saes.errors import InvalidSAEError
from steering.saes.files import sae_folder
from steering.saes.hooks import parse_hook_name, same_place, transcoder_site
from steering.saes.loader import load_sae
from steering.saes.preview import preview_sae, sae_checksum
from steering.saes.tensor_files.registry import open_tensors
from tests import live
from tests.steering.sae_files import random_weights, sae_config, write_sae

WEIGHTS = "sae_weights.safetensors"


def refused(folder: Path) -> str:
    with pytest.raises(InvalidSAEError) as caught:
        load_sae(folder)
    message = str(caught.value)
    assert message.endswith(".")
    return message


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


class TestWeights:
    def test_truncated(self, tmp_path):
        path = write_sae(tmp_path) / WEIGHTS
        path.write_bytes(path.read_bytes()[:-100])
        assert "not a valid safetensors file" in refused(tmp_path)

    def test_empty(self, tmp_path):
        (write_sae(tmp_path) / WEIGHTS).write_bytes(b"")
        assert "not a valid safetensors file" in refused(tmp_path)

    def test_header_that_claims_to_be_huge(self, tmp_path):
        (write_sae(tmp_path) / WEIGHTS).write_bytes(struct.pack("<Q", 2**62) + b"{}")
        assert "not a valid safetensors file" in refused(tmp_path)

    @pytest.mark.parametrize("shape", [[12, 41], [10**9, 10**9], [-12, 40], [12], [2**63, 2]])
    def test_header_with_a_shape_that_lies(self, shape, tmp_path):
        path = write_sae(tmp_path) / WEIGHTS
        rewrite_header(path, lambda header: header["W_enc"].update(shape=shape))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused(tmp_path)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB

    def test_overlapping_tensors(self, tmp_path):
        path = write_sae(tmp_path) / WEIGHTS
        rewrite_header(path, lambda header: header["b_enc"].update(data_offsets=header["threshold"]["data_offsets"]))
        assert "not a valid safetensors file" in refused(tmp_path)

    def test_shapes_that_differ_from_the_configuration(self, tmp_path):
        write_sae(tmp_path, sae_config(d_sae=41))
        assert "must have the shape [12, 41], got [12, 40]" in refused(tmp_path)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    @pytest.mark.parametrize("name", ["W_enc", "b_enc", "W_dec", "b_dec", "threshold"])
    def test_values_that_are_not_finite(self, name, value, tmp_path):
        weights = random_weights()
        weights[name].flat[5] = value
        write_sae(tmp_path, weights=weights)
        assert f"{name} in {WEIGHTS} contains values that are not finite" in refused(tmp_path)

    def test_values_that_overflow_in_float32(self, tmp_path):
        weights = random_weights()
        weights["W_dec"][0, 0] = 1e200
        write_sae(tmp_path, weights=weights, dtype=torch.float64)
        assert "not finite" in refused(tmp_path)

    def test_integers(self, tmp_path):
        write_sae(tmp_path, dtype=torch.int32)
        assert "must contain floating-point numbers, got I32" in refused(tmp_path)

    def test_missing_tensor(self, tmp_path):
        write_sae(tmp_path)
        save_file({"W_enc": torch.zeros(12, 40)}, tmp_path / WEIGHTS)
        assert "lacks W_dec, b_dec, b_enc, threshold" in refused(tmp_path)

    def test_threshold_of_an_sae_that_claims_to_be_relu(self, tmp_path):
        """Read as plain ReLU it would report features that do not fire."""
        write_sae(tmp_path)
        (tmp_path / "cfg.json").write_text(json.dumps(sae_config("standard")))
        assert "contains threshold, which this architecture does not have" in refused(tmp_path)

    def test_wrong_width(self, tmp_path):
        with pytest.raises(InvalidSAEError, match="vectors of 12 values, but the model's have 16"):
            load_sae(write_sae(tmp_path), d_in=16)


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


class TestPaths:
    def test_pickle_with_the_right_name(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (write_sae(tmp_path) / WEIGHTS).write_bytes(pickle.dumps(Bomb()))
        refused(tmp_path)
        assert not (tmp_path / "exploded").exists()

    @pytest.mark.parametrize("name", ["ae.pt", "sae_weights.pt", "layer12.pth", "weights.bin"])
    def test_folder_of_pickles(self, name, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
        refused(tmp_path)
        assert not (tmp_path / "exploded").exists()

    @pytest.mark.parametrize("name", ["cfg.json", WEIGHTS])
    def test_link_out_of_the_folder(self, name, tmp_path):
        outside, folder = write_sae(tmp_path / "outside"), write_sae(tmp_path / "sae")
        (folder / name).unlink()
        (folder / name).symlink_to(outside / name)
        assert "links to a file outside that folder" in refused(folder)

    def test_link_inside_the_folder_is_fine(self, tmp_path):
        (write_sae(tmp_path) / WEIGHTS).rename(tmp_path / "blob")
        (tmp_path / WEIGHTS).symlink_to(tmp_path / "blob")
        assert load_sae(tmp_path).d_sae == 40

    def test_link_to_nowhere(self, tmp_path):
        (write_sae(tmp_path) / WEIGHTS).unlink()
        (tmp_path / WEIGHTS).symlink_to(tmp_path / "gone")
        assert "is a broken link" in refused(tmp_path)

    @pytest.mark.parametrize("name", ["cfg.json", WEIGHTS])
    def test_fifo_does_not_block(self, name, tmp_path):
        (write_sae(tmp_path) / name).unlink()
        os.mkfifo(tmp_path / name)
        assert "is not a regular file" in refused(tmp_path)

    def test_directory_in_place_of_a_file(self, tmp_path):
        (write_sae(tmp_path) / WEIGHTS).unlink()
        (tmp_path / WEIGHTS).mkdir()
        assert "is not a regular file" in refused(tmp_path)

    def test_missing_weights(self, tmp_path):
        (write_sae(tmp_path) / WEIGHTS).unlink()
        assert f"{WEIGHTS} is missing" in refused(tmp_path)

    @pytest.mark.parametrize("subfolder", ["../other", "a/../../other", "/etc", "nul\0"])
    def test_subfolder_out_of_the_source(self, subfolder, tmp_path):
        (tmp_path / "root" / "a").mkdir(parents=True)
        (tmp_path / "other").mkdir()
        with pytest.raises(InvalidSAEError, match="must be a relative path"):
            sae_folder(tmp_path / "root", subfolder)

    def test_linked_subfolder_out_of_the_source(self, tmp_path):
        (tmp_path / "root").mkdir()
        (tmp_path / "other").mkdir()
        (tmp_path / "root" / "link").symlink_to(tmp_path / "other")
        with pytest.raises(InvalidSAEError, match="'link' is outside"):
            sae_folder(tmp_path / "root", "link")


class TestConfiguration:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"d_in": 0}, "d_in must be between 1 and 131072, got 0"),
            ({"d_in": -1}, "d_in must be between 1 and 131072, got -1"),
            ({"d_sae": 10**12}, "d_sae must be between 1 and 16777216, got 1000000000000"),
            ({"d_sae": "40"}, "d_sae in the configuration must be an integer, got '40'"),
            ({"d_sae": True}, "must be an integer"),
            ({"d_in": 12.0}, "must be an integer"),
            ({"architecture": "temporal"}, "architecture 'temporal' is not supported"),
            ({"architecture": "abstopk"}, "architecture 'abstopk' is not supported"),
            ({"architecture": "batchtopk"}, "saved as jumprelu for inference"),
            ({"architecture": "matching_pursuit"}, "architecture 'matching_pursuit' is not supported"),
            ({"architecture": "transcoder"}, "apply_b_dec_to_input is not supported for transcoders"),
            (
                {"architecture": "transcoder", "apply_b_dec_to_input": False, "normalize_activations": "layer_norm"},
                "transcoder with normalize_activations is not supported",
            ),
            (
                {"normalize_activations": "covariance_whitening"},
                "normalisation 'covariance_whitening' is not supported",
            ),
            ({"normalize_activations": "expected_average_only_in"}, "activation_scaler.json is missing"),
            ({"apply_b_dec_to_input": "yes"}, "must be true or false"),
            ({"rescale_acts_by_decoder_norm": True}, "only supported for topk"),
            ({"activation_fn": "tanh"}, "activation function 'tanh' is not supported"),
            ({"reshape_activations": "flatten"}, "reshape_activations 'flatten' is not supported"),
            ({"finetuning_scaling_factor": True}, "finetuning_scaling_factor is not supported"),
            ({"metadata": {"hook_name": "blocks.1.hook_attn_out"}}, "hook 'blocks.1.hook_attn_out' is not supported"),
            ({"metadata": {"hook_name": "blocks.1.attn.hook_z", "hook_head_index": 3}}, "single attention head"),
            (
                {"metadata": {"hook_name": "blocks.1.hook_resid_pre", "hook_name_out": "blocks.1.hook_mlp_out"}},
                "writes to another hook (blocks.1.hook_mlp_out) than it reads, but is not a transcoder",
            ),
            (
                {"metadata": {"hook_name": "blocks.1.hook_resid_post", "hf_hook_name": "model.layers.2"}},
                "mean different places",
            ),
        ],
    )
    def test_unsupported_or_wrong(self, change, message, tmp_path):
        write_sae(tmp_path, sae_config(**change), random_weights())
        assert message in refused(tmp_path)

    @pytest.mark.parametrize("k", [0, -1, 41, 5.0, True, None, "5"])
    def test_k_of_topk(self, k, tmp_path):
        write_sae(tmp_path, sae_config("topk", k=k))
        assert refused(tmp_path).startswith("k ")

    @pytest.mark.parametrize("factor", [0, -1, float("nan"), "2", None])
    def test_scaling_factor(self, factor, tmp_path):
        write_sae(tmp_path, sae_config(normalize_activations="expected_average_only_in"))
        (tmp_path / "activation_scaler.json").write_text(json.dumps({"scaling_factor": factor}))
        assert "scaling_factor must be a finite number above 0" in refused(tmp_path)

    @pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"[]", b'"x"'])
    def test_not_a_json_object(self, text, tmp_path):
        (write_sae(tmp_path) / "cfg.json").write_bytes(text)
        assert "cfg.json" in refused(tmp_path)

    def test_huge_json(self, tmp_path):
        (write_sae(tmp_path) / "cfg.json").write_bytes(b" " * (2 << 20) + b"{}")
        assert "the limit is 1048576" in refused(tmp_path)


def test_empty_folder_says_what_is_expected(tmp_path):
    assert "No SAE was recognised" in refused(tmp_path)
    assert "Gemma Scope 2, Llama Scope" in refused(tmp_path)


def test_preview_reads_no_weights(tmp_path):
    (write_sae(tmp_path) / WEIGHTS).unlink()
    config = preview_sae(tmp_path)
    assert (config.format, config.math.architecture, config.math.d_in, config.math.d_sae) == (
        "saelens",
        "jumprelu",
        12,
        40,
    )
    assert (config.site, config.model_name) == (Site(1, "resid_post"), "tiny")


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("blocks.3.hook_resid_post", Site(3, "resid_post")),
        ("blocks.0.hook_resid_pre", Site(0, "resid_pre")),
        ("blocks.12.hook_mlp_out", Site(12, "mlp_out")),
        ("blocks.12.mlp.hook_out", Site(12, "mlp_raw")),
        ("blocks.7.attn.hook_z", Site(7, "attn_out")),
        ("model.layers.20.mlp", Site(20, "mlp_raw")),
        ("gpt_neox.layers.20.mlp.output", Site(20, "mlp_raw")),
        ("model.layers.20.post_feedforward_layernorm.output", Site(20, "mlp_out")),
        ("model.layers.20.post_mlp_layernorm", Site(20, "mlp_out")),
        ("model.layers.20", Site(20, "resid_post")),
        ("model.layers.20.output", Site(20, "resid_post")),
    ],
)
def test_hook_names(name, site):
    assert parse_hook_name(name) == site


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        ("blocks.3.mlp.hook_in", "blocks.3.mlp.hook_out", "mlp_raw"),
        ("blocks.3.mlp.hook_in", "blocks.3.hook_mlp_out", "mlp_out"),
        ("blocks.3.ln2.hook_normalized", "", "mlp_out"),
        ("blocks.3.mlp.hook_in", "", "mlp_raw"),
        ("model.layers.3.mlp.input", "", "mlp_raw"),
        ("model.layers.3.mlp.input", "model.layers.3.post_feedforward_layernorm.output", "mlp_out"),
        ("model.layers.3.pre_feedforward_layernorm.output", "", "mlp_out"),
    ],
)
def test_a_transcoder_writes_where_its_configuration_says(source, target, kind):
    assert transcoder_site(source, target) == Site(3, kind)


@pytest.mark.parametrize(
    ("source", "target"),
    [("blocks.3.mlp.hook_in", "blocks.4.mlp.hook_out"), ("blocks.3.mlp.hook_in", "blocks.3.hook_resid_post")],
)
def test_a_transcoder_across_layers_is_refused(source, target):
    with pytest.raises(InvalidSAEError, match="only an MLP of one layer is supported"):
        transcoder_site(source, target)


@pytest.mark.parametrize(
    ("names", "site"),
    [
        (["blocks.1.hook_mlp_out", "model.layers.1.mlp.output"], Site(1, "mlp_out")),
        (["model.layers.1.mlp"], Site(1, "mlp_raw")),
        (["blocks.1.hook_mlp_out", "model.layers.1.post_feedforward_layernorm"], Site(1, "mlp_out")),
        (["blocks.1.hook_mlp_out", "model.layers.2.mlp"], None),
        (["blocks.1.hook_resid_post", "model.layers.1.mlp"], None),
    ],
)
def test_two_names_of_one_place(names, site):
    if site is not None:
        assert same_place(names) == site
        return
    with pytest.raises(InvalidSAEError, match="mean different places"):
        same_place(names)


@pytest.mark.parametrize(
    "name", ["", "blocks.x.hook_resid_post", "blocks.3.hook_resid_mid", "blocks.3.ln1.hook_normalized"]
)
def test_unknown_hook_names(name):
    with pytest.raises(InvalidSAEError, match=r"is not supported\. Supported: "):
        parse_hook_name(name)


class TestChecksum:
    def checksum(self, folder: Path) -> str:
        return sae_checksum(folder, preview_sae(folder))

    def test_is_the_key_of_the_loaded_sae(self, tmp_path):
        assert self.checksum(write_sae(tmp_path)) == load_sae(tmp_path).key

    def test_covers_weights_and_configuration_but_not_the_place(self, tmp_path):
        base = self.checksum(write_sae(tmp_path / "a"))
        weights = random_weights()
        weights["W_dec"][0, 0] = np.float32(weights["W_dec"][0, 0]) + np.float32(1)
        assert self.checksum(write_sae(tmp_path / "b", weights=weights)) != base
        assert self.checksum(write_sae(tmp_path / "c", sae_config(apply_b_dec_to_input=False))) != base
        moved = sae_config(metadata={"hook_name": "blocks.9.hook_resid_post"})
        assert self.checksum(write_sae(tmp_path / "d", moved)) == base


CUT = """
import sys
from pathlib import Path
from steering.saes.errors import InvalidSAEError
from steering.saes.tensor_files.registry import open_tensors

path = Path(sys.argv[1])
file = open_tensors(path, path.name)
path.write_bytes(b"")
try:
    file.read({name: header.shape for name, header in file.headers.items()})
except InvalidSAEError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt"])
def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path, name):
    """In a process of its own: a mapped page that is gone ends the process with SIGBUS."""
    tensors = {"W_enc": torch.randn(300, 300), "W_dec": torch.randn(300, 300)}
    (save_file if name.endswith("safetensors") else torch.save)(tensors, tmp_path / name)
    output = live.run_python("-c", CUT, str(tmp_path / name), environment=os.environ)
    assert f"{name} is not " in output


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says what is mapped")
@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "x.npz"])
def test_tensors_that_were_read_are_not_mapped(tmp_path, name):
    tensors = {"W_enc": torch.randn(300, 300), "W_dec": torch.randn(300, 300)}
    if name.endswith("npz"):
        np.savez(tmp_path / name, **{key: tensor.numpy() for key, tensor in tensors.items()})
    else:
        (save_file if name.endswith("safetensors") else torch.save)(tensors, tmp_path / name)
    file = open_tensors(tmp_path / name, name)
    read = file.read({key: header.shape for key, header in file.headers.items()})
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert all(torch.equal(read[key], tensor) for key, tensor in tensors.items())


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """Else an SAE's checksum could be that of other weights."""
    weights = write_sae(tmp_path) / WEIGHTS
    size = weights.stat().st_size

    def rewritten(path: Path) -> str:
        weights.write_bytes(bytes(size))
        return "0" * 64

    monkeypatch.setattr("steering.saes.loader.file_sha256", rewritten)
    assert f"{WEIGHTS} changed while it was being read" in refused(tmp_path)
