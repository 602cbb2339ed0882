"""The logit lens of a direction: the tokens that a decoder row or a steering vector promotes and suppresses.

Lenses are computed on one background thread and cached, so that they do not slow down the engine.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.errors import MillmError
from inference.files.sources import ModelSource, SourceError, resolve_source
from inference.steering_refs import SAESource
from inference.text.token_bytes import token_bytes_reader
from inference.torch_threads import borrowed_workers
from steering.profiles.compilation import get_compiler
from steering.saes.errors import InvalidSAEError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from steering.features.unembedding import Floats

NUM_TOKENS = 10
MAX_WAITING = 8
_MAX_KEPT = 1024


class LensUnavailableError(MillmError):
    """The lens cannot be computed; the message says why."""

    names_files = True


class LensBusyError(MillmError):
    """Too many lenses are waiting to be computed."""

    status = 503
    code = "server_is_overloaded"
    retry_after_s = 5.0

    def __init__(self) -> None:
        super().__init__("Too many logit lens requests are running.")


@dataclass(frozen=True, slots=True)
class LensToken:
    id: int
    text: str
    logit: float


@dataclass(frozen=True, slots=True)
class LogitLens:
    """The tokens with the largest and the smallest logits, the most extreme first."""

    promoted: tuple[LensToken, ...]
    suppressed: tuple[LensToken, ...]


@dataclass(frozen=True, slots=True)
class LensTarget:
    """A decoder row. ``is_in_residual`` is False if the SAE writes before the output projection of the attention."""

    model: ModelSource
    sae: SAESource
    index: int
    is_in_residual: bool = True

    def direction(self) -> Floats:
        """Return the decoder row; loads the SAE if necessary."""
        row: Floats = get_compiler().sae(self.sae).decoder_row(self.index).float().numpy()
        return row


@dataclass(frozen=True, slots=True)
class VectorLensTarget:
    """A steering vector, as float32 in little-endian order. ``is_in_residual``: see LensTarget."""

    model: ModelSource
    data: bytes
    is_in_residual: bool = True

    def direction(self) -> Floats:
        return np.frombuffer(self.data, "<f4")


AnyLensTarget = LensTarget | VectorLensTarget


class LensWorker:
    """Runs ``compute`` on one thread and caches results; at most MAX_WAITING lenses wait."""

    def __init__(self, compute: Callable[[AnyLensTarget], LogitLens]) -> None:
        self._compute = compute
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="logit-lens")
        self._known: OrderedDict[AnyLensTarget, LogitLens] = OrderedDict()
        self._lock = threading.Lock()
        self._num_waiting = 0

    async def look(self, subject: AnyLensTarget) -> LogitLens:
        """Return the lens. Raise LensUnavailableError, or LensBusyError if too many wait."""
        return await asyncio.shield(asyncio.wrap_future(self._begin(subject)))

    def compute_blocking(self, subject: AnyLensTarget, timeout_s: float) -> LogitLens:
        """Return the lens, blocking the thread. Raises TimeoutError too."""
        return self._begin(subject).result(timeout_s)

    def _begin(self, subject: AnyLensTarget) -> Future[LogitLens]:
        with self._lock:
            if subject in self._known:
                return _done(self._known[subject])
            if self._num_waiting > MAX_WAITING:
                raise LensBusyError
            self._num_waiting += 1
        return self._pool.submit(self._run, subject)

    def _run(self, subject: AnyLensTarget) -> LogitLens:
        try:
            with borrowed_workers():
                lens = self._compute(subject)
        finally:
            with self._lock:
                self._num_waiting -= 1
        with self._lock:
            self._known[subject] = lens
            if len(self._known) > _MAX_KEPT:
                self._known.popitem(last=False)
        return lens


def _done(lens: LogitLens) -> Future[LogitLens]:
    future: Future[LogitLens] = Future()
    future.set_result(lens)
    return future


def compute_lens(subject: AnyLensTarget) -> LogitLens:
    """Compute a lens. Takes seconds if the SAE is not loaded. Raise LensUnavailableError."""
    from steering.features.unembedding import UnembeddingError, open_unembedding  # imports torch

    if not subject.is_in_residual:
        raise LensUnavailableError("This direction is not one of the residual, so it has no logit lens.")
    try:
        folder = resolve_source(subject.model)
        direction = subject.direction()
        unembedding = open_unembedding(folder, trust_remote_code=subject.model.trust_remote_code)
        return read_lens(unembedding.logits(direction), _tokenizer(folder / "tokenizer.json"))
    except (SourceError, InvalidSAEError, UnembeddingError, OSError, ValueError, KeyError) as error:
        raise LensUnavailableError(str(error)) from error


def read_lens(logits: Floats, tokenizer: Tokenizer) -> LogitLens:
    """Return the top tokens of logits. Rows beyond the vocabulary of the tokenizer are padding and ignored."""
    known = logits[: tokenizer.get_vocab_size(with_added_tokens=True)]
    order = np.argsort(known, kind="stable")
    return LogitLens(
        promoted=tuple(_token(tokenizer, int(i), known) for i in order[::-1][:NUM_TOKENS]),
        suppressed=tuple(_token(tokenizer, int(i), known) for i in order[:NUM_TOKENS]),
    )


def _token(tokenizer: Tokenizer, token_id: int, logits: Floats) -> LensToken:
    token = tokenizer.id_to_token(token_id) or ""
    is_added = token_id in tokenizer.get_added_tokens_decoder()
    text = token if is_added else token_bytes_reader(tokenizer)(token).decode("utf-8", "replace")
    return LensToken(token_id, text, float(logits[token_id]))


@lru_cache(maxsize=2)
def _tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


@cache
def get_lens_worker() -> LensWorker:
    """Return the worker of this process."""
    return LensWorker(compute_lens)
