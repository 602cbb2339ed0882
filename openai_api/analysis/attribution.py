"""POST /v1/attribution: which features of an SAE led to a token, by gradient times activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from django.http.response import HttpResponseBase
from numpy.typing import NDArray

from inference.analyses import MAX_TOKENS, attribution_sites
from inference.analyses import AttributionRequest as EngineRequest
from inference.captures import Span
from inference.client import AttributionEvent, LensEvent, LensRequest
from inference.interventions import Site
from openai_api.analysis.graph import graph_body
from openai_api.analysis.schemas import DEFAULT_NODES, AttributionBody, AttributionRequest, TargetBody
from openai_api.analysis.text import TOO_LARGE, CapturedText, TokenText, analyse, capture, place_text, read_text
from openai_api.backend import get_backend
from openai_api.generation.activations import find_loaded_sae
from openai_api.generation.prompt import off_loop
from openai_api.generation.sampling import check_token_ids
from openai_api.generation.stats import usage_body
from openai_api.generation.target import Target, resolve_target
from openai_api.generation.token_text import finite
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from steering.sae_registry.loaded_sae import LoadedSAE
from steering.spec.edit import SINK_FACTOR

RESIDUAL = ("resid_pre", "resid_post")


@dataclass(frozen=True, slots=True)
class _Question:
    """What is explained: the prediction at ``position`` of ``token`` (None: the most likely), over ``contrast``."""

    position: int
    token: int | None
    contrast: int | None


async def create_attribution(call: Call) -> HttpResponseBase:
    request = call.read(AttributionRequest)
    target = await resolve_target(call, request)
    body = await attribution(call, request, target, await read_text(request, target))
    if request.response_format == "circuit_tracer":
        return json_response(graph_body(body, num_layers=_num_layers(target), slug=call.id))
    return json_response(body)


async def attribution(call: Call, request: AttributionRequest, target: Target, text: TokenText) -> AttributionBody:
    """Capture the residuals from the SAE's site on, and let the engine differentiate. Raises MillmError."""
    sae = await find_loaded_sae(target.model, request.sae, param="sae")
    _check_site(sae, target)
    question = await _question(request, target, text)
    sites = attribution_sites(sae.site, _num_layers(target))
    captured = await capture(call, target, text, sites, [Span(0, question.position + 1)])
    steered = _steered_layers(captured, sae.site)
    token = question.token
    if token is None:
        token = await _most_likely(call, target, captured)
    ids = text.ids[: question.position + 1]
    asked = EngineRequest(
        request_id=f"{call.id}/attribution",
        model=target.model.record.name,
        token_ids=ids,
        residual=captured.residuals[0],
        inputs=captured.residuals[1:],
        reader=sae.ref,
        target=token,
        contrast=question.contrast,
        metric=request.metric or "logit",
        max_nodes=request.max_nodes or DEFAULT_NODES,
        steered_layers=steered,
        skipped_places=_skipped_places(target, ids, captured.residuals[0]),
    )
    event = await analyse(call, asked, AttributionEvent)
    labels = await get_backend().features().labels(sae.pk, set(event.features.tolist()))
    return await _body(target, sae, question, asked, event, labels, captured)


def _num_layers(target: Target) -> int:
    return 1 + max(site.layer for site in target.model.sites)


def _check_site(sae: LoadedSAE, target: Target) -> None:
    """Raise MillmError 400 unless the SAE reads and writes the model's residual stream."""
    if sae.read_site != sae.site or sae.site.kind not in RESIDUAL:
        message = f"Attribution needs an SAE of the residual stream; {sae.name} is at {sae.site.label}."
        raise invalid(message, param="sae", code="sae_not_in_residual")
    if sae.encoder.d_in != target.model.sites.get(sae.site):
        message = f"{sae.name} reads {sae.encoder.d_in} values at {sae.site.label}, which is not this model's residual."
        raise invalid(message, param="sae", code="sae_mismatch")


