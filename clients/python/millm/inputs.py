"""Texts as the inputs of requests that read activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import numpy as np
import openai
from numpy.typing import NDArray

from millm.transport import Transport, is_too_large

Texts = str | Sequence[str]
"""One text, or several."""

Pooling = Literal["none", "mean", "max", "last"]
Input = str | list[int]
T = TypeVar("T")

MAX_INPUTS = 128  # of a request
AT_ONCE = 8


def as_inputs(transport: Transport, model: str, texts: Texts, *, chat: bool) -> list[Input]:
    """Return the texts, or with ``chat`` the token ids of chats in which each is the user's only message."""
    all_texts = [texts] if isinstance(texts, str) else list(texts)
    if not all_texts:
        raise ValueError("`texts` must not be empty.")
    if not chat:
        return list(all_texts)

    def tokenize(text: str) -> Input:
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        ids: list[int] = transport.post("tokenize", body)["tokens"]
        return ids

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(tokenize, all_texts))


def read_all(inputs: Sequence[Input], read: Callable[[Sequence[Input]], list[T]]) -> list[T]:
    """Return what ``read`` returns for all inputs, in as many requests as the server's limits require."""
    found: list[T] = []
    for start in range(0, len(inputs), MAX_INPUTS):
        found += _read_in_parts(inputs[start : start + MAX_INPUTS], read)
    return found


def _read_in_parts(inputs: Sequence[Input], read: Callable[[Sequence[Input]], list[T]]) -> list[T]:
    try:
        return read(inputs)
    except openai.BadRequestError as error:
        if len(inputs) == 1 or not is_too_large(error):
            raise
    middle = len(inputs) // 2
    return _read_in_parts(inputs[:middle], read) + _read_in_parts(inputs[middle:], read)


def pool(values: NDArray[np.float32], pooling: Pooling) -> NDArray[np.float32]:
    """Pool ``[tokens, n]`` over tokens to ``[n]``; unchanged for ``none``. Raise ValueError without tokens."""
    if pooling == "none":
        return values
    if not len(values):
        raise ValueError("A text has no tokens to pool. Check `ranges` and `special_tokens`.")
    pooled: Any = {"mean": values.mean(axis=0), "max": values.max(axis=0), "last": values[-1]}[pooling]
    return np.asarray(pooled, np.float32)
