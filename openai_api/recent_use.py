"""Which profiles and keys requests use, counted in the process until somebody takes the counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_NAMES = 200  # further ones are counted together, under ""


@dataclass(frozen=True, slots=True)
class Use:
    """Requests by name of the published version, and by the key's primary key as text."""

    profiles: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, int] = field(default_factory=dict)


class RecentUse:
    """Requests note what they used, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._profiles: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()

    def note(self, profile: str, api_key_id: int | None) -> None:
        with self._lock:
            if profile:
                _count(self._profiles, profile)
            if api_key_id is not None:
                _count(self._keys, str(api_key_id))

    def take(self) -> Use:
        """What was noted since the last call."""
        with self._lock:
            use = Use(dict(self._profiles), dict(self._keys))
            self._profiles.clear()
            self._keys.clear()
        return use


def _count(counter: Counter[str], name: str) -> None:
    counter[name if name in counter or len(counter) < MAX_NAMES else ""] += 1


recent_use = RecentUse()
