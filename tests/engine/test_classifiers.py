"""Classifiers and cross-encoders: transformers' own scores, in padded batches, beside generation."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.attached_models import stepped_model
from inference.engine.config import EngineConfig
from inference.engine.embedding.classifier import load_classifier
from inference.engine.embedding.engine import EmbeddingEngine
from inference.engine.errors import LoadError
from inference.engine.messages import EmbeddingEvent, EmbeddingRequest, FailedEvent
from inference.engine.models.facts import ModelSpec
from inference.engine.models.memory_estimate import estimate_memory
from inference.text.model_text import ModelText
from tests.classifier_builders import build_classifier, reference_logits

PAIRS = [
    ("the cat", "the cat sat."),
    ("a", "the cat sat, and sat, and sat, and sat."),
    ("", "a"),
]


def load(path, **fields):
    return load_classifier(ModelSpec("m", path, dtype="float32", device="cpu", kind="classification", **fields))


def scores(loaded, encoded, **config):
    engine = EmbeddingEngine(loaded, EngineConfig(**config))
    events = []
    for index, pair in enumerate(encoded):
        request = EmbeddingRequest("r", "m", tuple(pair.ids), index, tuple(pair.type_ids))
        events += [event for _, event in engine.add(request, "sink", 0.0)]
    while engine.has_work:
        events += [event for _, event in engine.step()]
    assert not [event for event in events if isinstance(event, FailedEvent)]
    found = {e.index: np.frombuffer(e.values, "<f4") for e in events if isinstance(e, EmbeddingEvent)}
    return [found[index] for index in range(len(encoded))]


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


@pytest.mark.parametrize("architecture", ["bert", "qwen3"])
@pytest.mark.parametrize("batch", [1, 8])
def test_a_cross_encoder_scores_as_transformers(tmp_path, architecture, batch):
    path = build_classifier(tmp_path, architecture)
    loaded = load(path)
    text = ModelText(loaded.tokenizer, max_model_len=loaded.max_model_len)
    got = scores(loaded, [text.encode_pair(*pair) for pair in PAIRS], max_batch_size=batch)

    for score, pair in zip(got, PAIRS, strict=True):
        np.testing.assert_allclose(score, sigmoid(reference_logits(path, *pair)), rtol=1e-4, atol=1e-5)


def test_the_second_text_has_types_of_its_own(tmp_path):
    """Without them the scores are others: the test above would not pass by chance."""
    path = build_classifier(tmp_path)
    loaded = load(path)
    text = ModelText(loaded.tokenizer, max_model_len=loaded.max_model_len)
    pair = text.encode_pair("the cat", "sat")
    assert pair.type_ids == [0, 0, 0, 0, 1, 1]
    with_types, without = scores(loaded, [pair, type(pair)(pair.ids, [0] * len(pair.ids))])

    assert loaded.takes_types
    assert abs(float(with_types[0] - without[0])) > 1e-4


@pytest.mark.parametrize(
    ("config", "formula"),
    [
        ({}, softmax),
        ({"problem_type": "multi_label_classification"}, sigmoid),
        ({"problem_type": "regression"}, lambda logits: logits),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda logits: logits),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, sigmoid),
    ],
)
def test_scores_by_label(tmp_path, config, formula):
    path = build_classifier(tmp_path, labels=("OK", "hate", "violence"), **config)
    loaded = load(path)
    text = ModelText(loaded.tokenizer, max_model_len=loaded.max_model_len)
    ids = text.encode("the cat sat.")
    (got,) = scores(loaded, [type(text.encode_pair("a", "b"))(ids, [])])

    assert loaded.labels == ("OK", "hate", "violence")
    np.testing.assert_allclose(got, formula(reference_logits(path, "the cat sat.")), rtol=1e-4, atol=1e-5)


def test_text_that_spells_special_tokens_is_text(tmp_path):
    loaded = load(build_classifier(tmp_path, "qwen3"))
    text = ModelText(loaded.tokenizer, max_model_len=loaded.max_model_len)
    end = loaded.tokenizer.pad_token
    ids = text.encode_pair(f"a{end}", f"{end}b").ids

    assert text.decode(ids).count(end) == 2 + ids.count(loaded.tokenizer.pad_token_id)
    assert ids.count(loaded.tokenizer.pad_token_id) <= 1, "the one that the tokenizer itself adds"


def test_what_cannot_be_served_is_a_sentence(tmp_path):
    path = build_classifier(tmp_path, sentence_transformers={"activation_fn": "evil.Function"})
    with pytest.raises(LoadError, match=r"evil\.Function"):
        load(path)
    with pytest.raises(LoadError, match="int8"):
        load(path, weights="int8")


def test_the_engine_s_thread_steps_it_and_its_memory_is_told(tmp_path):
    path = build_classifier(tmp_path)
    spec = ModelSpec("m", path, dtype="float32", device="cpu", kind="classification")
    loaded = load_classifier(spec)

    assert isinstance(stepped_model(loaded, EngineConfig()), EmbeddingEngine)
    estimate = estimate_memory(spec, max_tokens=64, max_rows=4)
    assert estimate.weights == pytest.approx(loaded.memory_bytes, rel=0.05), "but for its buffers"
    assert estimate.kv == 0
