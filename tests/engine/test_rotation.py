"""Models with work share the engine's time."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest

from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.engine.scheduling.rotation import Rotation
from tests.builders import build_request
from tests.engine.test_loop import Mailbox


def play(rotation, costs, steps):
    """Step models that always have work; returns the names in order."""
    order = []
    for _ in range(steps):
        name = rotation.next(list(costs))
        rotation.note(name, costs[name])
        order.append(name)
    return order


def test_equal_steps_take_turns():
    assert play(Rotation(), {"a": 0.01, "b": 0.01, "c": 0.01}, 6) == ["a", "b", "c"] * 2


@pytest.mark.parametrize("slow_s", [0.02, 0.1, 0.4])
def test_time_is_shared_and_not_steps(slow_s):
    costs = {"prompts": slow_s, "decodes": 0.01}
    order = Counter(play(Rotation(), costs, 2000))

    assert order["prompts"] * slow_s == pytest.approx(order["decodes"] * 0.01, rel=0.05)


def test_a_very_long_step_costs_the_others_a_bounded_wait():
    costs = {"huge": 10.0, "decodes": 0.01}
    order = play(Rotation(max_lag_s=0.5), costs, 300)
    pauses = [len(part) for part in "".join(name[0] for name in order).split("h")[1:-1]]

    assert pauses
    assert all(49 <= pause <= 51 for pause in pauses), "half a second of small steps after each huge one"


def test_who_comes_back_neither_has_saved_up_nor_owes():
    rotation = Rotation()
    play(rotation, {"a": 0.01}, 1000)
    shared = Counter(play(rotation, {"a": 0.01, "b": 0.01}, 100))
    assert shared == {"a": 50, "b": 50}
    play(rotation, {"b": 0.01}, 1000)

    assert Counter(play(rotation, {"a": 0.01, "b": 0.01}, 100)) == {"a": 50, "b": 50}


def test_a_model_that_went_is_forgotten():
    rotation = Rotation()
    play(rotation, {"a": 5.0, "b": 0.1}, 10)
    assert play(rotation, {"b": 0.1}, 3) == ["b"] * 3
    assert set(rotation._used_s) == {"b"}


def test_a_model_with_slow_prompts_does_not_take_the_time_of_one_that_decodes(loaded_models):
    """100 ms for each chunk of a long prompt. In turns, the other model would make one token meanwhile."""
    mailbox = Mailbox()
    loop = EngineLoop(EngineConfig(max_prefill_tokens=16), mailbox.publish)
    loop.start()
    slow = loaded_models["qwen3"].module.register_forward_pre_hook(lambda module, inputs: time.sleep(0.1))
    try:
        for name, architecture in (("prompts", "qwen3"), ("decodes", "llama")):
            loop.attach(replace(loaded_models[architecture], name=name)).result(10)
        loop.submit([build_request(model="decodes", max_tokens=250)], "decodes")
        mailbox.wait(lambda: len(mailbox.of("decodes").token_ids) > 2)
        loop.submit([build_request(tuple(range(5, 165)), model="prompts", max_tokens=1)], "prompts")
        before = len(mailbox.of("decodes").token_ids)
        mailbox.ended("prompts")
        num_decoded = len(mailbox.of("decodes").token_ids) - before
    finally:
        slow.remove()
        loop.stop(0)

    assert num_decoded >= 3 * 10, f"{num_decoded} tokens beside 10 chunks"
