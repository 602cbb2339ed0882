"""Plain vectors from the three kinds of files, and what is no vector."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from inference.interventions import Site
from steering.saes.errors import InvalidSAEError
from steering.saes.vector_files import read_vectors
from steering.spec.edit import EditSpec, VectorTarget

LAYERS = (3, 11)


def directions(dtype: type = np.float32) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(0)
    return {layer: rng.normal(size=8).astype(dtype) for layer in LAYERS}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(
    arrays: dict[int, np.ndarray] | None = None,
    *,
    architecture: str = "controlvector",
    kind: int = 0,
    extra: bytes = b"",
    num_extra: int = 0,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A control vector, byte by byte after the published description of the format."""
    arrays = directions() if arrays is None else arrays
    fields = text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    fields += text("controlvector.model_hint") + struct.pack("<I", 8) + text("llama")
    fields += text("controlvector.layer_count") + struct.pack("<Ii", 5, len(arrays))
    headers, data = b"", b""
    for layer, values in arrays.items():
        data += b"\0" * (-len(data) % alignment)
        sizes = struct.pack(f"<I{values.ndim}Q", values.ndim, *values.shape[::-1])
        headers += text(f"direction.{layer}") + sizes + struct.pack("<IQ", kind, len(data))
        data += values.tobytes()
    front = b"GGUF" + struct.pack("<IQQ", version, len(arrays), 3 + num_extra) + fields + extra + headers
    return front + b"\0" * (-len(front) % alignment) + data


def write(path: Path, kind: str) -> Path:
    match kind:
        case "gguf":
            path.write_bytes(gguf())
        case "safetensors":
            save_file({f"direction.{layer}": torch.tensor(v) for layer, v in directions().items()}, path)
        case _:
            np.savez(path, **{f"layer_{layer}": v for layer, v in directions().items()})  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("kind", ["gguf", "safetensors", "npz"])
def test_one_vector_per_layer(kind, tmp_path):
    file = read_vectors(write(tmp_path / f"v.{kind}", kind))
    assert [vector.site for vector in file.vectors] == [Site(layer) for layer in LAYERS]
    for vector, expected in zip(file.vectors, directions().values(), strict=True):
        np.testing.assert_array_equal(vector.values, expected)
    assert file.model_hint == ("llama" if kind == "gguf" else "")
    assert file.at(11).site == Site(11)
    with pytest.raises(InvalidSAEError, match=r"no vector for layer 4\. Available layers: 3, 11"):
        file.at(4)


@pytest.mark.parametrize("kind", ["gguf", "safetensors", "npz"])
def test_vector_becomes_an_edit(kind, tmp_path):
    vector = read_vectors(write(tmp_path / f"v.{kind}", kind)).at(3)
    assert vector.site is not None
    edit = EditSpec(VectorTarget(vector.site, tuple(vector.values.tolist())), strength=2.0, unit="raw")
    assert edit.raw == 2.0
    assert edit.target.site == Site(3)


@pytest.mark.parametrize("name", ["caa", "direction", "caa_v2"])
def test_single_vector_without_a_layer_is_for_any(name, tmp_path):
    save_file({name: torch.ones(1, 8)}, tmp_path / "v.safetensors")
    file = read_vectors(tmp_path / "v.safetensors")
    assert file.vectors[0].site is None
    assert file.at(5).site == Site(5)


def test_written_by_the_library_that_repeng_uses(tmp_path):
    library = pytest.importorskip("gguf", reason="gguf is not installed")
    writer = library.GGUFWriter(tmp_path / "v.gguf", "controlvector")
    writer.add_string("controlvector.model_hint", "mistral")
    writer.add_uint32("controlvector.layer_count", 2)
    for layer, values in directions().items():
        writer.add_tensor(f"direction.{layer}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_vectors(tmp_path / "v.gguf")
    assert file.model_hint == "mistral"
    for layer, values in directions().items():
        np.testing.assert_array_equal(file.at(layer).values, values)


@pytest.mark.parametrize(("kind", "dtype"), [(1, np.float16), (28, np.float64)])
def test_other_floats(kind, dtype, tmp_path):
    (tmp_path / "v.gguf").write_bytes(gguf(directions(dtype), kind=kind))
    np.testing.assert_array_equal(
        read_vectors(tmp_path / "v.gguf").at(3).values, directions(dtype)[3].astype(np.float32)
    )


def test_lists_are_passed_over(tmp_path):
    lists = text("a") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3) + text("b") + struct.pack("<IIQ", 9, 8, 2)
    (tmp_path / "v.gguf").write_bytes(gguf(extra=lists + text("x") + text("y"), num_extra=2))
    assert len(read_vectors(tmp_path / "v.gguf").vectors) == 2


