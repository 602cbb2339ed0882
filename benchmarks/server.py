"""A temporary miLLM server with its own database, a random model and steering profiles, on a free port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.profiles import D_SAE
from benchmarks.shapes import Shape, shape_folder
from tests import live

SAE_NAME = "bench-sae"
CREATE_PROFILES = """
from benchmarks.server_profiles import create_profiles
create_profiles(model={model!r}, count={count})
"""


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A running server. ``api_url`` is the ``base_url`` of OpenAI clients."""

    process: live.LiveServer
    model: str

    @property
    def api_url(self) -> str:
        return f"{self.process.url}/v1"

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def own_server(
    shape: Shape,
    folder: Path,
    home: Path,
    *,
    num_profiles: int = 0,
    quantization: str = "",
    settings: dict[str, str] | None = None,
) -> Iterator[OwnServer]:
    """Serve the shape with profiles ``add-0``, ``add-1``, ... The state is stored in ``home``, which must not exist."""
    environment = {
        "MILLM_HOME": str(home),
        "MILLM_AUTH": "loopback",
        "MILLM_LOG_CONTENT": "none",
        "MILLM_LOG_LEVEL": "WARNING",
        **(settings or {}),
    }
    prepare(shape, folder, home, environment, num_profiles=num_profiles, quantization=quantization or "none")
    with live.serving(environment=environment) as process:
        yield OwnServer(process, shape.name)
        code = process.stop()
        if code != 0:
            raise RuntimeError(f"The server exited with code {code}:\n{process.output}")


def prepare(
    shape: Shape, folder: Path, home: Path, environment: dict[str, str], *, num_profiles: int, quantization: str
) -> None:
    """Add the model to the database, and if there are profiles, an SAE with them."""
    live.manage("migrate", "--verbosity", "0", environment=environment)
    place = (shape.name, str(shape_folder(shape, folder)))
    weights = ("--dtype", shape.dtype, "--quantization", quantization)
    live.manage("add_model", *place, *weights, "--default", "--autoload", environment=environment)
    if num_profiles:
        sae = write_sae(home / "sae", shape)
        live.manage("add_sae", SAE_NAME, str(sae), "--model", shape.name, environment=environment)
        script = CREATE_PROFILES.format(model=shape.name, count=num_profiles)
        live.manage("shell", "--no-imports", "-c", script, environment=environment)


def write_sae(path: Path, shape: Shape) -> Path:
    """Write a random ReLU SAE of the middle layer in the format of SAELens."""
    path.mkdir(parents=True)
    draw = torch.Generator().manual_seed(0)
    encoder = torch.randn(shape.hidden, D_SAE, generator=draw) * 0.02
    tensors = {
        "W_enc": encoder,
        "b_enc": torch.zeros(D_SAE),
        "W_dec": encoder.t().contiguous(),
        "b_dec": torch.zeros(shape.hidden),
    }
    save_file(tensors, path / "sae_weights.safetensors")
    config = {
        "architecture": "standard",
        "d_in": shape.hidden,
        "d_sae": D_SAE,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {
            "sae_lens_version": "6.54.0",
            "hook_name": f"blocks.{shape.layers // 2}.hook_resid_post",
            "model_name": shape.name,
        },
    }
    (path / "cfg.json").write_text(json.dumps(config))
    return path


def profile_name(number: int) -> str:
    return f"add-{number}"
