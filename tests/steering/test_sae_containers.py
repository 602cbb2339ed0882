"""Archives and pickles that lie, grow or want to run something are refused, and the process is none the worse."""

from __future__ import annotations

import io
import os
import pickle
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steering.saes.errors import InvalidSAEError
from steering.saes.loader import load_sae
from steering.saes.preview import preview_sae
from tests.steering.format_files import dictionary_learning, gemma_scope, goodfire
from tests.steering.sae_files import D_IN, D_SAE, random_weights


def refused(path: Path) -> str:
    with pytest.raises(InvalidSAEError) as caught:
        load_sae(path)
    message = str(caught.value)
    assert message.endswith(".")
    return message


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


def npy_header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


class TestNpz:
    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        return gemma_scope(tmp_path).path

    def rewrite(self, folder: Path, *, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
        arrays = {f"{name}.npy": npy(value.astype(np.float32)) for name, value in random_weights().items()}
        with zipfile.ZipFile(folder / "params.npz", "w", compression) as archive:
            for name, data in (arrays | {f"{name}.npy": data for name, data in entries.items()}).items():
                archive.writestr(name, data)
        return folder

    def test_rewritten_is_read(self, folder):
        assert load_sae(self.rewrite(folder)).d_sae == D_SAE

    def test_columns_first_and_other_byte_order(self, folder):
        W_enc = random_weights()["W_enc"]
        again = load_sae(self.rewrite(folder, W_enc=npy(np.asfortranarray(W_enc.astype(">f8")))))
        h = torch.randn(3, D_IN)
        torch.testing.assert_close(again.encode(h), load_sae(self.rewrite(folder)).encode(h))

    def test_bomb(self, folder):
        """195 KiB that become 200 MB."""
        bomb = npy(np.zeros(50_000_000, np.float32))
        self.rewrite(folder, compression=zipfile.ZIP_DEFLATED, W_enc=bomb)
        del bomb
        assert (folder / "params.npz").stat().st_size < 300_000
        before = peak_kib()
        assert "would grow from" in refused(folder)
        assert peak_kib() - before < 32 << 10

    @pytest.mark.parametrize("shape", [(10**12,), (10**9, 10**9), (2**63, 4)])
    def test_header_of_an_enormous_array(self, shape, folder):
        before = peak_kib()
        assert "W_enc declares" in refused(self.rewrite(folder, W_enc=npy_header(shape) + b"\0" * 64))
        assert peak_kib() - before < 32 << 10

    def test_negative_shape(self, folder):
        assert "has a negative size" in refused(self.rewrite(folder, W_enc=npy_header((-1, 4))))

    def test_objects_are_not_unpickled(self, folder, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        array = np.empty(1, object)
        array[0] = Bomb()
        assert "W_enc contains Python objects" in refused(self.rewrite(folder, W_enc=npy(array)))
        assert not (tmp_path / "exploded").exists()

    @pytest.mark.parametrize("name", ["../W_enc.npy", "/etc/W_enc.npy", "notes.txt"])
    def test_names_that_are_no_arrays(self, name, folder):
        self.rewrite(folder)
        with zipfile.ZipFile(folder / "params.npz", "a") as archive:
            archive.writestr(name, b"")
        assert f"contains {name!r}, which is not an array" in refused(folder)

    @pytest.mark.parametrize("data", [b"", b"PK", b"\x93NUMPY", b"not an array at all"])
    def test_entry_that_is_no_array(self, data, folder):
        assert "is not a valid npz file" in refused(self.rewrite(folder, W_enc=data))

    def test_truncated(self, folder):
        path = folder / "params.npz"
        path.write_bytes(path.read_bytes()[:-50])
        assert "is not a valid npz file" in refused(folder)

    def test_damaged_data(self, folder):
        path = folder / "params.npz"
        data = bytearray(path.read_bytes())
        data[600] ^= 0xFF
        path.write_bytes(bytes(data))
        assert "is not a valid npz file" in refused(folder)

    def test_too_many_arrays(self, folder):
        more = {f"a{number}": npy(np.zeros(1, np.float32)) for number in range(1001)}
        assert "contains 1006 arrays" in refused(self.rewrite(folder, **more))

    def test_integers(self, folder):
        array = np.zeros((D_IN, D_SAE), np.int32)
        error = refused(self.rewrite(folder, W_enc=npy(array)))
        assert "W_enc in params.npz must contain floating-point numbers, got int32" in error

    def test_not_finite(self, folder):
        array = np.full((D_IN, D_SAE), np.nan, np.float32)
        assert "W_enc in params.npz contains values that are not finite" in refused(
            self.rewrite(folder, W_enc=npy(array))
        )

    def test_other_width(self, folder):
        array = np.zeros((D_SAE, D_IN + 1), np.float32)
        assert "got [40, 13]" in refused(self.rewrite(folder, W_dec=npy(array)))

    def test_array_too_much(self, folder):
        assert "contains scaling_factor, which" in refused(self.rewrite(folder, scaling_factor=npy(np.ones(3))))


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


class TestTorchFiles:
    @pytest.fixture
    def path(self, tmp_path) -> Path:
        return goodfire(tmp_path).path

    def rewrite(self, path: Path, **entries: Any) -> Path:
        value = torch.load(path, weights_only=True)
        torch.save(value | {name.replace("__", "."): entry for name, entry in entries.items()}, path)
        return path

    @pytest.mark.parametrize("value", [Bomb(), {"encoder_linear.weight": Bomb()}, [Bomb()]])
    def test_code_is_not_run(self, value, path, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        torch.save(value, path)
        assert "contains more than tensors" in refused(path)
        assert not (tmp_path / "exploded").exists()

    def test_old_pickle(self, path, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        path.write_bytes(pickle.dumps({"encoder_linear.weight": Bomb()}))
        assert "is not a zip file written by torch.save" in refused(path)
        assert not (tmp_path / "exploded").exists()

    def test_old_format_of_torch(self, path):
        torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)
        assert "Older pickles are not supported" in refused(path)

    def test_archive_that_grows(self, path):
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename: archive.read(info) for info in archive.infolist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in entries.items():
                archive.writestr(name, bytes(len(data) * 1000) if name.endswith("/0") else data)
        assert "would grow when unpacked" in refused(path)

    def test_huge_pickle(self, path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", b"." * (5 << 20))
        assert "not plausible for a list of tensors" in refused(path)

    def test_view_that_repeats_one_number(self, path):
        """A few bytes that claim to be a matrix of any size."""
        before = peak_kib()
        wide = torch.zeros(1).expand(1 << 20, 1 << 14)
        assert "which exceeds its data" in refused(self.rewrite(path, encoder_linear__weight=wide))
        assert peak_kib() - before < 64 << 10

    @pytest.mark.parametrize(
        ("tensor", "message"),
        [
            (
                torch.full((D_SAE, D_IN), float("nan")),
                "encoder_linear.weight in {} contains values that are not finite",
            ),
            (
                torch.zeros(D_SAE, D_IN, dtype=torch.int64),
                "encoder_linear.weight in {} must contain floating-point numbers, got torch.int64",
            ),
            (
                torch.zeros(D_SAE, D_IN, dtype=torch.complex64),
                "encoder_linear.weight in {} must contain floating-point numbers, got torch.complex64",
            ),
            (torch.zeros(D_SAE), "encoder_linear.weight must have 2 dimensions, got the shape [40]"),
            (torch.zeros(D_SAE, D_IN + 1), "decoder_linear.weight in {} must have the shape [13, 40], got [12, 40]"),
            (torch.zeros(0, 0), "d_in must be between 1 and 131072, got 0"),
            (torch.eye(D_SAE, D_IN).to_sparse(), "is not a plain tensor"),
            ("text", "contains 'encoder_linear.weight', which is not a tensor"),
        ],
    )
    def test_wrong_tensors(self, tensor, message, path):
        assert message.format(path.name) in refused(self.rewrite(path, encoder_linear__weight=tensor))

    @pytest.mark.parametrize("value", [{}, [], torch.zeros(3), {"sae": {}}])
    def test_no_tensors_by_name(self, value, path):
        torch.save(value, path)
        assert "does not contain named tensors" in refused(path)

    @pytest.mark.parametrize("wrapper", ["sae", "state_dict"])
    def test_wrapped(self, wrapper, path):
        torch.save({wrapper: torch.load(path, weights_only=True), "version": "1"}, path)
        assert load_sae(path).d_sae == D_SAE

    def test_truncated(self, path):
        path.write_bytes(path.read_bytes()[:-200])
        assert "is not a zip file written by torch.save" in refused(path)

    def test_link_out_of_the_folder(self, path, tmp_path):
        (tmp_path / "sae").mkdir()
        link = tmp_path / "sae" / path.name
        link.symlink_to(path)
        assert "links to a file outside that folder" in refused(tmp_path / "sae")

    def test_preview_reads_the_header_only(self, path):
        """An SAE of 65536 features must be looked at without its memory."""
        self.rewrite(path, encoder_linear__weight=torch.zeros(1 << 14, 1 << 11))
        before = peak_kib()
        assert preview_sae(path).math.d_sae == 1 << 14
        assert peak_kib() - before < 64 << 10


def test_pickle_beside_a_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = dictionary_learning(tmp_path / "sae", "AutoEncoder").path
    torch.save(Bomb(), folder / "ae.pt")
    assert "ae.pt is a pickle that contains more than tensors" in refused(folder)
    assert not (tmp_path / "exploded").exists()
