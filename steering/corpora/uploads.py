"""Upload and delete corpora: files in MILLM_HOME/corpora, checked before they get their name."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO

from django.contrib.auth.models import User

from audit.models import AuditEvent
from audit.record import record
from steering.corpora.corpus import SUFFIXES, Corpus, CorpusError, read_corpus
from steering.corpora.corpus_registry import corpora_folder, corpus_names, list_corpora

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def save_corpus(*, name: str, content: Callable[[], IO[bytes]], user: User | None = None) -> Corpus:
    """Store a corpus under a new name. Raise CorpusError for an invalid or taken name, or invalid content."""
    if not _NAME.fullmatch(name) or Path(name).suffix not in SUFFIXES:
        message = (
            f"`name` must consist of letters, digits and . _ -, and end with {', '.join(SUFFIXES)}; got {name[:100]!r}."
        )
        raise CorpusError(message, param="name")
    if name in corpus_names():
        raise CorpusError(f"The corpus {name} already exists; delete it first, or choose another name.", param="name")
    unfinished = corpora_folder() / f".{uuid.uuid4().hex}"
    unfinished.mkdir(parents=True)
    try:
        with content() as source, (unfinished / name).open("xb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        corpus = read_corpus(str(unfinished / name))
        (unfinished / name).rename(corpora_folder() / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    detail = f"corpus of {len(corpus.documents)} texts, version {corpus.version}"
    record(AuditEvent.Action.ADD, f"corpus {name}", user=user, detail=detail)
    return corpus


def delete_corpus(*, name: str, user: User | None = None) -> None:
    """Delete an uploaded corpus. Raise CorpusError for others: the shipped one, and those of other apps."""
    found = next((one for one in list_corpora() if one.name == name), None)
    if found is None:
        raise CorpusError(f"There is no corpus {name[:100]!r}.", status=404, code="not_found", param="name")
    if found.kind != "file":
        raise CorpusError(f"The corpus {name} was not uploaded, so it cannot be deleted.", param="name")
    record(AuditEvent.Action.DELETE, f"corpus {name}", user=user)
    (corpora_folder() / name).unlink(missing_ok=True)
