"""The registry's view of media models: a stub for the worker, and no engine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.runtime import runtime
from core.snapshots import forget_snapshots
from inference.models import LanguageModel
from inference.registry.media import MEDIA_BACKEND, MediaUnavailableError
from inference.registry.model_card import MediaCard, ModelLoadFailedError, ModelNotReadyError, WrongKindError
from inference.registry.registry import ModelRegistry
from media.backend import MEDIA_CLIENT, WorkerBackend
from media.client import MediaClient
from tests.database import in_thread
from tests.inference.fakes import FakeLoop

pytestmark = pytest.mark.django_db(transaction=True)
STUB = (sys.executable, "-m", "tests.media.stub_worker")
State = LanguageModel.State


@pytest.fixture(autouse=True)
def _fresh_snapshots() -> Iterator[None]:
    forget_snapshots()
    yield
    forget_snapshots()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"architectures": ["VitsModel"]}')
    return tmp_path


@pytest.fixture
def registry(path: Path) -> Iterator[ModelRegistry]:
    registry = ModelRegistry(FakeLoop(), locate=lambda source, download: path)  # type: ignore[arg-type]
    yield registry
    registry.stop()


@pytest.fixture
def client(registry: ModelRegistry) -> Iterator[MediaClient]:
    client = MediaClient(on_death=registry.note_lost, command=STUB)
    runtime.install(MEDIA_BACKEND, WorkerBackend(client))
    yield client
    client.stop()
    runtime.remove(MEDIA_BACKEND)


async def add(name: str = "tts", **fields: Any) -> None:
    await in_thread(lambda: LanguageModel.objects.create(name=name, source="/nowhere", kind="speech", **fields))


async def state(name: str = "tts") -> str:
    return (await in_thread(lambda: LanguageModel.objects.get(name=name))).state


async def until_state(expected: str) -> None:
    async with asyncio.timeout(20):
        while await state() != expected:  # noqa: ASYNC110 - the registry has no event for it
            await asyncio.sleep(0.01)


async def test_a_model_is_loaded_on_the_first_request_and_unloaded(
    registry: ModelRegistry, client: MediaClient
) -> None:
    await add()
    card = await registry.ready_card("tts")
    assert isinstance(card, MediaCard)
    assert (card.kind, card.facts.architecture) == ("speech", "Stub")
    assert (await state(), registry.is_loaded("tts")) == (State.LOADED, True)
    pid = client.pid
    assert pid is not None
    registry.unload("tts").result()
    assert (await state(), client.pid) == (State.UNLOADED, None)


async def test_text_endpoints_refuse_it(registry: ModelRegistry, client: MediaClient) -> None:
    await add()
    with pytest.raises(WrongKindError, match="speech model"):
        await registry.ready("tts")


async def test_a_dead_worker_unloads_its_models_and_the_next_request_loads_them(
    registry: ModelRegistry, client: MediaClient
) -> None:
    await add()
    await registry.ready_card("tts")
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    await until_state(State.UNLOADED)
    card = await registry.ready_card("tts")  # after the pause
    assert isinstance(card, MediaCard)
    assert await state() == State.LOADED


async def test_a_broken_model_is_told(registry: ModelRegistry, client: MediaClient) -> None:
    await add("broken")
    with pytest.raises((ModelLoadFailedError, ModelNotReadyError), match="broken"):
        await registry.ready_card("broken")
    assert await state("broken") == State.FAILED


async def test_without_the_packages_the_error_names_the_extra(registry: ModelRegistry) -> None:
    await add()
    with pytest.raises(ModelLoadFailedError, match=r"pip install \.\[media\]"):
        await registry.ready_card("tts")


def test_the_client_is_missing_without_the_packages() -> None:
    with pytest.raises(MediaUnavailableError) as caught:
        runtime.get(MEDIA_CLIENT)
    assert (caught.value.status, caught.value.code) == (501, "media_not_installed")
