"""Llama Scope: ``hyperparams.json`` and ``checkpoints/final.safetensors``, written by the older code of OpenMOSS.

All features share one threshold, in units of the raw residual. The weights expect a residual scaled to the norm
``sqrt(d)``, so the threshold is scaled too.
"""

from __future__ import annotations

from steering.saes.config import SAEConfig
from steering.saes.config_fields import read_choice, read_object, read_positive
from steering.saes.errors import InvalidSAEError
from steering.saes.formats.openmoss import DATASET_WISE, OpenMOSS, dataset_factor, openmoss_config, openmoss_math
from steering.saes.place import SAEPlace

_CONFIG_FILE = "hyperparams.json"
_WEIGHTS_FILE = "checkpoints/final.safetensors"


class LlamaScope(OpenMOSS):
    """JumpReLU without a bias on the input. The configuration contains the average norm of the data set."""

    name = "llama-scope"
    title = "Llama Scope"
    weights_pattern = r"checkpoints/final\.safetensors"
    config_files = (_CONFIG_FILE,)
    required_files = (_CONFIG_FILE,)

    def recognises(self, place: SAEPlace) -> bool:
        return place.is_here(_CONFIG_FILE) and place.has(_WEIGHTS_FILE)

    def weights_file(self, place: SAEPlace) -> str:
        return _WEIGHTS_FILE

    def preview(self, place: SAEPlace) -> SAEConfig:
        config = place.json(_CONFIG_FILE)
        math = openmoss_math(self.name, config)
        if math.architecture != "jumprelu":
            raise InvalidSAEError(f"act_fn must be jumprelu for Llama Scope, got {config.get('act_fn')!r}.")
        read_choice(config, "norm_activation", {DATASET_WISE: ""}, DATASET_WISE)
        factor = dataset_factor(read_positive(read_object(config, "dataset_average_activation_norm"), "in"), math.d_in)
        math = openmoss_math(
            self.name,
            config,
            scaling_factor=factor,
            threshold=read_positive(config, "jump_relu_threshold") * factor,
            scales_by_weights=False,
        )
        return openmoss_config(self.name, _WEIGHTS_FILE, config, math)
