"""Activations of SAE features at the tokens of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from millm.answers import Receipt
from millm.inputs import Input, Pooling, pool, read_all
from millm.transport import Transport

Array = NDArray[np.float32]
Ids = NDArray[np.int64]

MAX_FEATURES = 256  # of a request
MAX_TOP_K = 100


@dataclass(frozen=True, eq=False)
class TextActivations:
    """Activations on one text, at its tokens other than special ones.

    ``values``: ``[tokens, features]`` float32, 0 where a feature is not active; ``[features]`` if pooled. ``tokens``:
    the tokens as text. ``positions``: their places in the prompt, from 0.
    """

    tokens: tuple[str, ...]
    token_ids: Ids
    positions: Ids
    values: Array


@dataclass(frozen=True, eq=False)
class Activations(Sequence[TextActivations]):
    """Activations on several texts: a sequence with one :class:`TextActivations` for each.

    ``features``: the indices of the columns of ``values``, in ascending order or as requested. ``labels``: theirs,
    empty where there is none.
    """

    model: str
    sae: str
    layer: int
    site: str
    features: Ids
    labels: tuple[str, ...]
    texts: tuple[TextActivations, ...] = field(repr=False)
    receipt: Receipt | None = field(repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, number: int) -> TextActivations: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[TextActivations, ...]: ...
    def __getitem__(self, number: int | slice) -> TextActivations | tuple[TextActivations, ...]:
        return self.texts[number]

    def __iter__(self) -> Iterator[TextActivations]:
        return iter(self.texts)

    def stack(self) -> Array:
        """Return pooled values of all texts: ``[texts, features]``. Raise ValueError if they are not pooled."""
        if any(text.values.ndim != 1 for text in self.texts):
            raise ValueError("Texts have different numbers of tokens. Ask for a `pooling` to stack them.")
        return np.stack([text.values for text in self.texts])


@dataclass(frozen=True)
class ActivationReader:
    """Requests for activations. ``fields``: those of the body that are the same in all requests."""

    transport: Transport
    fields: Mapping[str, Any]

    def read(
        self,
        inputs: Sequence[Input],
        features: Sequence[int] | Literal["all"] | None,
        top_k: int | None,
        pooling: Pooling,
    ) -> Activations:
        if features is not None and top_k is not None:
            raise ValueError("`features` and `top_k` cannot be combined.")
        if features is not None and not isinstance(features, str):
            return self._exact(inputs, list(features), pooling)
        bodies = self._request(inputs, {"top_k": MAX_TOP_K if features == "all" else top_k or 10})
        if features == "all":
            _check_complete(bodies)
        active = sorted({one["index"] for body in bodies for token in body["tokens"] for one in token["features"]})
        if features == "all" or not active:
            return _merge([(active, bodies)], pooling)
        return self._exact(inputs, active, pooling)

    def _exact(self, inputs: Sequence[Input], features: Sequence[int], pooling: Pooling) -> Activations:
        """Read the exact values of these features at every token."""
        if not features:
            raise ValueError("`features` must not be empty.")
        groups = [list(features[start : start + MAX_FEATURES]) for start in range(0, len(features), MAX_FEATURES)]
        return _merge([(group, self._request(inputs, {"features": group})) for group in groups], pooling)

    def _request(self, inputs: Sequence[Input], fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        def read(part: Sequence[Input]) -> list[dict[str, Any]]:
            answer = self.transport.post("features/activations", {**self.fields, **fields, "input": list(part)})
            shared = {name: answer[name] for name in ("model", "sae", "layer", "site")}
            return [{**shared, "millm": answer.get("millm"), **body} for body in answer["data"]]

        return read_all(inputs, read)


def _check_complete(bodies: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError if a token may have more active features than the server returns."""
    most = max((len(token["features"]) for body in bodies for token in body["tokens"]), default=0)
    if most >= MAX_TOP_K:
        raise ValueError(f"Some tokens have {MAX_TOP_K} or more active features. Name the `features` to read instead.")


def _merge(groups: Sequence[tuple[Sequence[int], Sequence[Mapping[str, Any]]]], pooling: Pooling) -> Activations:
    """Put the columns of several requests side by side."""
    labels: dict[int, str] = {}
    columns: list[list[Array]] = []
    for features, bodies in groups:
        place = {index: column for column, index in enumerate(features)}
        columns.append([_values(body["tokens"], place, labels) for body in bodies])
    first = groups[0][1]
    all_features = [index for features, _ in groups for index in features]
    texts = tuple(
        TextActivations(
            tokens=tuple(token["token"] for token in body["tokens"]),
            token_ids=np.array([token["id"] for token in body["tokens"]], np.int64),
            positions=np.array([token["place"] for token in body["tokens"]], np.int64),
            values=pool(np.concatenate(parts, axis=1), pooling),
        )
        for body, parts in zip(first, zip(*columns, strict=True), strict=True)
    )
    return Activations(
        model=first[0]["model"],
        sae=first[0]["sae"],
        layer=first[0]["layer"],
        site=first[0]["site"],
        features=np.array(all_features, np.int64),
        labels=tuple(labels.get(index, "") for index in all_features),
        texts=texts,
        receipt=Receipt.read(first[0]["millm"]),
    )


def _values(tokens: Sequence[Mapping[str, Any]], place: Mapping[int, int], labels: dict[int, str]) -> Array:
    values = np.zeros((len(tokens), len(place)), np.float32)
    for row, token in enumerate(tokens):
        for one in token["features"]:
            values[row, place[one["index"]]] = one["value"]
            if one["label"]:
                labels[one["index"]] = one["label"]
    return values
