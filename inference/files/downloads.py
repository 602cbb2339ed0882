"""A download from the Hub whose progress another thread can watch, and which it can stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

T = TypeVar("T")
Report = Callable[[int, int], None]
_POLL_S = 0.5


class DownloadStoppedError(Exception):
    """The watcher wanted no more of it. What came stays, and the next download goes on from there."""


class WatchedDownload:
    """Takes the place of ``huggingface_hub.snapshot_download``. ``done`` and ``total`` are bytes, both growing."""

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
        """Of bytes; raises DownloadStoppedError."""
        if self._stopped.is_set():
            raise DownloadStoppedError
        with self._lock:
            self.done += arrived
            self.total += more_expected

    def _bar_class(self) -> type:
        """The library tells its progress to bars alone; this one draws nothing."""
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
    """Does ``work`` on another thread and tells ``report`` how far its download is, every half second and at the end.

    What ``report`` raises stops the download and comes out of here.
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
