"""A model as large as one likes that takes no room on the disk: its weights are a hole in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.builders import build_config, build_tokenizer


def build_sparse_model(path: Path, **sizes: Any) -> Path:
    """A Llama in bfloat16 whose weights are all zero."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(path)
    config = build_config("llama", len(tokenizer), dtype="bfloat16", **sizes)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(path)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    header: dict[str, Any] = {}
    end = 0
    for name, weight in module.named_parameters():
        begin, end = end, end + 2 * weight.numel()
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [begin, end]}
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + end)
    return path
