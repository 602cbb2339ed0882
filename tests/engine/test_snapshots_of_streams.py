"""What is swapped or edited while sequences run: they keep what they began with, and it is freed after them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import torch

from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.interventions import Intervention, Site, VectorEdit
from tests.builders import build_model, build_request
from tests.engine.harness import EngineHarness, reference_tokens
from tests.engine.test_loop import Mailbox, streaming


def edit(strength: float) -> Intervention:
    """A profile's version: another strength is another fingerprint."""
    return Intervention(f"strength {strength}", (VectorEdit(Site(1), torch.full((32,), strength)),))


def test_a_running_sequence_keeps_its_version_of_an_edited_profile(llama):
    alone = {s: EngineHarness(llama).generate(max_tokens=20, intervention=edit(s)).token_ids for s in (0.2, 0.9)}
    assert alone[0.2] != alone[0.9]
    harness = EngineHarness(llama)
    before = harness.add(max_tokens=20, intervention=edit(0.2))
    for _ in range(5):
        harness.step()
    after = harness.add(max_tokens=20, intervention=edit(0.9))
    harness.run()
    assert (before.token_ids, after.token_ids) == (alone[0.2], alone[0.9])


def test_a_profile_s_tensors_are_freed_with_its_last_sequence(llama):
    harness = EngineHarness(llama)
    intervention = edit(0.2)
    vector = weakref.ref(intervention.edits[0].vector)
    first = harness.add(max_tokens=3, intervention=intervention)
    second = harness.add(max_tokens=9, intervention=intervention)
    del intervention
    while not first.is_ended:
        harness.step()
    gc.collect()
    assert vector() is not None
    harness.run()
    gc.collect()
    assert second.finished
    assert vector() is None


def test_a_model_that_is_replaced_ends_its_sequences_and_is_freed(tmp_path):
    mailbox = Mailbox()
    loop = EngineLoop(EngineConfig(), mailbox.publish)
    loop.start()
    try:
        old = loaded_with(1, tmp_path / "old")
        module = weakref.ref(old.module)
        loop.attach(old).result(10)
        new = loaded_with(2, tmp_path / "new")  # first: the sequence must not end while it loads
        loop.submit([build_request(max_tokens=240)], "running")
        streaming(mailbox, "running")
        loop.attach(new).result(10)
        assert mailbox.ended("running").failed.code == "model_unloaded"
        loop.submit([build_request()], "next")
        assert mailbox.ended("next").token_ids == reference_tokens(new, (5, 6, 7), 8)
        assert reference_tokens(new, (5, 6, 7), 8) != reference_tokens(old, (5, 6, 7), 8)
        del old
        gc.collect()
        assert module() is None
    finally:
        loop.stop(0)


def loaded_with(seed: int, path: Path) -> LoadedModel:
    return load_model(ModelSpec("tiny", build_model(path, seed=seed), dtype="float32", device="cpu"))
