"""Embedding models: as transformers and the formulas of sentence-transformers say, in batches, beside generation."""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from inference.engine.config import EngineConfig
from inference.engine.embedding.embedder import Pooling, load_embedder, read_pooling
from inference.engine.embedding.engine import EmbeddingEngine
from inference.engine.errors import LoadError
from inference.engine.loop import EngineLoop
from inference.engine.messages import BACKGROUND_PRIORITY, EmbeddingEvent, EmbeddingRequest, FailedEvent, FinishedEvent
from inference.engine.models.facts import ModelSpec
from inference.engine.models.memory_estimate import estimate_memory
from tests.builders import build_request
from tests.embedding_builders import build_embedder, reference_vector, write_pipeline
from tests.engine.harness import reference_tokens
from tests.engine.test_loop import Mailbox

TEXTS = [[2, 7, 3], [2, 9, 8, 7, 6, 5, 4, 3], [2, 3], [2, *range(5, 35), 3], [2, 11, 12, 13, 3]]


def load(path, **fields):
    return load_embedder(ModelSpec("m", path, dtype="float32", device="cpu", kind="embedding", **fields))


def vectors(events):
    return {e.index: np.frombuffer(e.values, "<f4") for e in events if isinstance(e, EmbeddingEvent)}


def run(engine, texts=TEXTS):
    """Embed all texts; returns the events in order, and the number of steps."""
    events = []
    for index, ids in enumerate(texts):
        events += [event for _, event in engine.add(EmbeddingRequest("r", "m", tuple(ids), index), "sink", 0.0)]
    steps = 0
    while engine.has_work:
        events += [event for _, event in engine.step()]
        steps += 1
    return events, steps


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("architecture", ["bert", "qwen3"])
def test_vectors_are_those_of_transformers_and_the_pipeline(tmp_path, architecture, pooling, is_normalized):
    path = build_embedder(tmp_path, architecture, pooling=pooling, is_normalized=is_normalized)
    events, steps = run(EmbeddingEngine(load(path), EngineConfig()))
    got = vectors(events)

    assert steps == 1, "texts of different lengths share a batch"
    for index, ids in enumerate(TEXTS):
        wanted = reference_vector(path, ids, pooling, is_normalized=is_normalized)
        np.testing.assert_allclose(got[index], wanted, rtol=1e-4, atol=1e-5)
        assert np.isclose(np.linalg.norm(got[index]), 1, atol=1e-5) == is_normalized


@pytest.mark.parametrize(("architecture", "pooling"), [("bert", "mean"), ("qwen3", "lasttoken")])
def test_the_default_without_a_pipeline(tmp_path, architecture, pooling):
    path = build_embedder(tmp_path, architecture, pooling=None)
    got = vectors(run(EmbeddingEngine(load(path), EngineConfig()))[0])

    np.testing.assert_allclose(got[1], reference_vector(path, TEXTS[1], pooling), rtol=1e-4, atol=1e-5)


def test_each_text_ends_once_and_counts_its_tokens(tmp_path):
    events, _ = run(EmbeddingEngine(load(build_embedder(tmp_path)), EngineConfig()))
    ends = [event for event in events if isinstance(event, FinishedEvent)]

    assert [end.index for end in ends] == list(range(len(TEXTS)))
    assert [end.usage.prompt_tokens for end in ends] == [len(ids) for ids in TEXTS]
    assert all(end.reason == "stop" for end in ends)


def test_a_step_has_no_more_tokens_than_a_chunk_unless_one_text_is_longer(tmp_path):
    loaded = load(build_embedder(tmp_path))
    shapes = []
    loaded.module.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    events, _ = run(EmbeddingEngine(loaded, EngineConfig(max_prefill_tokens=20, max_batch_size=2)))

    assert shapes == [(2, 8), (1, 2), (1, 32), (1, 5)]
    assert len(vectors(events)) == len(TEXTS)


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ((), "invalid_prompt"),
        ((-1,), "invalid_prompt"),
        ((10**6,), "invalid_prompt"),
        ((5,) * 129, "context_length_exceeded"),
    ],
)
def test_bad_texts_fail_alone(tmp_path, ids, code):
    events, _ = run(EmbeddingEngine(load(build_embedder(tmp_path)), EngineConfig()), [ids, TEXTS[0]])

    assert [(type(e), e.code) for e in events if e.index == 0] == [(FailedEvent, code)]
    assert list(vectors(events)) == [1]


