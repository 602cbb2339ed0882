"""Turn errors of a model's files, or lack of memory, into a LoadError with a message for users."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from inference.engine.errors import LoadError, NotEnoughMemoryError
from inference.engine.scheduling.step_isolation import is_out_of_memory
from inference.files.unchanged import FileChangedError

# Raised by transformers, tokenizers and safetensors for invalid files.
FAULTS_OF_FILES = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RuntimeError,
    ImportError,
    SafetensorError,
    EOFError,
    pickle.UnpicklingError,
)
NO_MEMORY = "Cannot allocate memory"  # the system's message if a file cannot be mapped


@contextmanager
def readable_files(name: str, path: Path) -> Iterator[None]:
    """Raise LoadError for problems with the directory's files. :func:`enough_memory` handles lack of memory."""
    try:
        yield
    except FAULTS_OF_FILES as error:
        if ran_out_of_memory(error):
            raise
        if isinstance(error, FileChangedError):
            message = f"{name} could not be loaded: {error}. Load it again when its files are complete."
            raise LoadError(message) from error
        raise LoadError(f"{name} could not be loaded from {path}: {told(error)}") from error


@contextmanager
def enough_memory(name: str) -> Iterator[None]:
    """Raise NotEnoughMemoryError if memory runs out in the block."""
    try:
        yield
    except Exception as error:
        if ran_out_of_memory(error):
            raise NotEnoughMemoryError(
                f"{name} could not be loaded: out of memory, although the estimate fitted. Unload another model, "
                "choose a smaller dtype, or lower MILLM_KV_CACHE_BYTES or MILLM_MEMORY_BUDGET, and load it again."
            ) from error
        raise


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Return whether memory ran out, also if a library wrapped the error."""
    while error is not None:
        if isinstance(error, Exception) and (is_out_of_memory(error) or NO_MEMORY in str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def told(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