async def _question(request: AttributionRequest, target: Target, text: TokenText) -> _Question:
    last = len(text.ids) - 1
    position = last if request.position is None else request.position
    if position > last:
        raise invalid(f"`position` must be 0 to {last} for this text, got {position}.", param="position")
    if position >= MAX_TOKENS:
        message = (
            f"Attribution takes at most {MAX_TOKENS} tokens, got {position + 1}. Shorten the text before the token."
        )
        raise invalid(message, param="position", code=TOO_LARGE)
    token = await _token_id(target, request.token, "token")
    if token is None and position < last:
        token = text.ids[position + 1]
    contrast = await _token_id(target, request.contrast, "contrast")
    if contrast is not None and contrast == token:
        raise invalid("`contrast` must differ from the explained token.", param="contrast")
    return _Question(position, token, contrast)


async def _token_id(target: Target, value: str | int | None, param: str) -> int | None:
    if value is None or isinstance(value, int):
        if value is not None:
            check_token_ids([value], target.model.vocab_size, param=param)
        return value
    ids = await off_loop(lambda: target.model.text.encode_plain(value), size=len(value))
    if len(ids) != 1:
        message = (
            f"`{param}` must be one token of the model; the text is {len(ids)} tokens. Words often start with a space."
        )
        raise invalid(message, param=param)
    return ids[0]


async def _most_likely(call: Call, target: Target, captured: CapturedText) -> int:
    lens = LensRequest(
        request_id=f"{call.id}/next",
        model=target.model.record.name,
        residuals=captured.residuals[-1][-1:],
        count=1,
    )
    return int((await analyse(call, lens, LensEvent)).tokens[0, 0])


def _skipped_places(target: Target, ids: Sequence[int], residual: NDArray[np.float32]) -> frozenset[int]:
    """Return the places that SAEs are not trained on: special tokens, the first token, and attention sinks."""
    special = target.model.text.special_token_ids
    ordinary = [place for place, token_id in enumerate(ids) if place and token_id not in special]
    norms = np.linalg.norm(residual, axis=1)
    limit = SINK_FACTOR * np.median(norms[ordinary]) if ordinary else 0.0
    return frozenset(range(len(ids))) - {place for place in ordinary if norms[place] <= limit}


def _steered_layers(captured: CapturedText, site: Site) -> frozenset[int]:
    """Return the layers whose output steering changed on the way to the next input.

    Raises MillmError 400 for steering inside a layer that the gradient passes.
    """
    layers = set()
    for place in captured.steered:
        if not place.comes_after(site):
            continue
        if place.kind not in RESIDUAL:
            message = (
                f"The steering acts inside a layer after the SAE ({place.label}), which attribution does not support."
            )
            raise invalid(message, param="profile", code="steering_not_supported")
        layers.add(place.layer if place.kind == "resid_post" else place.layer - 1)
    return frozenset(layers)


async def _body(
    target: Target,
    sae: LoadedSAE,
    question: _Question,
    asked: EngineRequest,
    event: AttributionEvent,
    labels: dict[int, str],
    captured: CapturedText,
) -> AttributionBody:
    ids = list(asked.token_ids)
    words = await off_loop(lambda: place_text(target, ids), size=len(ids))
    body: AttributionBody = {
        "object": "attribution",
        "model": target.model.record.name,
        "sae": sae.name,
        "layer": sae.site.layer,
        "site": sae.site.kind,
        "metric": asked.metric,
        "value": event.metric,
        "position": question.position,
        "token_ids": ids,
        "tokens": words,
        "target": _target(target, asked.target, event),
        "contrast": None if question.contrast is None else _target(target, question.contrast, None),
        "features": [
            {
                "index": index,
                "label": labels.get(index),
                "position": place,
                "activation": activation,
                "attribution": attribution,
            }
            for index, place, activation, attribution in zip(
                event.features.tolist(),
                event.places.tolist(),
                event.activations.tolist(),
                event.attributions.tolist(),
                strict=True,
            )
        ],
        "other": {"count": event.num_active - len(event.features), "attribution": event.other},
        "errors": event.errors.tolist(),
        "biases": event.biases.tolist(),
        "skipped_positions": sorted(asked.skipped_places),
        "total": event.total,
        "usage": usage_body(captured.stats.usage),
    }
    if captured.millm is not None:
        body["millm"] = captured.millm
    return body


def _target(target: Target, token: int, event: AttributionEvent | None) -> TargetBody:
    return {
        "id": token,
        "token": target.model.text.token_text(token),
        "logit": None if event is None else event.logit,
        "logprob": None if event is None else finite(event.logprob),
    }
