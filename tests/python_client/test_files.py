"""safetensors files, and vectors in them, against the library and the server's own reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save as save_torch

from millm import SteeringVector, load_vectors, save_vectors
from millm.tensors import read_safetensors, write_safetensors
from steering.saes.vector_files import read_vectors


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8"])
def test_what_the_library_writes_is_read(dtype: str) -> None:
    tensors = {
        "a": torch.arange(6).reshape(2, 3).to(getattr(torch, dtype)),
        "empty": torch.zeros(0, 4, dtype=torch.float32),
    }
    found, metadata = read_safetensors(save_torch(tensors, {"model": "demo"}))
    assert metadata == {"model": "demo"}
    assert found["a"].tolist() == tensors["a"].tolist()
    assert found["empty"].shape == (0, 4)


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(write_safetensors({"x": np.eye(3, dtype=np.float32), "y": np.ones(1, np.float32)}, {"n": "1"}))
    with safe_open(path, "np") as file:
        assert file.metadata() == {"n": "1"}
        assert file.get_tensor("x").tolist() == np.eye(3).tolist()
        assert file.get_tensor("y").tolist() == [1.0]


def test_damaged_files_are_refused() -> None:
    whole = write_safetensors({"x": np.ones(4, np.float32)}, {})
    with pytest.raises(ValueError, match="cut off"):
        read_safetensors(whole[:-4])
    with pytest.raises(ValueError, match="no safetensors file"):
        read_safetensors(b"{}")
    with pytest.raises(ValueError, match="`x` has the type F8"):
        read_safetensors(whole.replace(b'"F32"', b'"F8" '))


def test_vectors_come_back_from_a_file_and_the_server_reads_it(tmp_path: Path) -> None:
    one, other = (
        SteeringVector(np.ones(4, np.float32), 2, reference_norm=8.0),
        SteeringVector(np.arange(4, dtype=np.float32), 3),
    )
    path = tmp_path / "calm.safetensors"
    save_vectors(path, [one, other])
    found = load_vectors(path)
    assert found.keys() == {2, 3}
    assert (found[2].reference_norm, found[3].reference_norm) == (8.0, None)
    assert found[3].values.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert [(vector.site and vector.site.layer) for vector in read_vectors(path).vectors] == [2, 3]


def test_files_hold_one_vector_of_each_layer_s_output(tmp_path: Path) -> None:
    vector = SteeringVector(np.ones(4, np.float32), 2)
    with pytest.raises(ValueError, match="not of mlp_out"):
        vector.at(2, "mlp_out").save(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="one vector for each layer"):
        save_vectors(tmp_path / "a.safetensors", [vector, vector])


def test_vectors_are_scaled_moved_and_compared() -> None:
    vector = SteeringVector(np.array([3.0, 4.0], np.float32), 2, reference_norm=10.0)
    assert (vector.norm, vector.relative_size) == (5.0, 0.5)
    assert (2 * vector).values.tolist() == [6.0, 8.0]
    assert (-vector).cosine(vector) == pytest.approx(-1.0)
    assert vector.resized(0.2).norm == pytest.approx(2.0)
    assert vector.at(4).layer == 4
    with pytest.raises(ValueError, match="relative size is unknown"):
        vector.at(4).resized(0.2)
    with pytest.raises(ValueError, match=r"shape \[d\]"):
        SteeringVector(np.ones((2, 2), np.float32), 2)
    with pytest.raises(ValueError, match="finite"):
        SteeringVector(np.array([np.nan], np.float32), 2)
