"""Find the sites of an intervention in a transformers module.

Supports the common layout: a list of decoder layers, each with an MLP and an attention with an output projection, under
the names used in transformers. If a layer normalises the MLP's output before it is added to the residual (Gemma 2 and
3, OLMo 2, GLM 4), ``mlp_out`` is after that norm, like TransformerLens' hook_mlp_out, and ``mlp_raw`` before it, like a
hook on the MLP module. Otherwise both are the MLP module's output, and edits of ``mlp_raw`` run first.

``resid_mid`` and ``mlp_norm`` are only read, by transcoders that were trained there: the input of the norm before the
MLP, and its output without gain and bias.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from inference.interventions import SITE_KINDS, Site, SiteKind

Edit = Callable[[Tensor], Tensor | None]

LAYERS = ("layers", "h")
ATTENTIONS = ("self_attn", "attention", "self_attention", "attn")
PROJECTIONS = ("o_proj", "dense", "out_proj", "c_proj")
MLPS = ("mlp", "block_sparse_moe")
MLP_NORMS = ("post_feedforward_layernorm", "post_mlp_layernorm")
NORMS_BEFORE_MLP = ("pre_feedforward_layernorm", "pre_mlp_layernorm", "ln_2", "ln_mlp", "post_attention_layernorm")
READ_ONLY: frozenset[SiteKind] = frozenset({"resid_mid", "mlp_norm"})


class SiteError(ValueError):
    """An intervention does not fit the model. The message names the possible values."""


def decoder_layers(module: nn.Module) -> nn.ModuleList:
    """Return the list of decoder layers. Raise SiteError if the architecture has none."""
    decoder = module.get_decoder() if hasattr(module, "get_decoder") else module  # type: ignore[operator]
    layers = _child(decoder, LAYERS) or _child(_child(module, ("model",)) or decoder, LAYERS)
    if not isinstance(layers, nn.ModuleList):
        raise SiteError(f"{type(module).__name__} has no list of decoder layers to steer.")
    return layers


def site_width(module: nn.Module, site: Site) -> int:
    """Return the number of values at the site. Raise SiteError if it does not exist."""
    target = _target(module, site)
    if site.kind == "attn_out":
        return _input_width(target)
    return int(module.config.get_text_config().hidden_size)  # type: ignore[union-attr, operator]


def site_widths(module: nn.Module) -> dict[Site, int]:
    """Return every site of the model with its number of values. Empty if the architecture has no decoder layers."""
    try:
        layers = decoder_layers(module)
    except SiteError:
        return {}
    found = [
        Site(number, kind)
        for number, layer in enumerate(layers)
        for kind, target in _targets(layer).items()
        if target is not None
    ]
    return {site: site_width(module, site) for site in found}


def attach(module: nn.Module, site: Site, edit: Edit) -> Callable[[], None]:
    """Run ``edit`` on the site's tensor in each forward pass. Returns a function that removes the hook."""
    target = _target(module, site)
    if site.kind in READ_ONLY:
        return target.register_forward_pre_hook(_norm_input_hook(site, target, edit), with_kwargs=True).remove
    if site.kind in {"resid_pre", "mlp_in", "attn_out"}:
        return target.register_forward_pre_hook(_input_hook(edit), with_kwargs=True).remove
    comes_first = site.kind == "mlp_raw"  # the same module as mlp_out if there is no norm between them
    return target.register_forward_hook(_output_hook(edit), prepend=comes_first).remove


def _target(module: nn.Module, site: Site) -> nn.Module:
    """Return the module whose input or output is the site. Raise SiteError with the existing sites."""
    layers = decoder_layers(module)
    if not 0 <= site.layer < len(layers):
        raise SiteError(f"There is no site at {site.label}: the model has layers 0 to {len(layers) - 1}.")
    layer = layers[site.layer]
    target = _targets(layer).get(site.kind)
    if target is None:
        known = ", ".join(kind for kind in SITE_KINDS if _targets(layer).get(kind) is not None)
        raise SiteError(f"There is no site at {site.label} in a {type(layer).__name__}. Available sites: {known}.")
    return target


