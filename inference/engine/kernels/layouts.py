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


def interleaved(weight: Tensor, *, ordered: bool = False) -> Tensor:
    """Return a weight ``[out, in]`` in the layout that our kernels multiply fastest, in huge pages.

    Where the processor has dot products of the dtype, this is ``[out / 16, words, 16, numbers of a word]``: sixteen
    outputs side by side, a word of 4 bytes after the other. A result is the sum of its words, one after the other, for
    any number of rows. A weight that does not consist of whole words and blocks stays row-major. So do all on a
    processor with tiles (AMX), unless the sums must be ``ordered``, for which tiles are not used.
    """
    if not can_interleave(weight, ordered=ordered):
        return in_huge_pages(weight)
    numbers = WORD_BYTES // weight.element_size()
    shape = (weight.shape[0] // INTERLEAVED, weight.shape[1] // numbers, INTERLEAVED, numbers)
    out = empty_in_huge_pages(shape, weight.dtype)
    torch.ops.millm_native.interleave.default(weight.contiguous(), out)
    return out


def can_interleave(weight: Tensor, *, ordered: bool = False) -> bool:
    kernels = native.active()
    has_dots = {torch.bfloat16: kernels.has_bf16, torch.int8: kernels.has_int8}.get(weight.dtype, False)
    if not has_dots or weight.device.type != "cpu" or (torch.cpu._is_amx_tile_supported() and not ordered):
        return False
    return weight.shape[0] % INTERLEAVED == 0 and weight.shape[1] * weight.element_size() % WORD_BYTES == 0


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

    ``scaled``: embeddings of another class, which change the rows that they look up; their weight may be empty.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, scaled: nn.Embedding | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = sizes_of(weight)
        self.register_buffer("weight", weight, persistent=False)
        self.scaled = scaled

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


def interleaved_embedding(embeddings: nn.Embedding, weight: Tensor) -> InterleavedEmbedding | None:
    """Return the embeddings with their interleaved ``weight``; None if those of an unknown class differ from it.

    Afterwards the weight of the given embeddings is no longer used.
    """
    if type(embeddings) is nn.Embedding:
        return InterleavedEmbedding(weight)
    fast = InterleavedEmbedding(weight, embeddings)
    ids = torch.arange(0, embeddings.num_embeddings, max(1, embeddings.num_embeddings // PROBED_IDS)).unsqueeze(0)
    try:
        if not torch.equal(fast(ids), embeddings(ids)):
            return None
    except (RuntimeError, TypeError, ValueError, IndexError):  # it expects its own weight
        return None
    embeddings.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)
    return fast
