"""Residual vectors of one layer, read with a plain forward hook."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from tools.demo_model.language_model import pack_rows

ROW_LENGTH = 256
ROWS_PER_BATCH = 16


def read_residuals(model: LlamaForCausalLM, layer: int, rows: Tensor) -> Tensor:
    """Return the output of `model.layers[layer]` for token ids `rows` [rows, length]: [rows, length, d_in], float32."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output.detach().float())

    handle = model.model.layers[layer].register_forward_hook(keep)
    try:
        with torch.no_grad():
            model.model(input_ids=rows, use_cache=False)
    finally:
        handle.remove()
    return seen[0]


def collect_residuals(
    model: LlamaForCausalLM,
    layer: int,
    documents: Iterator[str],
    backend: Tokenizer,
    tokens: int,
    special_ids: list[int],
) -> tuple[Tensor, Tensor]:
    """Return at least `tokens` residuals of ordinary tokens: ([n, d_in] float32, their token ids [n]).

    Special tokens are left out: their norms are many times larger, and steering skips them too.
    """
    vectors: list[Tensor] = []
    ids: list[Tensor] = []
    count = 0
    while count < tokens:
        rows = pack_rows(documents, backend, ROW_LENGTH, ROWS_PER_BATCH)
        ordinary = ~torch.isin(rows, torch.tensor(special_ids))
        vectors.append(read_residuals(model, layer, rows)[ordinary])
        ids.append(rows[ordinary])
        count += int(ordinary.sum())
    return torch.cat(vectors), torch.cat(ids)
