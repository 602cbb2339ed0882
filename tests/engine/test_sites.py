"""Sites of the architectures that transformers has in the common decoder layout, against hooks on their modules."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inference.engine.models.sites import SiteError, attach, site_width
from inference.interventions import SITE_KINDS, Site

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
SMALL_GPT2 = {"vocab_size": 99, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
OWN: dict[str, dict[str, Any]] = {
    "gpt2": SMALL_GPT2,
    "gptj": {**SMALL_GPT2, "rotary_dim": 4},
    "gpt_bigcode": SMALL_GPT2,
    "stablelm": {"head_dim": 8},
    "helium": {"head_dim": 8},
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "qwen2_moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    "qwen3_moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    "granitemoe": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "gpt_neo": {"num_layers": 3, "num_heads": 4, "attention_types": [[["global"], 3]]},
}
# Where each architecture's MLP and output projection are, written down from its source.
LLAMA = ("model.layers", "mlp", "self_attn.o_proj")
PLACES: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "olmo", "granite", "starcoder2", "cohere", "cohere2",
         "stablelm", "glm", "smollm3", "helium", "seed_oss", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "apertus"),
        LLAMA,
    ),
    **dict.fromkeys(
        ("gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4"),
        ("model.layers", "post_feedforward_layernorm", "self_attn.o_proj"),
    ),
    "glm4": ("model.layers", "post_mlp_layernorm", "self_attn.o_proj"),
    "granitemoe": ("model.layers", "block_sparse_moe", "self_attn.o_proj"),
    "phi": ("model.layers", "mlp", "self_attn.dense"),
    "gpt_neox": ("gpt_neox.layers", "mlp", "attention.dense"),
    "falcon": ("transformer.h", "mlp", "self_attention.dense"),
    "gpt2": ("transformer.h", "mlp", "attn.c_proj"),
    "gpt_bigcode": ("transformer.h", "mlp", "attn.c_proj"),
    "gptj": ("transformer.h", "mlp", "attn.out_proj"),
    "gpt_neo": ("transformer.h", "mlp", "attn.attention.out_proj"),
}  # fmt: skip
POST_NORMS = ("post_feedforward_layernorm", "post_mlp_layernorm")
IDS = torch.tensor([[5, 6, 7, 8, 9]])
LAYER = 1


def build(architecture: str) -> Any:
    small = {name: value for name, value in SMALL.items() if (architecture, name) != ("falcon", "head_dim")}
    config = AutoConfig.for_model(architecture, **{**small, **OWN.get(architecture, {})})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("architecture", PLACES)
def test_each_site_is_where_the_architecture_has_it(architecture):
    model = build(architecture)
    layers, mlp, projection = PLACES[architecture]
    layer = f"{layers}.{LAYER}"
    places = {
        "resid_pre": (layer, True),
        "resid_post": (layer, False),
        "mlp_in": (f"{layer}.{mlp if mlp not in POST_NORMS else 'mlp'}", True),
        "mlp_raw": (f"{layer}.{mlp if mlp not in POST_NORMS else 'mlp'}", False),
        "mlp_out": (f"{layer}.{mlp}", False),
        "attn_out": (f"{layer}.{projection}", True),
    }
    plain = logits(model)
    for kind in SITE_KINDS:
        step = torch.randn(site_width(model, Site(LAYER, kind)), generator=torch.Generator().manual_seed(1))
        remove = attach(model, Site(LAYER, kind), lambda h, step=step: h + step)
        ours = logits(model)
        remove()
        path, is_input = places[kind]
        handle = plain_hook(model.get_submodule(path), step, is_input=is_input)
        theirs = logits(model)
        handle.remove()
        assert torch.equal(ours, theirs), kind
        assert not torch.allclose(ours, plain, atol=1e-6), kind
    assert torch.equal(logits(model), plain)


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3_text", "olmo2", "glm4"])
def test_mlp_raw_is_before_the_norm_behind_the_mlp_and_mlp_out_after_it(architecture):
    model = build(architecture)
    layer = model.get_submodule(f"{PLACES[architecture][0]}.{LAYER}")
    norm = getattr(layer, PLACES[architecture][1])
    seen = capture(model, Site(LAYER, "mlp_raw"), Site(LAYER, "mlp_out"))
    assert torch.equal(norm(seen[Site(LAYER, "mlp_raw")]), seen[Site(LAYER, "mlp_out")])
    assert not torch.allclose(seen[Site(LAYER, "mlp_raw")], seen[Site(LAYER, "mlp_out")], atol=1e-3)


# The norm before each architecture's MLP, and the gain and bias behind it; None without a norm of its own.
NORMS: dict[str, tuple[str, str] | None] = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "granite", "smollm3", "mixtral", "glm4"),
        ("post_attention_layernorm", "w"),
    ),
    **dict.fromkeys(("starcoder2", "gpt_neox"), ("post_attention_layernorm", "w b")),
    **dict.fromkeys(("gpt2", "gpt_neo", "gpt_bigcode"), ("ln_2", "w b")),
    "gemma": ("post_attention_layernorm", "1 + w"),
    **dict.fromkeys(("gemma2", "gemma3_text"), ("pre_feedforward_layernorm", "1 + w")),
    **dict.fromkeys(("olmo2", "olmo3", "exaone4", "phi", "cohere", "gptj"), None),
}


@pytest.mark.parametrize("architecture", NORMS)
def test_the_norm_before_the_mlp_with_and_without_its_gain(architecture):
    """``mlp_norm`` is TransformerLens' ln2.hook_normalized, ``resid_mid`` its hook_resid_mid."""
    model, place = build(architecture), NORMS[architecture]
    sites = [Site(LAYER, kind) for kind in ("resid_mid", "mlp_norm", "mlp_in")]
    if place is None:
        with pytest.raises(SiteError, match=r"There is no site at layer 1 \(mlp_norm\)"):
            capture(model, sites[1])
        return
    norm, gain = model.get_submodule(f"{PLACES[architecture][0]}.{LAYER}.{place[0]}"), place[1]
    with torch.no_grad():
        norm.weight.copy_(torch.rand_like(norm.weight) + 0.5)
        if "b" in gain:
            norm.bias.copy_(torch.randn_like(norm.bias))
    seen: list[torch.Tensor] = []
    handle = norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    found = capture(model, *sites)
    handle.remove()
    assert torch.equal(found[sites[0]], seen[0])
    h = seen[0].double()
    if "b" in gain:
        expected = (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    else:
        eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0))
        expected = h / (h.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    torch.testing.assert_close(found[sites[1]].double(), expected, atol=1e-5, rtol=1e-5)
    scaled = expected * (1 + norm.weight if gain == "1 + w" else norm.weight)
    shifted = scaled + norm.bias if "b" in gain else scaled
    torch.testing.assert_close(found[sites[2]].double(), shifted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("order", [("mlp_raw", "mlp_out"), ("mlp_out", "mlp_raw")])
def test_without_a_norm_behind_the_mlp_its_two_sites_are_one_place_and_mlp_raw_comes_first(order):
    model = build("llama")
    seen: list[str] = []
    removes = [attach(model, Site(LAYER, kind), lambda h, kind=kind: seen.append(kind)) for kind in order]
    logits(model)
    assert seen == ["mlp_raw", "mlp_out"], "whichever was attached first"
    for remove in removes:
        remove()


def test_resid_pre_is_what_the_layer_before_puts_out():
    model = build("llama")
    seen: dict[Site, torch.Tensor] = {}
    sites = [Site(1, "resid_pre"), Site(0, "resid_post"), Site(0, "resid_pre")]
    removes = [attach(model, site, lambda h, site=site: seen.update({site: h})) for site in sites]
    logits(model)
    assert torch.equal(seen[sites[0]], seen[sites[1]])
    assert torch.equal(seen[sites[2]], model.model.embed_tokens(IDS))
    for remove in removes:
        remove()


@pytest.mark.parametrize(
    ("architecture", "site", "message"),
    [
        ("llama", Site(3), "There is no site at layer 3 (resid_post): the model has layers 0 to 2."),
        ("bloom", Site(1, "mlp_out"), "in a BloomBlock. Available sites: resid_pre, resid_post, attn_out."),
        ("opt", Site(1, "mlp_out"), "in a OPTDecoderLayer. Available sites: resid_pre, resid_post, attn_out."),
    ],
)
def test_a_site_that_does_not_exist_is_an_error_that_names_the_valid_ones(architecture, site, message):
    model = build(architecture)
    for use in (lambda: site_width(model, site), lambda: attach(model, site, lambda h: h)):
        with pytest.raises(SiteError) as caught:
            use()
        assert str(caught.value).endswith(message)


def capture(model: Any, *sites: Site) -> dict[Site, torch.Tensor]:
    seen: dict[Site, torch.Tensor] = {}
    removes = [attach(model, site, partial(seen.__setitem__, site)) for site in sites]
    logits(model)
    for remove in removes:
        remove()
    return seen


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def plain_hook(module: torch.nn.Module, step: torch.Tensor, *, is_input: bool) -> Any:
    """As a user of transformers would write it."""

    def before(_: object, args: Any, kwargs: Any) -> Any:
        if args:
            return (args[0] + step, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": kwargs["hidden_states"] + step}

    def after(_: object, args: object, output: Any) -> Any:
        return (output[0] + step, *output[1:]) if isinstance(output, tuple) else output + step

    if is_input:
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)