def test_alignment_of_its_own(tmp_path):
    field = text("general.alignment") + struct.pack("<II", 4, 64)
    (tmp_path / "v.gguf").write_bytes(gguf(extra=field, num_extra=1, alignment=64))
    np.testing.assert_array_equal(read_vectors(tmp_path / "v.gguf").at(11).values, directions()[11])


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new, 1)


ONE = {3: np.ones(8, np.float32)}
SHAPE = struct.pack("<IQ", 1, 8)
DAMAGED: list[tuple[bytes, str]] = [
    (b"", "is not a valid GGUF file"),
    (b"GGML" + gguf()[4:], "does not start with the magic number GGUF"),
    (gguf(version=1), "version 1 is not supported"),
    (gguf()[:-4], "exceeds the end of the file"),
    (gguf()[:40], "more bytes, got"),
    (gguf(architecture="llama"), "is not a control vector, its architecture is 'llama'"),
    (gguf(kind=2), "is quantised (type 2)"),
    (patched(gguf(), struct.pack("<Q", 2), struct.pack("<Q", 2**62)), "the count 4611686018427387904 is too large"),
    (patched(gguf(ONE), SHAPE, struct.pack("<IQ", 1, 2**60)), "exceeds the end of the file"),
    (patched(gguf(ONE), SHAPE, struct.pack("<IQ", 9, 8)), "the count 9 is too large"),
    (gguf(extra=text("x") + struct.pack("<I", 77), num_extra=1), "the value type 77 is unknown"),
    (gguf(extra=text("x") + struct.pack("<IIQ", 9, 6, 2**61), num_extra=1), "more bytes, got"),
    (gguf(extra=text("x") + struct.pack("<IIQ", 9, 9, 1), num_extra=1), "the list type 9 is not supported"),
    (gguf(extra=text("general.alignment") + struct.pack("<II", 4, 0), num_extra=1), "the alignment 0 is invalid"),
    (gguf({}), "contains no vectors"),
    (patched(gguf(), b"direction.11", b"direction.xy"), "contains 'direction.xy', whose name has no layer"),
    (gguf({3: np.full(8, np.nan, np.float32)}), "direction.3 contains values that are not finite"),
    (gguf({3: np.zeros(8, np.float32)}), "direction.3 must not be zero"),
    (
        gguf({3: np.ones((2, 4), np.float32)}),
        "direction.3 must be a vector of at most 131072 values, got the shape [2, 4]",
    ),
    (gguf({3: np.ones(8, np.float32), 4: np.ones(9, np.float32)}), "have different widths"),
]


@pytest.mark.parametrize(("data", "message"), DAMAGED)
def test_what_is_no_control_vector(data, message, tmp_path):
    (tmp_path / "v.gguf").write_bytes(data)
    with pytest.raises(InvalidSAEError) as caught:
        read_vectors(tmp_path / "v.gguf")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a.3": torch.ones(8), "b.3": torch.ones(8)}, "two vectors for layer 3"),
        ({"a.3": torch.ones(8), "bias": torch.ones(8)}, "contains 'bias', whose name has no layer"),
        ({"a.3": torch.ones(8, 8)}, r"a.3 must be a vector of at most \d+ values, got the shape \[8, 8\]"),
        ({"a.3": torch.tensor([float("nan")])}, "not finite"),
        ({"a.3": torch.ones(8, dtype=torch.int32)}, "must contain floating-point numbers, got I32"),
    ],
)
def test_what_is_no_vector(tensors, message, tmp_path):
    save_file(tensors, tmp_path / "v.safetensors")
    with pytest.raises(InvalidSAEError, match=message):
        read_vectors(tmp_path / "v.safetensors")


def test_unknown_ending(tmp_path):
    (tmp_path / "v.bin").write_bytes(b"")
    with pytest.raises(InvalidSAEError, match=r"file type of .* is not supported"):
        read_vectors(tmp_path / "v.bin")
