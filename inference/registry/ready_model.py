"""What a request gets when it asks for a model: the model, or why there is none now."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import MillmError
from inference.files.architectures import ModelKind
from inference.registry.records import ModelRecord
from inference.text.grammar_compiler import GrammarCompiler
from inference.text.model_text import ModelText


class ModelNotReadyError(MillmError):
    """The model exists but cannot serve now: it loads longer than the caller may wait, or was unloaded meanwhile."""

    status = 503
    code = "model_not_ready"
    retry_after_s: float
    names_files = True

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class ModelLoadFailedError(ModelNotReadyError):
    """Its last load failed; it is not tried again before ``retry_after_s``."""

    code = "model_load_failed"


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A loaded model: what a request needs to make token ids of its text and to check its numbers."""

    record: ModelRecord
    max_model_len: int
    vocab_size: int
    text: ModelText
    kind: ModelKind = "generation"
    dimensions: int = 0  # of an embedding model's vectors
    grammars: GrammarCompiler | None = None  # of a model that generates
    labels: tuple[str, ...] = ()  # of one that classifies
