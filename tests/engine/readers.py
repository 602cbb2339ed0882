"""Little SAEs, and what plain hooks on transformers' own forward pass see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from inference.engine.models.loader import LoadedModel
from inference.engine.models.sites import decoder_layers
from inference.interventions import FeatureColumns, Site


@dataclass
class TopKReader:
    """``a = relu(pre)`` where ``pre`` is among the token's ``k`` largest; counts its full encodes."""

    key: str
    w_enc: torch.Tensor
    k: int
    num_encoded: list[int] = field(default_factory=list)  # tokens, by call

    @property
    def d_in(self) -> int:
        return self.w_enc.shape[0]

    @property
    def d_sae(self) -> int:
        return self.w_enc.shape[1]

    def encode(self, h):
        self.num_encoded.append(len(h))
        return self.expected(h)

    def expected(self, h):
        pre = h @ self.w_enc
        best = pre.topk(self.k, dim=-1)
        return torch.zeros_like(pre).scatter(-1, best.indices, best.values.relu())

    def activations(self, h, features):
        return self.expected(h)[:, features]

    def columns(self, features):
        return FeatureColumns(write=self.w_enc.T[features])


def top_k_reader(key: str = "topk", *, width: int = 32, d_sae: int = 48, k: int = 5, seed: int = 3) -> TopKReader:
    return TopKReader(key, torch.randn(width, d_sae, generator=torch.Generator().manual_seed(seed)), k)


def plain_residuals(
    loaded: LoadedModel, token_ids: list[int], site: Site, *, steer: Any = None, steered: Site | None = None
) -> torch.Tensor:
    """``[tokens, d]`` at the site, after ``steer`` where that acts at the same one; one pass of all tokens."""
    module: Any = loaded.module
    ours, seen = module.config._attn_implementation, []
    module.set_attn_implementation("eager")
    layers = decoder_layers(module)
    hooks = []
    if steer is not None:
        assert steered is not None
        hooks.append(_hook(layers[steered.layer], steered, steer))
    hooks.append(_hook(layers[site.layer], site, lambda h: seen.append(h.detach().clone())))
    try:
        with torch.no_grad():
            module(torch.tensor([token_ids]))
    finally:
        module.set_attn_implementation(ours)
        for hook in hooks:
            hook.remove()
    return seen[0][0]


def _hook(layer: Any, site: Site, edit: Any) -> Any:
    if site.kind == "resid_post":
        return layer.register_forward_hook(lambda _, __, output: edit(output))
    if site.kind == "mlp_raw":
        return layer.mlp.register_forward_hook(lambda _, __, output: edit(output))
    if site.kind == "mlp_out":
        module = getattr(layer, "post_feedforward_layernorm", layer.mlp)
        return module.register_forward_hook(lambda _, __, output: edit(output))
    module = layer if site.kind == "resid_pre" else layer.self_attn.o_proj
    return module.register_forward_pre_hook(lambda _, args: edited(edit(args[0]), args))


def edited(changed: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return None if changed is None else (changed, *args[1:])
