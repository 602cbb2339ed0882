"""Hook names of TransformerLens and Hugging Face, as sites of our hook protocol."""

from __future__ import annotations

import re

from inference.interventions import Site, SiteKind
from steering.saes.errors import InvalidSAEError
from steering.saes.fields import shown

_LAYER = r"(\d{1,4})"
_TRANSFORMER_LENS = re.compile(rf"blocks\.{_LAYER}\.(.+)")
_KINDS: dict[str, SiteKind] = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_post": "resid_post",
    "hook_mlp_out": "mlp_out",
    "attn.hook_z": "attn_out",
}
_LAYERS = rf"(?:[a-z_]+\.){{0,3}}(?:layers|h)\.{_LAYER}"  # model.layers.3, gpt_neox.layers.3, transformer.h.3
_HUGGING_FACE: tuple[tuple[re.Pattern[str], SiteKind], ...] = (
    (re.compile(rf"{_LAYERS}(?:\.output)?"), "resid_post"),
    (re.compile(rf"{_LAYERS}\.input"), "resid_pre"),
    (re.compile(rf"{_LAYERS}\.(?:mlp|post_feedforward_layernorm)(?:\.output)?"), "mlp_out"),
    (re.compile(rf"{_LAYERS}\.(?:self_attn\.o_proj|attention\.dense|attn\.c_proj)\.input"), "attn_out"),
)
# What an MLP reads: where transcoders begin, and no site of ours.
_MLP_INPUTS = (
    re.compile(rf"blocks\.{_LAYER}\.(?:ln2\.hook_normalized|hook_mlp_in|mlp\.hook_in|hook_resid_mid)"),
    re.compile(rf"{_LAYERS}\.(?:mlp\.input|pre_feedforward_layernorm\.output|post_attention_layernorm\.output)"),
)


def parse_hook_name(name: str) -> Site:
    """The site that a hook name means; InvalidSAEError names those that are understood."""
    match = _TRANSFORMER_LENS.fullmatch(name)
    if match and match[2] in _KINDS:
        return Site(int(match[1]), _KINDS[match[2]])
    for pattern, kind in _HUGGING_FACE:
        if match := pattern.fullmatch(name):
            return Site(int(match[1]), kind)
    known = ", ".join(f"blocks.N.{hook}" for hook in _KINDS)
    raise InvalidSAEError(f"The hook {shown(name)} is not supported; known are {known} and model.layers.N.")


def mlp_output_of(input_hook: str) -> Site:
    """Where a transcoder writes that reads ``input_hook``: the same layer's MLP output.

    InvalidSAEError for a hook that is not an MLP's input.
    """
    for pattern in _MLP_INPUTS:
        if match := pattern.fullmatch(input_hook):
            return Site(int(match[1]), "mlp_out")
    raise InvalidSAEError(
        f"The transcoder reads {shown(input_hook)}; supported are those of an MLP, such as"
        " blocks.N.ln2.hook_normalized, blocks.N.mlp.hook_in and model.layers.N.mlp.input."
    )
