"""A download from the Hub that another thread can watch and stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

T = TypeVar("T")
Report = Callable[[int, int], None]
_POLL_S = 0.5


class DownloadStoppedError(Exception):
    """The download was stopped. Downloaded files are kept, and the next download continues from there."""


class WatchedDownload:
    """A replacement for ``huggingface_hub.snapshot_download``. ``done`` and ``total`` are bytes; both grow."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def __call__(self, **options: Any) -> object:
        from huggingface_hub import snapshot_download

        return snapshot_download(tqdm_class=self._bar_class(), **options)

    def stop(self) -> None:
        self._stopped.set()

    def note(self, arrived: int, more_expected: int) -> None:
        """Add downloaded and newly expected bytes. Raise DownloadStoppedError if the download was stopped."""
        if self._stopped.is_set():
            raise DownloadStoppedError
        with self._lock:
            self.done += arrived
            self.total += more_expected

    def _bar_class(self) -> type:
        """Return a progress bar class that draws nothing: the library reports progress to bars only."""
        from tqdm import tqdm

        watched = self

        class Bar(tqdm):  # type: ignore[misc]  # untyped
            def __init__(self, *args: Any, **options: Any) -> None:
                self._counts_bytes = str(options.get("desc", "")).startswith("Reconstructing")
                self._told = 0
                options.pop("name", None)
                super().__init__(*args, **{**options, "disable": True})

            def update(self, n: float | None = 1) -> None:
                if self._counts_bytes:
                    total = int(self.total or 0)
                    watched.note(int(n or 0), total - self._told)
                    self._told = total

        return Bar


def watch(work: Callable[[WatchedDownload], T], report: Report) -> T:
    """Run ``work`` on another thread and call ``report`` with its progress, every half second and at the end.

    An exception in ``report`` stops the download and is raised here.
    """
    download = WatchedDownload()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-download") as pool:
        future = pool.submit(work, download)
        try:
            while not wait([future], _POLL_S).done:
                report(download.done, download.total)
        except BaseException:
            download.stop()
            raise
        result = future.result()
    report(download.done, download.total)
    return result
