"""What the engine does right now, for the admin, /health and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EngineState = Literal["idle", "running", "draining", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class EngineStats:
    state: EngineState
    running: int = 0
    waiting: int = 0
    free_slots: int = 0
    steps: int = 0
    models: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_up(self) -> bool:
        return self.state in {"idle", "running"}
