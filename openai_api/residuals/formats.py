"""The bodies of /v1/residuals: JSON, safetensors and npz.

Both files are written in blocks, so that no more than one tensor is copied at a time.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from inference.captures import Pooling
from inference.interventions import Site
from openai_api.residuals.schemas import InputResidualsBody, ResidualBody, ResidualsBody
from openai_api.schemas.bodies import MillmBody, UsageBody

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = "millm.residuals"
FORMAT_VERSION = 1
BLOCK = 1 << 18  # bytes


@dataclass(frozen=True, slots=True)
class CapturedInput:
    """The residuals of one input: for each site ``[tokens, width]``, or ``[width]`` if pooled."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    completion: str | None
    values: tuple[NDArray[np.float32], ...]


@dataclass(frozen=True, slots=True)
class CapturedResiduals:
    """The whole answer. ``millm``: what steered it, None if nothing did."""

    model: str
    stage: Literal["pre", "post"]
    pooling: Pooling
    sites: tuple[Site, ...]
    inputs: tuple[CapturedInput, ...]
    usage: UsageBody
    millm: MillmBody | None

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "model": self.model,
            "stage": self.stage,
            "pooling": self.pooling,
            "token_ids": [list(one.token_ids) for one in self.inputs],
            "positions": [list(one.positions) for one in self.inputs],
            "completions": [one.completion for one in self.inputs],
            "usage": self.usage,
            **({} if self.millm is None else {"millm": self.millm}),
        }

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for number, one in enumerate(self.inputs):
            for site, values in zip(self.sites, one.values, strict=True):
                yield f"input.{number}.{site.layer}.{site.kind}", np.ascontiguousarray(values, "<f4")


def json_body(found: CapturedResiduals, *, is_base64: bool) -> ResidualsBody:
    body: ResidualsBody = {
        "object": "list",
        "model": found.model,
        "stage": found.stage,
        "pooling": found.pooling,
        "data": [_input_body(number, one, found.sites, is_base64=is_base64) for number, one in enumerate(found.inputs)],
        "usage": found.usage,
    }
    if found.millm is not None:
        body["millm"] = found.millm
    return body


def _input_body(index: int, found: CapturedInput, sites: tuple[Site, ...], *, is_base64: bool) -> InputResidualsBody:
    residuals: list[ResidualBody] = [
        {
            "layer": site.layer,
            "site": site.kind,
            "shape": list(values.shape),
            "values": base64.b64encode(values.astype("<f4").tobytes()).decode() if is_base64 else values.tolist(),
        }
        for site, values in zip(sites, found.values, strict=True)
    ]
    return {
        "index": index,
        "token_ids": list(found.token_ids),
        "positions": list(found.positions),
        "completion": found.completion,
        "residuals": residuals,
    }


def safetensors_blocks(found: CapturedResiduals) -> Iterator[bytes]:
    """Yield a safetensors file: the length of the header, the header, and the tensors.

    All metadata are strings; those that were none are JSON. See https://github.com/huggingface/safetensors#format.
    """
    header: dict[str, Any] = {
        "__metadata__": {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in found.metadata.items()
        }
    }
    end = 0
    for name, values in found.tensors():
        start, end = end, end + values.nbytes
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, values in found.tensors():
        yield from _pieces(memoryview(values.tobytes()))


def npz_blocks(found: CapturedResiduals) -> Iterator[bytes]:
    """Yield an npz file: the tensors, the ids and positions of each input, and ``metadata`` as JSON."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name, values in _arrays(found):
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, np.lib.format.header_data_from_array_1_0(values))
                for piece in _pieces(memoryview(values.tobytes())):
                    entry.write(piece)
                    yield from sink.take()
    yield from sink.take()


def _arrays(found: CapturedResiduals) -> Iterator[tuple[str, NDArray[Any]]]:
    yield from found.tensors()
    for number, one in enumerate(found.inputs):
        yield f"input.{number}.token_ids", np.array(one.token_ids, "<i8")
        yield f"input.{number}.positions", np.array(one.positions, "<i8")
    yield "metadata", np.array(json.dumps(found.metadata))


def _pieces(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), BLOCK):
        yield bytes(data[start : start + BLOCK])


class _Sink(io.RawIOBase):
    """Keeps what a zip file writes until it is sent."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        written, self._written = self._written, []
        return written
