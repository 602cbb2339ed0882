"""A feature's activations on a text of the user's, computed in the engine."""

from __future__ import annotations

from typing import Any

from inference.interventions import Site
from steering.models import Feature
from steering.residuals import open_engine_reader
from steering.sae_registry.loaded_sae import load_registered_sae

MAX_TOKENS = 512


def activations_on(feature: Feature, text: str) -> dict[str, Any]:
    """Return the tokens of a text and the feature's activation on each, 0 on special tokens.

    Loads the model and the SAE if necessary. Raise MillmError: errors of loading and of the engine.
    """
    import torch

    sae = feature.sae
    encoder = load_registered_sae(sae).encoder
    site = Site(sae.layer, sae.site)  # type: ignore[arg-type]  # the row's choices
    with open_engine_reader(sae.model) as reader:
        ids = reader.text.encode(text)[:MAX_TOKENS]
        if not ids:
            return {"tokens": [], "values": []}
        with torch.inference_mode():
            values = encoder.encode(reader.read(ids, (site,))[site])[:, feature.index].tolist()
        special = reader.text.special_token_ids
        tokens = [reader.text.token_bytes(i).decode("utf-8", "replace") for i in ids]
    return {"tokens": tokens, "values": [0.0 if i in special else v for i, v in zip(ids, values, strict=True)]}
