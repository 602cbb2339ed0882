"""POST /v1/embeddings: from texts or token ids to vectors."""

from __future__ import annotations

import base64

import numpy as np
from django.http.response import HttpResponseBase
from numpy.typing import NDArray

from inference.client import EmbeddingRequest
from inference.registry.model_card import ModelCard
from openai_api.endpoints.completions import encode_prompts
from openai_api.generation.target import resolve_unsteered
from openai_api.generation.vectors import check_lengths, vectors_of
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.schemas.bodies import EmbeddingBody, EmbeddingsBody
from openai_api.schemas.embeddings import EmbeddingsRequest


async def create_embeddings(call: Call) -> HttpResponseBase:
    request = call.read(EmbeddingsRequest)
    model = await resolve_unsteered(call, request.model, "embedding")
    check_dimensions(request.dimensions, model)
    texts = await encode_prompts(model, request.input, param="input")
    check_lengths(texts, model)
    num_tokens = sum(map(len, texts))
    await call.reserve_tokens(num_tokens)
    vectors = await embed(call, model, texts)
    body: EmbeddingsBody = {
        "object": "list",
        "data": [embedding_body(index, vector, request) for index, vector in enumerate(vectors)],
        "model": model.record.name,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return json_response(body)


async def embed(call: Call, model: ModelCard, texts: list[list[int]]) -> list[bytes]:
    """Return the vectors of the texts, in order. Raises MillmError."""
    requests = [
        EmbeddingRequest(f"{call.id}/{i}", model.record.name, tuple(ids), i, priority=call.priority)
        for i, ids in enumerate(texts)
    ]
    return await vectors_of(call, requests)


def check_dimensions(dimensions: int | None, model: ModelCard) -> None:
    if dimensions is not None and dimensions > model.dimensions:
        message = f"`dimensions` must be at most {model.dimensions} for this model, got {dimensions}."
        raise invalid(message, param="dimensions")


def embedding_body(index: int, values: bytes, request: EmbeddingsRequest) -> EmbeddingBody:
    vector = np.frombuffer(values, "<f4")
    if request.dimensions is not None:
        vector = shorten(vector, request.dimensions)
    is_base64 = request.encoding_format == "base64"
    return {
        "object": "embedding",
        "index": index,
        "embedding": base64.b64encode(vector.tobytes()).decode() if is_base64 else vector.tolist(),
    }


def shorten(vector: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """Return the first ``dimensions`` numbers, normalised to length 1 (zeros stay zeros)."""
    kept = vector[:dimensions].astype(np.float64)
    return (kept / (np.linalg.norm(kept) or 1.0)).astype("<f4")
