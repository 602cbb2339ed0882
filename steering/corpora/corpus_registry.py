"""Corpora by name: the shipped one, files in MILLM_HOME/corpora, and those that other apps register."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from django.conf import settings

from steering.corpora.corpus import DEFAULT, DEFAULT_NAME, SUFFIXES, Corpus, CorpusError, read_corpus

Provider = Callable[[], Corpus]
Kind = Literal["shipped", "file", "app"]
_providers: dict[str, Provider] = {}


def register_corpus(name: str, provider: Provider) -> None:
    """Register a corpus by name; ``provider`` is called whenever it is opened."""
    _providers[name] = provider


def corpus_names() -> tuple[str, ...]:
    """Return the names of all corpora, the shipped one first. Files are found by name only, never by a path."""
    return (DEFAULT_NAME, *sorted(_files()), *sorted(_providers))


@dataclass(frozen=True, slots=True)
class CorpusEntry:
    """A corpus that can be opened. ``size`` in bytes is None for one that another app registers."""

    name: str
    kind: Kind
    size: int | None


def list_corpora() -> tuple[CorpusEntry, ...]:
    """Return all corpora, in the order of :func:`corpus_names`. None is opened."""
    shipped = CorpusEntry(DEFAULT_NAME, "shipped", DEFAULT.stat().st_size)
    files = [CorpusEntry(name, "file", path.stat().st_size) for name, path in sorted(_files().items())]
    return (shipped, *files, *(CorpusEntry(name, "app", None) for name in sorted(_providers)))


def open_corpus(name: str) -> Corpus:
    """Return the corpus. Raise CorpusError for an unknown name."""
    if name in ("", DEFAULT_NAME):
        return read_corpus()
    if name in _providers:
        return _providers[name]()
    path = _files().get(name)
    if path is None:
        raise CorpusError(f"There is no corpus {name!r}. Available: {', '.join(corpus_names())}.")
    return read_corpus(str(path))


def corpora_folder() -> Path:
    return Path(settings.MILLM_HOME) / "corpora"


def _files() -> dict[str, Path]:
    folder = corpora_folder()
    if not folder.is_dir():
        return {}
    files = (path for path in folder.iterdir() if path.suffix in SUFFIXES and not path.is_symlink() and path.is_file())
    return {path.name: path for path in files}