def _targets(layer: nn.Module) -> dict[SiteKind, nn.Module | None]:
    return {
        "resid_pre": layer,
        "resid_post": layer,
        "resid_mid": _norm_before_mlp(layer),
        "mlp_norm": _norm_before_mlp(layer),
        "mlp_in": _mlp(layer),
        "mlp_raw": _mlp(layer),
        "mlp_out": _child(layer, MLP_NORMS) or _mlp(layer),
        "attn_out": _output_projection(layer),
    }


def _mlp(layer: nn.Module) -> nn.Module | None:
    """Return the MLP; None if it adds the residual itself (Bloom), so that its output includes the residual."""
    mlp = _child(layer, MLPS)
    return None if mlp is None or "residual" in inspect.signature(mlp.forward).parameters else mlp


def _norm_before_mlp(layer: nn.Module) -> nn.Module | None:
    """Return the norm before the MLP; None if the layer has none (OLMo 2), or shares it with the attention."""
    norm = _child(layer, NORMS_BEFORE_MLP)
    has_other_use = (
        norm is getattr(layer, "post_attention_layernorm", None) and _child(layer, MLP_NORMS[:1]) is not None
    )
    return None if has_other_use or _mlp(layer) is None else norm


def _output_projection(layer: nn.Module) -> nn.Module | None:
    """Return the output projection: ``nn.Linear``, GPT-2's Conv1D, or the loader's replacement of a linear."""
    attention = _child(layer, ATTENTIONS)
    attention = (
        None if attention is None else _child(attention, ATTENTIONS) or attention
    )  # GPT-Neo nests it in another module
    projection = None if attention is None else _child(attention, PROJECTIONS)
    return projection if hasattr(projection, "in_features") or hasattr(projection, "nx") else None


def _input_width(projection: nn.Module) -> int:
    return int(projection.in_features if hasattr(projection, "in_features") else projection.nx)  # type: ignore[arg-type]


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    """Return the first child with one of the names."""
    found = (getattr(module, name, None) for name in names)
    return next((child for child in found if isinstance(child, nn.Module)), None)


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


def _norm_input_hook(site: Site, norm: nn.Module, look: Edit) -> Callable[..., None]:
    normalise = _identity if site.kind == "resid_mid" else _normalisation(site, norm)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        changed = look(normalise(args[0] if args else kwargs["hidden_states"]))
        assert changed is None, "nothing writes to this site"

    return hook


def _identity(x: Tensor) -> Tensor:
    return x


def _normalisation(site: Site, norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the norm without gain and bias, in float32."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if isinstance(norm, nn.LayerNorm):
        return lambda x: functional.layer_norm(x.float(), (x.shape[-1],), eps=norm.eps)
    if "RMSNorm" in type(norm).__name__ and isinstance(eps, float):
        return lambda x: functional.rms_norm(x.float(), (x.shape[-1],), eps=eps)
    raise SiteError(f"The {type(norm).__name__} before the MLP is not supported at {site.label}.")


def _output_hook(edit: Edit) -> Callable[..., Any]:
    def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            changed = edit(output[0])
            return None if changed is None else (changed, *output[1:])
        return edit(output)

    return hook


class HookOrder(IntEnum):
    """The order of edits at a site."""

    READ_BEFORE = 0
    STEER = 1
    READ_AFTER = 2


class SiteHooks:
    """The hooks of one model. A site has at most one edit per position in the order, and no hook without edits."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._edits: dict[Site, dict[HookOrder, Edit]] = {}
        self._detach: dict[Site, Callable[[], None]] = {}

    def put(self, site: Site, turn: HookOrder, edit: Edit) -> Callable[[], None]:
        """Run ``edit`` in each forward pass. Returns a function that ends it. Raise SiteError if the site does not
        exist.
        """
        if site not in self._edits:
            self._detach[site] = attach(self._module, site, partial(self._run, site))
            self._edits[site] = {}
        assert turn not in self._edits[site], "every edit has its own turn"
        self._edits[site] = dict(sorted([*self._edits[site].items(), (turn, edit)]))
        return partial(self._take, site, turn)

    def _take(self, site: Site, turn: HookOrder) -> None:
        del self._edits[site][turn]
        if not self._edits[site]:
            del self._edits[site]
            self._detach.pop(site)()

    def _run(self, site: Site, hidden: Tensor) -> Tensor | None:
        """Return the changed hidden states; None if nothing changed them."""
        changed: Tensor | None = None
        for edit in self._edits[site].values():
            result = edit(hidden if changed is None else changed)
            changed = changed if result is None else result
        return changed
