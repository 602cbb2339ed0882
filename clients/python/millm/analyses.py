"""What each layer predicts, and which features led to a token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from millm.answers import Receipt

Metric = Literal["logit", "logprob"]
Token = str | int
"""A token: its id, or its text, which must be exactly one token."""


@dataclass(frozen=True)
class LayerPrediction:
    """The most likely next tokens after a layer, best first, with their log-probabilities.

    ``next_logprob`` and ``next_rank`` (from 1) are those of the token that follows in the text, None at its end.
    """

    layer: int
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    next_logprob: float | None
    next_rank: int | None


@dataclass(frozen=True)
class TokenLens:
    """The predictions at one token, by layer. ``next`` is the token that follows in the text."""

    position: int
    token: str
    next: str | None
    layers: tuple[LayerPrediction, ...]


@dataclass(frozen=True, eq=False)
class LogitLens:
    """The logit lens of a text: ``lens[i]`` is that of its i-th read token. ``raw`` is the server's answer."""

    model: str
    token_ids: tuple[int, ...]
    positions: tuple[TokenLens, ...]
    receipt: Receipt | None = field(repr=False)
    raw: Mapping[str, Any] = field(repr=False)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, number: int) -> TokenLens:
        return self.positions[number]

    def __str__(self) -> str:
        """Return the most likely token after each layer, a line for each read token."""
        lines = []
        for one in self.positions:
            best = " ".join(f"{layer.layer}:{layer.tokens[0]!r}" for layer in one.layers)
            lines.append(f"{one.position:4} {one.token!r:>14} -> {best}")
        return "\n".join(lines)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> LogitLens:
        return cls(
            model=body["model"],
            token_ids=tuple(body["token_ids"]),
            positions=tuple(
                TokenLens(
                    one["position"],
                    one["token"],
                    one["next"],
                    tuple(_prediction(layer) for layer in one["layers"]),
                )
                for one in body["data"]
            ),
            receipt=Receipt.read(body.get("millm")),
            raw=body,
        )


def _prediction(body: Mapping[str, Any]) -> LayerPrediction:
    following = body["next"] or {}
    return LayerPrediction(
        layer=body["layer"],
        tokens=tuple(one["token"] for one in body["top"]),
        token_ids=tuple(one["id"] for one in body["top"]),
        logprobs=tuple(one["logprob"] for one in body["top"]),
        next_logprob=following.get("logprob"),
        next_rank=following.get("rank"),
    )


@dataclass(frozen=True)
class FeatureNode:
    """A feature at a token. ``attribution``: its activation times the gradient of the metric."""

    index: int
    label: str
    position: int
    activation: float
    attribution: float


@dataclass(frozen=True, eq=False)
class Attribution:
    """The features that led to ``token`` after the last of ``tokens``, the largest effect first.

    ``value`` is the explained metric, ``logprob`` the token's log-probability. ``errors`` and ``biases`` ``[tokens]``:
    what the SAE's error and decoder bias contribute. All attributions, ``other`` (the features that are not listed),
    errors and biases add up to ``total``. ``raw`` is the server's answer.
    """

    model: str
    sae: str
    layer: int
    site: str
    metric: Metric
    value: float
    token: str
    token_id: int
    logprob: float
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    features: tuple[FeatureNode, ...]
    other: float
    errors: NDArray[np.float64]
    biases: NDArray[np.float64]
    total: float
    receipt: Receipt | None = field(repr=False)
    raw: Mapping[str, Any] = field(repr=False)

    def by_feature(self) -> dict[int, float]:
        """Return the sum of each listed feature over all tokens, the largest size first."""
        sums: dict[int, float] = {}
        for node in self.features:
            sums[node.index] = sums.get(node.index, 0.0) + node.attribution
        return dict(sorted(sums.items(), key=lambda pair: -abs(pair[1])))

    def __str__(self) -> str:
        """Return the ten nodes with the largest effect."""
        lines = [f"{self.token!r} after {self.tokens[-1]!r}: {self.metric} {self.value:.3f}"]
        for node in self.features[:10]:
            place = f"{self.tokens[node.position]!r} ({node.position})"
            lines.append(f"{node.attribution:+9.4f}  #{node.index} {node.label} at {place}")
        return "\n".join(lines)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Attribution:
        return cls(
            model=body["model"],
            sae=body["sae"],
            layer=body["layer"],
            site=body["site"],
            metric=body["metric"],
            value=body["value"],
            token=body["target"]["token"],
            token_id=body["target"]["id"],
            logprob=body["target"]["logprob"],
            tokens=tuple(body["tokens"]),
            token_ids=tuple(body["token_ids"]),
            features=tuple(
                FeatureNode(one["index"], one["label"] or "", one["position"], one["activation"], one["attribution"])
                for one in body["features"]
            ),
            other=body["other"]["attribution"],
            errors=np.array(body["errors"]),
            biases=np.array(body["biases"]),
            total=body["total"],
            receipt=Receipt.read(body.get("millm")),
            raw=body,
        )


def save_graph(graph: Mapping[str, Any], path: str | Path) -> None:
    """Write a graph in circuit-tracer's JSON."""
    Path(path).write_text(json.dumps(graph), encoding="utf-8")
