"""Hook names of TransformerLens and Hugging Face, as sites of our hook protocol."""

from __future__ import annotations

import re

from inference.interventions import Site, SiteKind
from steering.saes.errors import InvalidSAEError

_TRANSFORMER_LENS = re.compile(r"blocks\.(\d{1,4})\.(.+)")
_KINDS: dict[str, SiteKind] = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_post": "resid_post",
    "hook_mlp_out": "mlp_out",
    "attn.hook_z": "attn_out",
}
_HUGGING_FACE: tuple[tuple[re.Pattern[str], SiteKind], ...] = (
    (re.compile(r"model\.layers\.(\d{1,4})(?:\.output)?"), "resid_post"),
    (re.compile(r"model\.layers\.(\d{1,4})\.input"), "resid_pre"),
    (re.compile(r"model\.layers\.(\d{1,4})\.mlp(?:\.output)?"), "mlp_out"),
    (re.compile(r"model\.layers\.(\d{1,4})\.self_attn\.o_proj\.input"), "attn_out"),
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
    raise InvalidSAEError(f"The hook {name!r} is not supported; known are {known} and model.layers.N.")
