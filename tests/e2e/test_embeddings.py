"""The official openai client, an embedding model and a server process."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from transformers import AutoTokenizer

from tests import database, live
from tests.conftest import site_environment
from tests.database import Content
from tests.embedding_builders import build_embedder, reference_vector

TEXTS = ["The cat sat.", "a", "the cat sat, and sat, and sat."]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenAI, Path]]:
    """A client, and the directory of the model ``vectors``."""
    path = build_embedder(tmp_path_factory.mktemp("embedder"))
    with database.own_database(Content.SCHEMA) as url:
        environment = site_environment(url, tmp_path_factory.mktemp("site"))
        live.manage("add_model", "vectors", str(path), "--dtype", "float32", environment=environment)
        with live.serving(environment=environment) as running:
            yield OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0), path
            assert running.stop() == 0, running.output


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_vectors_are_the_model_s_own(server, encoding):
    client, path = server
    tokenizer = AutoTokenizer.from_pretrained(path)
    options = {} if encoding is None else {"encoding_format": encoding}
    response = client.embeddings.create(model="vectors", input=TEXTS, **options)

    assert response.usage.prompt_tokens == sum(len(tokenizer(text).input_ids) for text in TEXTS)
    for item, text in zip(response.data, TEXTS, strict=True):
        value = item.embedding
        if encoding == "base64":  # the client decodes only what it asked for itself
            value = np.frombuffer(base64.b64decode(value), "<f4")
        wanted = reference_vector(path, tokenizer(text).input_ids, "mean")
        np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-5)


def test_token_ids_and_dimensions(server):
    client, path = server
    ids = [[2, 7, 9, 3], [2, 11, 3]]
    response = client.embeddings.create(model="vectors", input=ids, dimensions=8)
    wanted = reference_vector(path, ids[0], "mean")[:8]

    assert response.usage.total_tokens == 7
    np.testing.assert_allclose(response.data[0].embedding, wanted / np.linalg.norm(wanted), rtol=1e-3, atol=1e-5)


def test_it_does_not_chat(server):
    with pytest.raises(BadRequestError) as caught:
        server[0].chat.completions.create(model="vectors", messages=[{"role": "user", "content": "Hi"}])

    assert caught.value.code == "wrong_model_kind"
