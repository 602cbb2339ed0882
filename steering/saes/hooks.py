"""Convert hook names of TransformerLens, circuit-tracer and Hugging Face to sites.

Architectures such as Gemma 2 and 3, OLMo 2 and GLM 4 normalise the MLP's output before it joins the residual.
TransformerLens' ``hook_mlp_out`` is after that norm. A hook on the MLP module itself (``model.layers.N.mlp``, and
circuit-tracer's ``mlp.hook_out``) is before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.interventions import Site, SiteKind
from steering.saes.config_fields import shown
from steering.saes.errors import InvalidSAEError

_LAYER = r"(\d{1,4})"
_TRANSFORMER_LENS = re.compile(rf"blocks\.{_LAYER}\.(.+)")
_KINDS: dict[str, SiteKind] = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_post": "resid_post",
    "hook_mlp_out": "mlp_out",
    "mlp.hook_in": "mlp_in",
    "mlp.hook_out": "mlp_raw",
    "attn.hook_z": "attn_out",
}
_LAYERS = rf"(?:[a-z_]+\.){{0,3}}(?:layers|h)\.{_LAYER}"  # model.layers.3, gpt_neox.layers.3, transformer.h.3
_HUGGING_FACE: tuple[tuple[re.Pattern[str], SiteKind], ...] = (
    (re.compile(rf"{_LAYERS}(?:\.output)?"), "resid_post"),
    (re.compile(rf"{_LAYERS}\.input"), "resid_pre"),
    (re.compile(rf"{_LAYERS}\.mlp(?:\.output)?"), "mlp_raw"),
    (re.compile(rf"{_LAYERS}\.mlp\.input"), "mlp_in"),
    (re.compile(rf"{_LAYERS}\.(?:post_feedforward_layernorm|post_mlp_layernorm)(?:\.output)?"), "mlp_out"),
    (re.compile(rf"{_LAYERS}\.(?:self_attn\.o_proj|attention\.dense|attn\.c_proj)\.input"), "attn_out"),
)
# Inputs of an MLP, where a transcoder reads it, and where it writes if its configuration names no output.
# ln2.hook_normalized is the norm before its gain, hook_mlp_in and hook_resid_mid the residual before that norm.
_MLP_INPUTS: tuple[tuple[re.Pattern[str], SiteKind, SiteKind], ...] = (
    (re.compile(rf"blocks\.{_LAYER}\.ln2\.hook_normalized"), "mlp_norm", "mlp_out"),
    (re.compile(rf"blocks\.{_LAYER}\.(?:hook_mlp_in|hook_resid_mid)"), "resid_mid", "mlp_out"),
    (re.compile(rf"blocks\.{_LAYER}\.mlp\.hook_in"), "mlp_in", "mlp_raw"),
    (re.compile(rf"{_LAYERS}\.mlp\.input"), "mlp_in", "mlp_raw"),
    (
        re.compile(rf"{_LAYERS}\.(?:pre_feedforward_layernorm\.output|post_attention_layernorm\.output)"),
        "mlp_in",
        "mlp_out",
    ),
)


def parse_hook_name(name: str) -> Site:
    """Return the site of a hook name. Raise InvalidSAEError with the supported names."""
    match = _TRANSFORMER_LENS.fullmatch(name)
    if match and match[2] in _KINDS:
        return Site(int(match[1]), _KINDS[match[2]])
    for pattern, kind in _HUGGING_FACE:
        if match := pattern.fullmatch(name):
            return Site(int(match[1]), kind)
    known = ", ".join(f"blocks.N.{hook}" for hook in _KINDS)
    raise InvalidSAEError(f"The hook {shown(name)} is not supported. Supported: {known}, model.layers.N.")


def hook_name(site: Site) -> str:
    """Return TransformerLens' name of a site."""
    kinds = {kind: name for name, kind in _KINDS.items()}
    return f"blocks.{site.layer}.{kinds[site.kind]}"


def transcoder_site(input_hook: str, output_hook: str = "") -> Site:
    """Return the site where a transcoder writes: the output of the MLP whose input it reads.

    Without ``output_hook``, it follows from ``input_hook``. Raise InvalidSAEError unless the hooks are input and output
    of the same MLP.
    """
    expected = _mlp_output_of(input_hook)
    if not output_hook:
        return expected
    site = parse_hook_name(output_hook)
    if site.layer != expected.layer or site.kind not in ("mlp_raw", "mlp_out"):
        raise InvalidSAEError(
            f"The transcoder reads {shown(input_hook)} and writes {shown(output_hook)}; only an MLP of one layer is "
            "supported."
        )
    return site


def same_place(names: Sequence[str]) -> Site:
    """Return the site of all hook names; the first one wins if they differ only in the norm after the MLP.

    In a model without that norm, the output of the MLP module and what is added to the residual are the same, and some
    configurations name both. Raise InvalidSAEError for different sites.
    """
    sites = [parse_hook_name(name) for name in names]
    if len({(site.layer, "mlp" if site.kind in ("mlp_raw", "mlp_out") else site.kind) for site in sites}) > 1:
        raise InvalidSAEError(f"The hook names {' and '.join(names)} mean different places.")
    return sites[0]


def transcoder_input(input_hook: str) -> SiteKind:
    """Return where a transcoder reads in the layer of its MLP; the MLP's input if no hook is named."""
    return _mlp_places(input_hook)[1] if input_hook else "mlp_in"


def _mlp_output_of(input_hook: str) -> Site:
    layer, _, output = _mlp_places(input_hook)
    return Site(layer, output)


def _mlp_places(input_hook: str) -> tuple[int, SiteKind, SiteKind]:
    """Return the layer, and the sites where a transcoder reads and writes."""
    for pattern, source, output in _MLP_INPUTS:
        if match := pattern.fullmatch(input_hook):
            return int(match[1]), source, output
    raise InvalidSAEError(
        f"The transcoder's input hook {shown(input_hook)} is not supported. Supported: an MLP's input, such as "
        "blocks.N.ln2.hook_normalized, blocks.N.mlp.hook_in or model.layers.N.mlp.input."
    )
