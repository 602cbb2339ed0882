"""dictionary_learning: ``ae.pt`` beside ``config.json``, whose ``trainer.dict_class`` says which class saved it.

Each class is computed as in the current version of the library. Earlier versions scaled other classes by the norms of
the decoder: GatedAutoEncoder and JumpReluAutoEncoder, but not AutoEncoder.

========================  =====================================================================================
AutoEncoder               ``a = relu((x - bias) E + e)``; ``a`` times the decoder's norms, whose rows are of norm 1 then
AutoEncoderNew            ``a = relu(x E + e)``
GatedAutoEncoder          gated
JumpReluAutoEncoder       jumprelu, no bias subtracted
AutoEncoderTopK           topk of ``(x - b_dec) E + e``
BatchTopKSAE              jumprelu of ``(x - b_dec) E + e`` with one threshold for all features
MatryoshkaBatchTopKSAE    the same
========================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inference.interventions import Site, SiteKind
from steering.saes.config import SAEConfig, SAEMath
from steering.saes.config_fields import Config, read_choice, read_int, read_object, read_text
from steering.saes.errors import InvalidSAEError
from steering.saes.formats.format import Layout, SAEFormat
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights

_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "ae.pt"
_ARCHITECTURES = {
    "AutoEncoder": "standard",
    "AutoEncoderNew": "standard",
    "GatedAutoEncoder": "gated",
    "JumpReluAutoEncoder": "jumprelu",
    "AutoEncoderTopK": "topk",
    "BatchTopKSAE": "jumprelu",
    "MatryoshkaBatchTopKSAE": "jumprelu",
}
_SUBTRACTS_NOTHING = frozenset({"AutoEncoderNew", "JumpReluAutoEncoder"})
_BATCH_TOP_K = frozenset({"BatchTopKSAE", "MatryoshkaBatchTopKSAE"})
# The library hooks modules, so its mlp_out is the output of the MLP module.
_KINDS: dict[str, SiteKind] = {"resid_post": "resid_post", "resid": "resid_post", "mlp_out": "mlp_raw"}
_MATRICES = frozenset({"W_enc", "b_enc", "W_dec"})  # of Matryoshka and JumpReLU; other classes have linear layers
_LAYOUT = "dictionary-learning:"
# Classes that miLLM used to compute by older rules of the library. The suffix changes their checksum, so that profiles
# published with the old strengths are rejected instead of steering by another amount.
_LAYOUT_VERSIONS = dict.fromkeys(("AutoEncoder", "GatedAutoEncoder", "JumpReluAutoEncoder"), ":2")


class DictionaryLearning(SAEFormat):
    """SAEs of dictionary_learning, saved as pickles from which only tensors are read."""

    name = "dictionary-learning"
    title = "dictionary_learning"
    weights_pattern = r"ae\.pt"
    config_files = (_CONFIG_FILE,)
    required_files = (_CONFIG_FILE,)

    def recognises(self, place: SAEPlace) -> bool:
        return place.has(_WEIGHTS_FILE) and place.is_here(_CONFIG_FILE)

    def weights_file(self, place: SAEPlace) -> str:
        return _WEIGHTS_FILE

    def preview(self, place: SAEPlace) -> SAEConfig:
        trainer = read_object(place.json(_CONFIG_FILE), "trainer")
        architecture = read_choice(trainer, "dict_class", _ARCHITECTURES)
        kind = read_text(trainer, "dict_class")
        return SAEConfig(
            format=self.name,
            math=SAEMath(
                architecture=architecture,
                d_in=read_int(trainer, "activation_dim"),
                d_sae=read_int(trainer, "dict_size"),
                k=read_int(trainer, "k") if architecture == "topk" else None,
                apply_b_dec_to_input=kind not in _SUBTRACTS_NOTHING,
                layout=_LAYOUT + kind + _LAYOUT_VERSIONS.get(kind, ""),
            ),
            weights_file=_WEIGHTS_FILE,
            hook_name=read_text(trainer, "submodule_name"),
            site=_site(trainer),
            model_name=read_text(trainer, "lm_name"),
        )

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        d_in, d_sae = config.math.d_in, config.math.d_sae
        if set(headers) >= _MATRICES:
            shapes: dict[str, Shape] = {"W_enc": (d_in, d_sae), "b_enc": (d_sae,), "W_dec": (d_sae, d_in)}
        else:
            shapes = {"encoder.weight": (d_sae, d_in), "encoder.bias": (d_sae,), "decoder.weight": (d_in, d_sae)}
        kind, integers = _kind(config), frozenset[str]()
        match kind:
            case "GatedAutoEncoder":
                shapes = {**shapes, **dict.fromkeys(("r_mag", "gate_bias", "mag_bias"), (d_sae,))}
                del shapes["encoder.bias"]
            case "JumpReluAutoEncoder":
                shapes["threshold"] = (d_sae,)
            case "AutoEncoderTopK" | "BatchTopKSAE" | "MatryoshkaBatchTopKSAE":
                integers = frozenset({"k", "group_sizes"} & set(headers))
                shapes |= {name: headers[name].shape if name == "group_sizes" else () for name in integers}
        if kind in _BATCH_TOP_K:
            shapes["threshold"] = ()
        shapes[_BIASES.get(kind, "b_dec")] = (d_in,)
        return Layout(
            shapes, integers=integers, ignored=frozenset({"threshold"}) if kind == "AutoEncoderTopK" else frozenset()
        )

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        from steering.saes.architectures import gated_weights
        from steering.saes.folding import by_decoder_norm  # imports torch
        from steering.saes.sae import SAEWeights

        kind = _kind(config)
        linear = "encoder.weight" in tensors
        encoder = tensors.pop("encoder.weight").contiguous() if linear else tensors.pop("W_enc").T.contiguous()
        W_dec = tensors.pop("decoder.weight").T.contiguous() if linear else tensors.pop("W_dec").contiguous()
        b_dec = tensors[_BIASES.get(kind, "b_dec")]
        if kind == "GatedAutoEncoder":
            b_gate, b_mag = tensors["gate_bias"], tensors["mag_bias"]
            return gated_weights(
                encoder=encoder, b_gate=b_gate, b_mag=b_mag, r_mag=tensors["r_mag"], W_dec=W_dec, b_dec=b_dec
            )
        weights = SAEWeights(
            encoder=encoder,
            b_enc=tensors["encoder.bias" if linear else "b_enc"],
            W_dec=W_dec,
            b_dec=b_dec,
            threshold=_threshold(tensors, config),
        )
        _check_k(tensors, config)
        return by_decoder_norm(weights) if kind == "AutoEncoder" else weights


_BIASES = {"AutoEncoder": "bias", "AutoEncoderNew": "decoder.bias", "GatedAutoEncoder": "decoder_bias"}


def _kind(config: SAEConfig) -> str:
    return config.math.layout.split(":")[1]


def _site(trainer: Config) -> Site | None:
    """Return the site. ``submodule_name`` is free text such as resid_post_layer_8; the default is the layer output."""
    if not isinstance(trainer.get("layer"), int):
        return None
    layer = read_int(trainer, "layer")
    module = read_text(trainer, "submodule_name") or f"resid_post_layer_{layer}"
    kind = _KINDS.get(module.removesuffix(f"_layer_{layer}").removesuffix(f"_layer{layer}"))
    return None if kind is None else Site(layer, kind)


def _threshold(tensors: Mapping[str, Tensor], config: SAEConfig) -> Tensor | None:
    """Return the threshold. Raise InvalidSAEError if it is -1, which means that training has not measured it yet."""
    threshold = tensors.get("threshold")
    if threshold is None or threshold.ndim == 1:
        return threshold
    if threshold < 0:
        raise InvalidSAEError(f"threshold is {float(threshold)}: it was not measured during training.")
    return threshold.expand(config.math.d_sae).clone()


def _check_k(tensors: Mapping[str, Tensor], config: SAEConfig) -> None:
    k = tensors.get("k")
    if k is not None and config.math.k is not None and int(k) != config.math.k:
        raise InvalidSAEError(f"k is {int(k)} in {_WEIGHTS_FILE}, but {config.math.k} in {_CONFIG_FILE}.")
