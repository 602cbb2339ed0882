"""Residuals of a model at the tokens of texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millm.answers import Receipt
from millm.inputs import Input, Pooling, read_all
from millm.places import Site, SiteLike, as_site
from millm.tensors import read_safetensors
from millm.transport import Transport

Array = NDArray[np.float32]
Ids = NDArray[np.int64]

MAX_SITES = 64  # of a request


@dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals of several texts at several sites. ``residuals[site]`` is a list with one array for each text.

    An array is ``[tokens, d]`` float32, or ``[d]`` if pooled. ``token_ids`` has the ids of all tokens of each text, and
    ``positions`` the places in it that the rows belong to (those that were pooled): special tokens are left out.
    """

    model: str
    stage: str
    pooling: Pooling
    sites: tuple[Site, ...]
    token_ids: tuple[Ids, ...] = field(repr=False)
    positions: tuple[Ids, ...] = field(repr=False)
    values: Mapping[Site, list[Array]] = field(repr=False)
    receipt: Receipt | None = field(repr=False)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.token_ids)

    def __getitem__(self, place: SiteLike) -> list[Array]:
        """Return the arrays of a site, one for each text. Raise KeyError for one that was not read."""
        site = as_site(place)
        if site not in self.values:
            raise KeyError(f"{site} was not read. There are {', '.join(map(str, self.sites))}.")
        return self.values[site]

    def stack(self, place: SiteLike) -> Array:
        """Return pooled residuals of all texts at a site: ``[texts, d]``. Raise ValueError if they are not pooled."""
        if self.pooling == "none":
            raise ValueError("Texts have different numbers of tokens. Ask for a `pooling` to stack them.")
        return np.stack(self[place])


@dataclass(frozen=True)
class _OneText:
    token_ids: Ids
    positions: Ids
    values: dict[Site, Array]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class ResidualReader:
    """Requests for residuals. ``fields``: those of the body that are the same in all requests."""

    transport: Transport
    fields: Mapping[str, Any]

    def read(self, inputs: Sequence[Input], sites: Sequence[Site], pooling: Pooling) -> Residuals:
        if not sites:
            raise ValueError("`sites` must not be empty.")
        groups = [
            self._request(inputs, sites[start : start + MAX_SITES], pooling)
            for start in range(0, len(sites), MAX_SITES)
        ]
        first = groups[0]
        values: dict[Site, list[Array]] = {
            site: [text.values[site] for text in group] for group in groups for site in group[0].values
        }
        metadata = first[0].metadata
        return Residuals(
            model=metadata["model"],
            stage=metadata["stage"],
            pooling=pooling,
            sites=tuple(sites),
            token_ids=tuple(text.token_ids for text in first),
            positions=tuple(text.positions for text in first),
            values=values,
            receipt=Receipt.read(json.loads(metadata["millm"])) if "millm" in metadata else None,
        )

    def _request(self, inputs: Sequence[Input], sites: Sequence[Site], pooling: Pooling) -> list[_OneText]:
        places = [{"layer": site.layer, "site": site.site} for site in sites]
        fields = {**self.fields, "sites": places, "pooling": pooling, "response_format": "safetensors"}

        def read(part: Sequence[Input]) -> list[_OneText]:
            return _parse(self.transport.post_for_bytes("residuals", {**fields, "input": list(part)}), sites)

        return read_all(inputs, read)


def _parse(data: bytes, sites: Sequence[Site]) -> list[_OneText]:
    tensors, metadata = read_safetensors(data)
    ids, positions = json.loads(metadata["token_ids"]), json.loads(metadata["positions"])
    return [
        _OneText(
            np.array(ids[number], np.int64),
            np.array(positions[number], np.int64),
            {site: tensors[f"input.{number}.{site.layer}.{site.site}"] for site in sites},
            metadata,
        )
        for number in range(len(ids))
    ]
