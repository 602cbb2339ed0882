"""An LRU cache of loaded SAEs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steering.saes.sae import SparseAutoencoder

Load = Callable[[], "SparseAutoencoder"]


class SAECache:
    """A thread-safe LRU cache, limited by bytes. ``on_evict`` is called with each evicted checksum, outside the lock.

    At least one SAE is kept regardless of its size.
    """

    def __init__(self, max_bytes: int, on_evict: Callable[[str], None] = lambda _: None) -> None:
        self._max_bytes = max_bytes
        self._on_evict = on_evict
        self._saes: OrderedDict[str, SparseAutoencoder] = OrderedDict()
        self._loading: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def find(self, checksum: str) -> SparseAutoencoder | None:
        """Return the SAE if it is loaded."""
        with self._lock:
            sae = self._saes.get(checksum)
            if sae is not None:
                self._saes.move_to_end(checksum)
            return sae

    def get(self, checksum: str, load: Load) -> SparseAutoencoder:
        """Return the SAE. Concurrent calls load it only once."""
        if (sae := self.find(checksum)) is not None:
            return sae
        with self._lock:
            loading = self._loading.setdefault(checksum, threading.Lock())
        with loading:
            sae = self.find(checksum)
            if sae is None:
                sae = load()
                self._keep(checksum, sae)
        with self._lock:
            self._loading.pop(checksum, None)
        return sae

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(sae.num_bytes for sae in self._saes.values())

    def bytes_of(self, checksum: str) -> int | None:
        """Return the size of a loaded SAE, or None. Does not count as use."""
        with self._lock:
            sae = self._saes.get(checksum)
            return None if sae is None else sae.num_bytes

    def remove(self, checksum: str) -> None:
        """Evict one SAE, if it is loaded."""
        with self._lock:
            gone = self._saes.pop(checksum, None)
        if gone is not None:
            self._on_evict(checksum)

    def clear(self) -> None:
        with self._lock:
            self._saes.clear()

    def _keep(self, checksum: str, sae: SparseAutoencoder) -> None:
        evicted = []
        with self._lock:
            self._saes[checksum] = sae
            while len(self._saes) > 1 and sum(one.num_bytes for one in self._saes.values()) > self._max_bytes:
                evicted.append(self._saes.popitem(last=False)[0])
        for gone in evicted:
            self._on_evict(gone)
