"""An attribution as a graph in the JSON of circuit-tracer (schema version 1), which its viewer and Neuronpedia open.

Nodes are features, errors, tokens and the logit; each feature and error links to the logit with its attribution.
``influence`` is cumulative, as there: the share of all links' sizes that nodes up to this one have. Decoder biases and
features that the attribution does not list have no node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Literal

from typing_extensions import TypedDict

from openai_api.analysis.schemas import AttributionBody

NodeType = Literal["cross layer transcoder", "mlp reconstruction error", "embedding", "logit"]


class GraphMetadata(TypedDict):
    slug: str
    scan: str
    transcoder_list: list[str]
    prompt_tokens: list[str]
    prompt: str
    node_threshold: float | None
    schema_version: int


class GraphParams(TypedDict):
    pinnedIds: list[str]
    supernodes: list[list[str]]
    linkType: str
    clickedId: str
    sg_pos: str


class GraphNode(TypedDict):
    """A node. The viewer shows ``clerp`` as its label."""

    node_id: str
    feature: int
    layer: str
    ctx_idx: int
    feature_type: NodeType
    token_prob: float
    is_target_logit: bool
    run_idx: int
    reverse_ctx_idx: int
    jsNodeId: str
    clerp: str
    influence: float | None
    activation: float | None


class GraphLink(TypedDict):
    source: str
    target: str
    weight: float


class GraphBody(TypedDict):
    metadata: GraphMetadata
    qParams: GraphParams
    nodes: list[GraphNode]
    links: list[GraphLink]


def graph_body(found: AttributionBody, *, num_layers: int, slug: str) -> GraphBody:
    """Return the graph. ``scan`` is the SAE's name, and ``slug`` names the graph."""
    logit = _logit(found, num_layers)
    weighted = sorted([*_features(found), *_errors(found)], key=lambda one: -abs(one[1]))
    sizes = list(accumulate(abs(weight) for _, weight in weighted))
    for (node, _), reached in zip(weighted, sizes, strict=True):
        node["influence"] = reached / sizes[-1] if sizes[-1] else 0.0
    tokens = [
        _node(f"E_{token}_{place}", "embedding", place, "E", place, js=f"E_{token}-{place}")
        for place, token in enumerate(found["token_ids"])
    ]
    return {
        "metadata": {
            "slug": slug,
            "scan": found["sae"],
            "transcoder_list": [],
            "prompt_tokens": found["tokens"],
            "prompt": "".join(found["tokens"]),
            "node_threshold": None,
            "schema_version": 1,
        },
        "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
        "nodes": [*(node for node, _ in weighted), *tokens, logit],
        "links": [
            {"source": node["node_id"], "target": logit["node_id"], "weight": weight} for node, weight in weighted
        ],
    }


def _logit(found: AttributionBody, num_layers: int) -> GraphNode:
    target, contrast, place = found["target"], found["contrast"], found["position"]
    layer, probability = str(num_layers + 1), math.exp(target["logprob"] or 0.0)
    words = target["token"] if contrast is None else f"{target['token']} over {contrast['token']}"
    node = _node(f"{layer}_{target['id']}_{place}", "logit", target["id"], layer, place, js=f"L_{target['id']}-{place}")
    node["token_prob"], node["is_target_logit"] = probability, True
    node["clerp"] = f'Output "{words}" (p={probability:.3f})'
    return node


def _features(found: AttributionBody) -> Iterator[tuple[GraphNode, float]]:
    layer = found["layer"]
    for one in found["features"]:
        index, place = one["index"], one["position"]
        number = (layer + index) * (layer + index + 1) // 2 + index  # Cantor's pairing, as the viewer expects
        name, label = f"{layer}_{index}", one["label"] or ""
        node = _node(
            f"{name}_{place}", "cross layer transcoder", number, str(layer), place, js=f"{name}-0", clerp=label
        )
        node["activation"] = one["activation"]
        yield node, one["attribution"]


def _errors(found: AttributionBody) -> Iterator[tuple[GraphNode, float]]:
    layer = found["layer"]
    for place, (error, token) in enumerate(zip(found["errors"], found["tokens"], strict=True)):
        words = f'Error of {found["sae"]} at "{token}"'
        name = f"error_{layer}_{place}"
        yield _node(name, "mlp reconstruction error", -1, str(layer), place, js=f"{name}-0", clerp=words), error


def _node(node_id: str, kind: NodeType, feature: int, layer: str, place: int, *, js: str, clerp: str = "") -> GraphNode:
    return {
        "node_id": node_id,
        "feature": feature,
        "layer": layer,
        "ctx_idx": place,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": js,
        "clerp": clerp,
        "influence": None,
        "activation": None,
    }
