"""The models that are in the engine now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.model_kind import ModelKind
from inference.text import ModelText

if TYPE_CHECKING:
    from inference.engine.loader import LoadedModel


@dataclass(slots=True)
class Resident:
    """``reserved_bytes`` is what it was given on its device, keys and values included; ``used_at`` a reading of the
    registry's clock. One that ``is_leaving`` finishes what it runs and takes nothing more.
    """

    pk: int
    name: str
    loaded: LoadedModel
    text: ModelText
    kind: ModelKind
    reserved_bytes: int
    used_at: float
    is_leaving: bool = False


class Residents:
    """By name. Written by the loader thread only; each method is one step on a dictionary, so any thread may read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_name: dict[str, Resident] = {}

    def __contains__(self, name: str) -> bool:
        """Whether it takes requests."""
        resident = self._by_name.get(name)
        return resident is not None and not resident.is_leaving

    def add(self, resident: Resident) -> None:
        self._by_name[resident.name] = resident

    def remove(self, name: str) -> Resident | None:
        return self._by_name.pop(name, None)

    def get(self, name: str) -> Resident | None:
        return self._by_name.get(name)

    def use(self, name: str) -> Resident | None:
        """The model, which is the most recently used one from now on; None of one that takes no requests."""
        resident = self._by_name.get(name)
        if resident is None or resident.is_leaving:
            return None
        resident.used_at = self._clock()
        return resident

    def idle_s(self, resident: Resident) -> float:
        return self._clock() - resident.used_at

    def all(self) -> list[Resident]:
        """Least recently used first."""
        return sorted(self._by_name.copy().values(), key=lambda resident: resident.used_at)
