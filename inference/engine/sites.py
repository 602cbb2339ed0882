"""Where the sites of an intervention are in a transformers module.

The common decoder layout: a list ``layers`` of decoder layers with ``mlp`` and ``self_attn.o_proj``. Where a layer
normalises the MLP's output before it joins the residual (Gemma 2 and 3), ``mlp_out`` is after that norm, as in
TransformerLens' hook_mlp_out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from inference.interventions import SITE_KINDS, Site

Edit = Callable[[Tensor], Tensor | None]


class SiteError(ValueError):
    """An intervention does not fit the model; the message names what does."""


def decoder_layers(module: nn.Module) -> nn.ModuleList:
    """The list of decoder layers; SiteError where the architecture has no such list."""
    decoder = module.get_decoder() if hasattr(module, "get_decoder") else module  # type: ignore[operator]
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise SiteError(f"{type(module).__name__} has no list of decoder layers to steer.")
    return layers


def site_width(module: nn.Module, site: Site) -> int:
    """Number of values at the site; SiteError where the site does not exist."""
    layers = decoder_layers(module)
    if not 0 <= site.layer < len(layers):
        raise SiteError(f"There is no {site}: the model has layers 0 to {len(layers) - 1}.")
    if site.kind == "attn_out":
        return int(_output_projection(layers[site.layer], site).in_features)  # type: ignore[arg-type]
    _target(layers[site.layer], site)
    return int(module.config.get_text_config().hidden_size)  # type: ignore[union-attr, operator]


def attach(module: nn.Module, site: Site, edit: Edit) -> Callable[[], None]:
    """Run ``edit`` on the site's tensor in each forward pass; returns what takes the hook off again."""
    target = _target(decoder_layers(module)[site.layer], site)
    if site.kind in {"resid_pre", "attn_out"}:
        return target.register_forward_pre_hook(_input_hook(edit), with_kwargs=True).remove
    return target.register_forward_hook(_output_hook(edit)).remove


def _target(layer: nn.Module, site: Site) -> nn.Module:
    if site.kind in {"resid_pre", "resid_post"}:
        return layer
    if site.kind == "attn_out":
        return _output_projection(layer, site)
    target = getattr(layer, "post_feedforward_layernorm", None) or getattr(layer, "mlp", None)
    if not isinstance(target, nn.Module):
        raise _missing(layer, site)
    return target


def _output_projection(layer: nn.Module, site: Site) -> nn.Module:
    """``nn.Linear`` or what the loader put in its place, which has its sizes."""
    projection = getattr(getattr(layer, "self_attn", None), "o_proj", None)
    if not isinstance(projection, nn.Module) or not hasattr(projection, "in_features"):
        raise _missing(layer, site)
    return projection


def _missing(layer: nn.Module, site: Site) -> SiteError:
    return SiteError(f"There is no {site} in a {type(layer).__name__}; sites are {', '.join(SITE_KINDS)}.")


def _input_hook(edit: Edit) -> Callable[..., Any]:
    def hook(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if args:
            changed = edit(args[0])
            return None if changed is None else ((changed, *args[1:]), kwargs)
        changed = edit(kwargs["hidden_states"])
        return None if changed is None else (args, {**kwargs, "hidden_states": changed})

    return hook


def _output_hook(edit: Edit) -> Callable[..., Any]:
    def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            changed = edit(output[0])
            return None if changed is None else (changed, *output[1:])
        return edit(output)

    return hook
