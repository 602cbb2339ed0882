"""Loss recovered equals what plain hooks on the transformers model give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from inference.interventions import Site
from inference.models import LanguageModel
from inference.registry.standalone_model import StandaloneModel, load_standalone
from inference.steering_refs import SAESource
from steering.measuring.document import TokenisedDocument
from steering.measuring.loss import loss_recovered, measure_loss
from steering.measuring.measurement import measure_sae
from steering.models import SAE
from steering.sae_registry.health import judge
from steering.saes.loader import load_sae
from tests.builders import build_model
from tests.steering.sae_files import random_weights, sae_config, write_sae

SITE = Site(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_model(tmp_path_factory.mktemp("spliced") / "model")


@pytest.fixture(scope="module")
def reader(folder) -> StandaloneModel:
    return load_standalone(LanguageModel(name="tiny", source=str(folder), dtype="float32"))


def documents(reader: StandaloneModel) -> list[TokenisedDocument]:
    """Texts that start with a special token, as SAELens' do, so that no token counts as an attention sink."""
    special = min(reader.text.special_token_ids)
    texts = ("The cat sat by the sea and looked at the rain.", "A sad owl wrote a letter home.", "Rain. " * 9)
    pieces = [(special, *reader.text.encode(text)) for text in texts]
    return [TokenisedDocument(ids, tuple(one not in reader.text.special_token_ids for one in ids)) for ids in pieces]


def hooked_loss(folder, found: list[TokenisedDocument], replace: Callable[[Tensor, Tensor], Tensor] | None) -> float:
    """Return the mean loss of predictions at ordinary tokens; ``replace`` gets residuals and the mask of these."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    losses = []
    for document in found:
        ordinary, ids = torch.tensor(document.is_ordinary), torch.tensor([document.token_ids])

        def hook(_module, _inputs, output, ordinary=ordinary):
            return replace(output[0], ordinary)[None]

        handle = model.model.layers[1].register_forward_hook(hook) if replace else None
        with torch.no_grad():
            log_probs = model(ids).logits[0, :-1].log_softmax(-1)
        if handle:
            handle.remove()
        losses.append(-log_probs.gather(1, ids[0, 1:, None])[ordinary[:-1], 0])
    return float(torch.cat(losses).mean())


def test_losses_equal_those_of_plain_hooks(reader, folder, tmp_path):
    sae = load_sae(write_sae(tmp_path, sae_config(d_in=32), random_weights(d_in=32)))
    source = SAESource("random", sae.key, str(tmp_path), "", "")
    found = documents(reader)
    measurement = measure_sae(sae, SITE, found, reader)
    loss = measure_loss(sae, source, SITE, found, measurement, reader)
    assert loss is not None
    assert loss.num_tokens == sum(sum(document.is_ordinary[:-1]) for document in found)
    mean = measurement.reconstruction.mean
    assert mean is not None

    def spliced(h: Tensor, ordinary: Tensor) -> Tensor:
        return torch.where(ordinary[:, None], sae.decode(sae.encode(h), h), h)

    assert loss.model == pytest.approx(hooked_loss(folder, found, None), rel=1e-4)
    assert loss.spliced == pytest.approx(hooked_loss(folder, found, spliced), rel=1e-4)
    assert loss.zero == pytest.approx(hooked_loss(folder, found, lambda h, _: torch.zeros_like(h)), rel=1e-4)
    of_mean = hooked_loss(folder, found, lambda h, ordinary: torch.where(ordinary[:, None], mean, h))
    assert loss.mean == pytest.approx(of_mean, rel=1e-4)


def test_a_perfect_reconstruction_recovers_everything():
    assert loss_recovered(2.0, 2.0, 10.0) == 1.0
    assert loss_recovered(2.0, 10.0, 10.0) == 0.0
    assert loss_recovered(2.0, 4.0, 10.0) == 0.75
    assert loss_recovered(2.0, 2.0, 1.5) is None


def test_health_names_it():
    sae = SAE(l0=32, fvu=0.2, d_in=576, d_sae=8192, model_loss=2.0, spliced_loss=2.4, zero_loss=10.0)
    texts = [verdict.text for verdict in judge(sae)]
    assert (
        "Loss recovered: 95.0% (cross-entropy 2.00, with its reconstruction 2.40, with zeros 10.00 nats per token)."
        in texts
    )
    sae.spliced_loss = 6.0
    assert any(text.endswith("which is low.") for text in (verdict.text for verdict in judge(sae)))
    sae.spliced_loss = None
    assert not any("Loss" in verdict.text for verdict in judge(sae))
