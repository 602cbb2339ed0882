"""What a load's faults are told as."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.engine.config import EngineConfig
from inference.engine.errors import LoadError, NotEnoughMemoryError
from inference.engine.loop import EngineLoop
from inference.engine.models.load_faults import enough_memory, readable_files
from tests.builders import build_request
from tests.engine.harness import reference_tokens
from tests.engine.test_loop import Mailbox

PLACE = Path("/models/m")


def allocate() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def wrapped() -> None:
    try:
        allocate()
    except RuntimeError as error:
        raise ValueError("could not read the shard") from error


def unmapped() -> None:
    raise OSError(12, "Cannot allocate memory")


def on_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("act", [allocate, wrapped, unmapped, on_a_gpu])
def test_want_of_memory_is_told_as_such_whoever_raises_it(act):
    told = pytest.raises(
        NotEnoughMemoryError, match="m could not be loaded: out of memory, although the estimate fitted"
    )
    with told, enough_memory("m"), readable_files("m", PLACE):
        act()


def test_what_is_wrong_with_files_is_told_with_their_place():
    told = pytest.raises(LoadError, match="m could not be loaded from /models/m: KeyError: 'gone'")
    with told as caught, enough_memory("m"), readable_files("m", PLACE):
        {}["gone"]
    assert not isinstance(caught.value, NotEnoughMemoryError)


def test_our_own_faults_are_not_blamed_on_the_files():
    with pytest.raises(ZeroDivisionError), enough_memory("m"), readable_files("m", PLACE):
        1 / 0  # noqa: B018


def test_a_cache_that_memory_is_too_short_for_leaves_the_engine_and_the_other_models_alone(llama):
    """The model itself was loaded; its keys and values find no room when it is attached."""
    from dataclasses import replace

    mailbox = Mailbox()
    loop = EngineLoop(EngineConfig(), mailbox.publish)
    loop.start()
    loop.attach(llama).result(10)
    loop.submit([build_request(max_tokens=200)], "running")
    with pytest.raises(LoadError, match="second needs at least"):
        loop.attach(replace(llama, name="second"), kv_bytes=1000).result(10)

    assert mailbox.ended("running").token_ids == reference_tokens(llama, (5, 6, 7), 200)
    assert loop.stats().models == ("tiny",)
    loop.attach(replace(llama, name="second")).result(10)
    loop.stop(0)
