"""The media endpoints over a real worker with tiny models, which one module of tests shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from core.runtime import runtime
from media.backend import MEDIA_CLIENT
from media.client import MediaClient
from media.messages import MediaKind, ModelFacts, ModelSpec
from tests.live import PATIENCE_S
from tests.media.conftest import sound, whisper_path
from tests.media.tiny import save_stable_diffusion, save_vits
from tests.openai_api.conftest import Api, api
from tests.openai_api.fakes import record

__all__ = ["api", "sound", "whisper_path"]


@dataclass
class Worker:
    """A worker process with loaded models, and what each can do."""

    client: MediaClient
    kinds: dict[str, MediaKind] = field(default_factory=dict)
    facts: dict[str, ModelFacts] = field(default_factory=dict)

    def load(self, name: str, kind: MediaKind, path: Path) -> None:
        self.facts[name] = self.client.load(ModelSpec(name, kind, path)).result(PATIENCE_S)
        self.kinds[name] = kind


@pytest.fixture(scope="session")
def vits_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vits(tmp_path_factory.mktemp("vits"))


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    worker = Worker(MediaClient())
    yield worker
    worker.client.stop()


@pytest.fixture(scope="session")
def diffusion_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_stable_diffusion(tmp_path_factory.mktemp("diffusion"))


@pytest.fixture
def with_models(api: Api, worker: Worker) -> Iterator[Callable[..., Api]]:
    """Return a function that registers models, given as name, kind and path, and returns the surface."""

    def register(*models: tuple[str, MediaKind, Path]) -> Api:
        for name, kind, path in models:
            if name not in worker.facts:
                worker.load(name, kind, path)
            api.registry.add(record(name, kind=kind))
            api.registry.media[name] = worker.facts[name]
        return api

    before: Any = runtime.find(MEDIA_CLIENT)
    runtime.install(MEDIA_CLIENT, worker.client)
    yield register
    if before is None:
        runtime.remove(MEDIA_CLIENT)
    else:
        runtime.install(MEDIA_CLIENT, before)
