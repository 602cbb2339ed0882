"""Corpora by name: the shipped one, files in MILLM_HOME/corpora, and those that other apps register."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from steering.corpora.corpus import DEFAULT_NAME, Corpus, CorpusError, read_corpus

Provider = Callable[[], Corpus]
_SUFFIXES = {".jsonl", ".ndjson", ".txt"}
_providers: dict[str, Provider] = {}


def register_corpus(name: str, provider: Provider) -> None:
    """Register a corpus by name; ``provider`` is called whenever it is opened."""
    _providers[name] = provider


def corpus_names() -> tuple[str, ...]:
    """Return the names of all corpora, the shipped one first. Files are found by name only, never by a path."""
    return (DEFAULT_NAME, *sorted(_files()), *sorted(_providers))


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


def _files() -> dict[str, Path]:
    folder = Path(settings.MILLM_HOME) / "corpora"
    if not folder.is_dir():
        return {}
    files = (path for path in folder.iterdir() if path.suffix in _SUFFIXES and not path.is_symlink() and path.is_file())
    return {path.name: path for path in files}