@contextmanager
def raising(loaded, error, when):
    """The model raises on batches of token ids for which ``when`` holds; yields the shapes of all batches."""
    shapes = []

    def hook(module, args, kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))
        if when(kwargs["input_ids"]):
            raise error

    handle = loaded.module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield shapes
    finally:
        handle.remove()


POISON = 40  # a token of no other text


def test_a_poisoned_text_fails_alone_and_is_counted(tmp_path):
    path = build_embedder(tmp_path)
    loaded = load(path)
    engine = EmbeddingEngine(loaded, EngineConfig())
    with raising(loaded, RuntimeError("secret detail"), lambda ids: bool((ids == POISON).any())) as shapes:
        events, steps = run(engine, [*TEXTS[:2], [2, POISON, 3], *TEXTS[2:]])
    failed = [event for event in events if isinstance(event, FailedEvent)]
    got = vectors(events)

    assert steps == 1
    assert [(event.index, event.code) for event in failed] == [(2, "server_error")]
    assert "secret" not in failed[0].message
    assert len(shapes) <= 1 + 2 * 3, "it is looked for by halves"
    for index, ids in zip((0, 1, 3, 4, 5), TEXTS, strict=True):
        np.testing.assert_allclose(got[index], reference_vector(path, ids, "mean"), rtol=1e-4, atol=1e-5)
    assert engine.stats().step_faults == {"server_error": 4}  # of 6 texts, of 3, of 1 or 2, and alone


def test_a_model_that_makes_another_number_of_vectors_fails_its_texts_and_not_the_thread(tmp_path, monkeypatch):
    loaded = load(build_embedder(tmp_path))
    ours = type(loaded).vectors
    monkeypatch.setattr(type(loaded), "vectors", lambda *args: ours(*args)[1:])
    engine = EmbeddingEngine(loaded, EngineConfig())
    events, _ = run(engine, TEXTS[:2])
    assert [(e.index, e.code) for e in events if isinstance(e, FailedEvent)] == [
        (0, "server_error"),
        (1, "server_error"),
    ]


def test_texts_that_memory_is_too_short_for_together_are_embedded_in_halves(tmp_path):
    loaded = load(build_embedder(tmp_path))
    engine = EmbeddingEngine(loaded, EngineConfig())
    with raising(loaded, torch.OutOfMemoryError("no room"), lambda ids: ids.shape[0] > 2) as shapes:
        events, _ = run(engine, [[2, n, 3] for n in range(5, 9)])

    assert len(vectors(events)) == 4
    assert [texts for texts, _ in shapes] == [4, 2, 2]
    assert engine.stats().step_faults == {"out_of_memory": 1}


def test_a_text_that_memory_never_suffices_for_fails_alone(tmp_path):
    loaded = load(build_embedder(tmp_path))
    with raising(loaded, torch.OutOfMemoryError("no room"), lambda ids: ids.shape[1] > 20):
        events, _ = run(EmbeddingEngine(loaded, EngineConfig()))

    assert [(e.index, e.code) for e in events if isinstance(e, FailedEvent)] == [(3, "out_of_memory")]
    assert sorted(vectors(events)) == [0, 1, 2, 4]


def test_steps_are_counted_as_a_generating_model_s(tmp_path):
    engine = EmbeddingEngine(load(build_embedder(tmp_path)), EngineConfig(max_batch_size=3))
    _, steps = run(engine)
    stats = engine.stats()

    assert (steps, stats.step_seconds.count) == (2, 2)
    assert stats.step_sequences.total == len(TEXTS)
    assert stats.step_tokens.total == sum(map(len, TEXTS))
    assert stats.step_faults == {}


def test_vectors_that_are_not_finite_fail_alone(tmp_path):
    loaded = load(build_embedder(tmp_path))
    with torch.no_grad():
        loaded.module.embeddings.word_embeddings.weight[13] = float("nan")
    events, _ = run(EmbeddingEngine(loaded, EngineConfig()), [[2, 7, 3], [2, 13, 3]])

    assert list(vectors(events)) == [0]
    assert events[-1].code == "server_error"


def test_cancel_and_fail_all_end_what_waits(tmp_path):
    engine = EmbeddingEngine(load(build_embedder(tmp_path)), EngineConfig())
    for sink in ("a", "b", "a"):
        engine.add(EmbeddingRequest("r", "m", (2, 3)), sink, 0.0)
    assert [(sink, event.reason) for sink, event in engine.cancel("a")] == [("a", "cancelled")] * 2
    assert [(sink, event.code) for sink, event in engine.fail_all("model_unloaded", "gone")] == [
        ("b", "model_unloaded")
    ]
    assert not engine.has_work


