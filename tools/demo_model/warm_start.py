"""Start from an earlier demo model: reuse its weights, and carry its embeddings over to another tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SPACE = "\u0120"  # how byte-level tokens write a space


def carry_over(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Load the weights of the model in `folder` into `model`, which has the same shape except for its vocabulary."""
    earlier = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    state = earlier.state_dict()
    embeddings = carried_embeddings(state["model.embed_tokens.weight"], backend, tokenizer)
    model.load_state_dict({**state, "model.embed_tokens.weight": embeddings, "lm_head.weight": embeddings})
    model.tie_weights()


def carried_embeddings(earlier: Tensor, backend: Tokenizer, tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return an embedding [vocab, hidden] for each token of `tokenizer`: that of the old token with the same text, or
    with a space before it, or else the mean of the old tokens that spell it."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    rows = [earlier[_earlier_ids(piece, backend, tokenizer)].mean(0) for piece in pieces]
    return torch.stack(rows)


def _earlier_ids(piece: str, backend: Tokenizer, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    for same in (piece, SPACE + piece):
        number = backend.token_to_id(same)
        if number is not None:
            return [number]
    return backend.encode(tokenizer.convert_tokens_to_string([piece]), add_special_tokens=False).ids
