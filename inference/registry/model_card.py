"""The result of looking up a model: a model that is ready, or the reason why it is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import MillmError
from inference.files.architectures import ModelKind
from inference.interventions import Site
from inference.registry.records import ModelRecord
from inference.text.grammar_compiler import GrammarCompiler
from inference.text.model_text import ModelText


class ModelNotReadyError(MillmError):
    """The model exists but cannot serve now: loading takes longer than the caller may wait, or it was unloaded."""

    status = 503
    code = "model_not_ready"
    retry_after_s: float
    names_files = True

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class ModelLoadFailedError(ModelNotReadyError):
    """The model's last load failed. It is retried after ``retry_after_s`` at the earliest."""

    code = "model_load_failed"


class WrongKindError(MillmError):
    """The request needs another kind of model."""

    code = "wrong_model_kind"
    param = "model"


@dataclass(frozen=True, slots=True)
class MediaCard:
    """A loaded media model on the web side. ``facts``: what its requests can ask for."""

    record: ModelRecord
    kind: ModelKind
    facts: Any


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A loaded model for the web side: tokenizer, chat template and dialect (``text``), limits and labels, but no
    weights.

    Prompts are encoded and parameters are checked with it, so that the engine gets token ids and could run elsewhere.
    Pickled, it is the tokenizer's JSON, the sources of the templates, and plain facts.
    """

    record: ModelRecord
    max_model_len: int
    vocab_size: int
    text: ModelText
    kind: ModelKind = "generation"
    dimensions: int = 0  # of the vectors of an embedding model
    grammars: GrammarCompiler | None = None  # of a generation model
    labels: tuple[str, ...] = ()  # of a classifier
    sites: Mapping[Site, int] = field(default_factory=dict)  # every site with its number of values
    batch_invariant: bool = False  # the bits of its results are independent of other requests


Card = ModelCard | MediaCard
