"""Layouts of weights in memory: row-major, or interleaved as our kernels multiply them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from inference.engine.kernels import native
from inference.engine.kernels.pages import empty_in_huge_pages, in_huge_pages

INTERLEAVED = 16  # outputs side by side: the lanes of a vector
WORD_BYTES = 4
PROBED_IDS = 64


def interleaved(weight: Tensor, *, in_place: bool = False) -> Tensor:
    """Return a weight ``[out, in]`` in the layout that our kernels multiply fastest, in huge pages.

    Where the processor has dot products of the dtype, this is ``[out / 16, words, 16, numbers of a word]``: sixteen
    outputs side by side, a word of 4 bytes after the other. A result is the sum of its words, one after the other, for
    any number of rows; with tiles (AMX) it is the sum of its tiles. A weight that does not consist of whole words and
    blocks stays row-major.

    With ``in_place``, the given weight may share the memory of the result, and must not be used any more.
    """
    out = in_huge_pages(weight)
    if not can_interleave(weight):
        return out
    if out.data_ptr() == weight.data_ptr() and not in_place:
        out = empty_in_huge_pages(tuple(weight.shape), weight.dtype).copy_(weight)
    numbers = WORD_BYTES // out.element_size()
    torch.ops.millm_native.interleave.default(out)
    return out.view(out.shape[0] // INTERLEAVED, out.shape[1] // numbers, INTERLEAVED, numbers)


def can_interleave(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not interleaves(weight.dtype):
        return False
    return weight.shape[0] % INTERLEAVED == 0 and weight.shape[1] * weight.element_size() % WORD_BYTES == 0


def interleaves(dtype: torch.dtype) -> bool:
    """Return whether this processor multiplies interleaved weights of the dtype."""
    kernels = native.active()
    return {torch.bfloat16: kernels.has_bf16, torch.int8: kernels.has_int8}.get(dtype, False)


def is_interleaved(weight: Tensor) -> bool:
    return weight.dim() == 4


def sizes_of(weight: Tensor) -> tuple[int, int]:
    """Return the numbers of outputs and inputs of a weight in either layout."""
    if not is_interleaved(weight):
        return weight.shape[0], weight.shape[1]
    blocks, words, outputs, numbers = weight.shape
    return blocks * outputs, words * numbers


def row_major(weight: Tensor) -> Tensor:
    """Return a weight as ``[out, in]``: itself, or a copy if it is interleaved."""
    return weight.transpose(1, 2).reshape(sizes_of(weight)) if is_interleaved(weight) else weight


class InterleavedEmbedding(nn.Module):
    """Embeddings whose weight is interleaved, because a tied head multiplies with it.

    ``original``: they need only the rows of the ids (:func:`needs_only_rows`), and lose their own weight.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, original: nn.Embedding) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = sizes_of(weight)
        self.register_buffer("weight", weight, persistent=False)
        self.scaled = None if type(original) is nn.Embedding else original
        original.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return ``[..., embedding_dim]`` for ids ``[...]``."""
        flat = ids.reshape(-1)
        words = self.weight.view(torch.int32).squeeze(-1)
        found = words[flat // INTERLEAVED, :, flat % INTERLEAVED].contiguous().view(self.weight.dtype)
        if self.scaled is None:
            return found.view(*ids.shape, self.embedding_dim)
        places = torch.arange(len(found)).view(ids.shape)
        out: Tensor = functional_call(self.scaled, {"weight": found}, (places,))
        return out

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


def needs_only_rows(embeddings: nn.Embedding) -> bool:
    """Return whether the result for an id depends only on its row of the weight, tried with some ids."""
    if type(embeddings) is nn.Embedding:
        return True
    ids = torch.arange(0, embeddings.num_embeddings, max(1, embeddings.num_embeddings // PROBED_IDS))
    rows, places = embeddings.weight[ids], torch.arange(len(ids)).unsqueeze(0)
    try:
        return torch.equal(functional_call(embeddings, {"weight": rows}, (places,)), embeddings(ids.unsqueeze(0)))
    except (RuntimeError, TypeError, ValueError, IndexError):  # it expects its own weight
        return False
