"""Write the random models with 8-bit weights for vLLM, which quantizes the activations of each token to 8 bits too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LINEAR = ("_proj.weight",)
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**INT8, "strategy": "token", "dynamic": True},
        }
    },
}


def write_w8a8(path: Path) -> Path:
    """Write the model in ``path`` in the compressed-tensors format if it does not exist, and return its folder."""
    target = path.with_name(f"{path.name}-w8a8")
    if (target / "model.safetensors").exists():
        return target
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("*.safetensors", "*.gguf"), dirs_exist_ok=True)
    config = json.loads((path / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIG}, indent=1))
    tensors = {}
    with safe_open(path / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            tensor = file.get_tensor(name)
            if name.endswith(LINEAR):
                tensors[name], tensors[f"{name}_scale"] = quantized(tensor)
            else:
                tensors[name] = tensor
    save_file(tensors, target / "model.part", metadata={"format": "pt"})
    (target / "model.part").rename(target / "model.safetensors")
    return target


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``weight`` as int8 and the scale of each row, in the weight's dtype."""
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    return (weight.float() / scale).round().to(torch.int8), scale.to(weight.dtype)
