"""POST /v1/logit_lens: the next tokens that the residual after each layer predicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from django.http.response import HttpResponseBase

from inference.analyses import MAX_LENS_ROWS
from inference.captures import CaptureSpec, Span
from inference.client import LensEvent, LensRequest
from inference.interventions import Site
from inference.registry.model_card import ModelCard
from openai_api.analysis.schemas import DEFAULT_TOP_K, LogitLensRequest, TextLensBody, TokenLensBody
from openai_api.analysis.text import TOO_LARGE, TokenText, analyse, capture, read_text
from openai_api.generation.prompt import off_loop
from openai_api.generation.stats import usage_body
from openai_api.generation.target import Target, resolve_target
from openai_api.generation.token_text import finite
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.schemas.activations import Ends


async def create_logit_lens(call: Call) -> HttpResponseBase:
    request = call.read(LogitLensRequest)
    target = await resolve_target(call, request)
    text = await read_text(request, target)
    top_k = request.top_k or DEFAULT_TOP_K
    body = await logit_lens(call, target, text, layers=request.layers, ranges=request.ranges, top_k=top_k)
    return json_response(body)


async def logit_lens(
    call: Call,
    target: Target,
    text: TokenText,
    *,
    layers: list[int] | None = None,
    ranges: Sequence[Ends] | None = None,
    top_k: int = DEFAULT_TOP_K,
) -> TextLensBody:
    """Capture the residuals after the layers, and predict from each. Raises MillmError."""
    layers = _checked_layers(layers, target.model)
    spans = [Span(*ends) for ends in ranges] if ranges else [Span()]
    places = CaptureSpec(site=Site(0), spans=tuple(spans)).places(0, len(text.ids), len(text.prompt))
    if not places:
        raise invalid(f"`ranges` selects none of the {len(text.ids)} tokens.", param="ranges")
    if (rows := len(layers) * len(places)) > MAX_LENS_ROWS:
        message = f"The lens would have {rows} rows (layers x tokens); the limit is {MAX_LENS_ROWS}. Send `ranges`."
        raise invalid(message, param="ranges", code=TOO_LARGE)
    captured = await capture(call, target, text, [Site(layer) for layer in layers], spans)
    following = [text.ids[place + 1] if place + 1 < len(text.ids) else 0 for place in places]
    found = await analyse(
        call,
        LensRequest(
            request_id=f"{call.id}/lens",
            model=target.model.record.name,
            residuals=np.concatenate(captured.residuals),
            count=min(top_k, target.model.vocab_size),
            targets=tuple(following) * len(layers),
        ),
        LensEvent,
    )
    data = await off_loop(lambda: _data(found, target, text, layers, places), size=rows * found.tokens.shape[1])
    body: TextLensBody = {
        "object": "logit_lens",
        "model": target.model.record.name,
        "token_ids": list(text.ids),
        "data": data,
        "usage": usage_body(captured.stats.usage),
    }
    if captured.millm is not None:
        body["millm"] = captured.millm
    return body


def _checked_layers(layers: list[int] | None, model: ModelCard) -> list[int]:
    last = max(site.layer for site in model.sites)
    layers = list(range(last + 1)) if layers is None else layers
    if max(layers) > last:
        raise invalid(f"`layers` must be 0 to {last} for this model, got {max(layers)}.", param="layers")
    return layers


def _data(
    found: LensEvent, target: Target, text: TokenText, layers: Sequence[int], places: Sequence[int]
) -> list[TokenLensBody]:
    words = target.model.text.token_text

    def of_place(number: int, place: int) -> TokenLensBody:
        has_next = place + 1 < len(text.ids)
        rows = [layer * len(places) + number for layer in range(len(layers))]
        return {
            "position": place,
            "id": text.ids[place],
            "token": words(text.ids[place]),
            "next": words(text.ids[place + 1]) if has_next else None,
            "layers": [
                {
                    "layer": layer,
                    "top": [
                        {"id": token, "token": words(token), "logprob": finite(logprob)}
                        for token, logprob in zip(found.tokens[row].tolist(), found.logprobs[row].tolist(), strict=True)
                    ],
                    "next": {"logprob": finite(float(found.target_logprobs[row])), "rank": int(found.target_ranks[row])}
                    if has_next
                    else None,
                }
                for layer, row in zip(layers, rows, strict=True)
            ],
        }

    return [of_place(number, place) for number, place in enumerate(places)]