def test_embedding_and_generating_models_share_the_engine_thread(tmp_path, llama):
    mailbox = Mailbox()
    loop = EngineLoop(EngineConfig(), mailbox.publish)
    loop.start()
    loop.attach(llama).result(10)
    path = build_embedder(tmp_path)
    loop.attach(load(path)).result(10)
    loop.submit([build_request(max_tokens=60)], "text")
    loop.submit([EmbeddingRequest("r", "m", tuple(ids), i) for i, ids in enumerate(TEXTS)], "vectors")
    events = mailbox.ended("vectors", len(TEXTS)).events
    assert mailbox.ended("text").token_ids == reference_tokens(llama, (5, 6, 7), 60)
    np.testing.assert_allclose(vectors(events)[3], reference_vector(path, TEXTS[3], "mean"), rtol=1e-4, atol=1e-5)

    loop.submit([build_request(model="m")], "wrong")
    assert mailbox.ended("wrong").failed.code == "wrong_model_kind"
    loop.submit([EmbeddingRequest("r", "tiny", (5, 6))], "wrong too")
    assert mailbox.ended("wrong too").failed.code == "wrong_model_kind"
    loop.stop(0)


def test_facts_of_an_embedder(tmp_path):
    loaded = load(build_embedder(tmp_path))

    assert (loaded.max_model_len, loaded.hidden_size, loaded.num_layers) == (128, 32, 3)
    assert load(tmp_path, max_seq_len=64).max_model_len == 64
    (tmp_path / "sentence_bert_config.json").unlink()
    assert load(tmp_path).max_model_len == 160


def test_memory_is_estimated_without_a_cache(tmp_path):
    loaded = load(build_embedder(tmp_path))
    spec = ModelSpec("m", tmp_path, dtype="float32", device="cpu", kind="embedding")
    estimate = estimate_memory(spec, max_tokens=256, max_rows=16)

    assert estimate.weights == pytest.approx(loaded.memory_bytes, rel=0.05)  # buffers: position ids
    assert estimate.kv == 0


def test_newer_pipelines_name_the_pooling(tmp_path):
    write_pipeline(tmp_path, "mean")
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))

    assert read_pooling(tmp_path, is_decoder=False) == Pooling("cls", is_normalized=True)


def _max_pooling(path):
    write_pipeline(path, "max")


def _dense(path):
    modules = json.loads((path / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (path / "modules.json").write_text(json.dumps(modules))


def _outside(path):
    modules = json.loads((path / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (path / "modules.json").write_text(json.dumps(modules))


def _no_pooling(path):
    (path / "1_Pooling" / "config.json").unlink()


def _broken(path):
    (path / "modules.json").write_text("[3]")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_max_pooling, "max_tokens is not supported"),
        (_dense, "the module Dense"),
        (_outside, "folder outside itself"),
        (_no_pooling, "could not be read"),
        (_broken, "could not be read"),
    ],
)
def test_a_pipeline_that_is_not_supported_is_a_readable_error(tmp_path, damage, told):
    damage(build_embedder(tmp_path))
    with pytest.raises(LoadError, match=told):
        load(tmp_path)


def test_texts_in_the_background_wait_for_all_others(tmp_path):
    engine = EmbeddingEngine(load(build_embedder(tmp_path)), EngineConfig(max_batch_size=2))
    for index, priority in enumerate([BACKGROUND_PRIORITY, 0, BACKGROUND_PRIORITY, 0, 0]):
        engine.add(EmbeddingRequest("r", "m", (2, 3), index, priority=priority), f"sink{index}", 0.0)
    assert engine.num_waiting == 5
    order = []
    while engine.has_work:
        order.append((engine.is_in_background, sorted(vectors([event for _, event in engine.step()]))))
    assert order == [(False, [1, 3]), (False, [4]), (True, [0, 2])]


def test_texts_in_the_background_are_cancelled_and_failed_like_others(tmp_path):
    engine = EmbeddingEngine(load(build_embedder(tmp_path)), EngineConfig())
    for index, sink in enumerate(["a", "b"]):
        engine.add(EmbeddingRequest("r", "m", (2, 3), index, priority=BACKGROUND_PRIORITY), sink, 0.0)
    assert [event.index for _, event in engine.cancel("a")] == [0]
    assert [event.index for _, event in engine.fail_all("model_unloaded", "It is gone.")] == [1]
    assert not engine.has_work
