"""The corpora that the admin offers by name: the shipped one, files that the operator laid out, and sources of text
that other apps register.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from steering.corpora.corpus import DEFAULT_NAME, Corpus, CorpusError, read_corpus

Provider = Callable[[], Corpus]
_SUFFIXES = {".jsonl", ".ndjson", ".txt"}
_providers: dict[str, Provider] = {}


def register_corpus(name: str, provider: Provider) -> None:
    """Offer texts under the name; ``provider`` reads them when they are wanted."""
    _providers[name] = provider


def corpus_names() -> tuple[str, ...]:
    """The shipped one first. Nobody in the browser names a path: files lie in MILLM_HOME/corpora."""
    return (DEFAULT_NAME, *sorted(_files()), *sorted(_providers))


def open_corpus(name: str) -> Corpus:
    """CorpusError for a name that is not offered."""
    if name in ("", DEFAULT_NAME):
        return read_corpus()
    if name in _providers:
        return _providers[name]()
    path = _files().get(name)
    if path is None:
        raise CorpusError(f"There is no corpus {name!r}; there are {', '.join(corpus_names())}.")
    return read_corpus(str(path))


def _files() -> dict[str, Path]:
    folder = Path(settings.MILLM_HOME) / "corpora"
    if not folder.is_dir():
        return {}
    files = (path for path in folder.iterdir() if path.suffix in _SUFFIXES and not path.is_symlink() and path.is_file())
    return {path.name: path for path in files}
