"""Profiles in the engine, and the same changes as plain forward hooks on transformers' own generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from inference.engine.models.loader import LoadedModel
from inference.interventions import Site
from inference.steering_refs import PublishedVersion, SAESource, SteeringSpec
from steering.profiles.compilation import ProfileCompiler
from steering.saes.sae import SparseAutoencoder
from steering.spec.edit import EditSpec
from steering.spec.rendering import edits_to_json, fingerprint
from tests.engine.harness import EngineHarness, Transcript
from tests.inference.pickling import sent
from tests.steering.sae_files import Array

Change = Callable[[Array], Array]
PATHS = {
    "resid_pre": ("model.layers.{}", True),
    "resid_post": ("model.layers.{}", False),
    "mlp_in": ("model.layers.{}.mlp", True),
    "mlp_raw": ("model.layers.{}.mlp", False),
    "mlp_out": ("model.layers.{}.mlp", False),
    "attn_out": ("model.layers.{}.self_attn.o_proj", True),
}


@dataclass(frozen=True)
class Generated:
    """Greedy tokens and the log-probability of each."""

    token_ids: list[int]
    logprobs: list[float]


@dataclass
class PlainHook:
    """Changes the tokens that ``acts(place)`` chooses, in float64; ``place`` counts from the prompt's beginning."""

    change: Change
    acts: Callable[[int], bool]
    num_seen: int = 0
    values: list[Array] = field(default_factory=list)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        h = hidden.detach().double().numpy()[0]
        chosen = np.array([self.acts(self.num_seen + i) for i in range(len(h))])
        self.num_seen += len(h)
        changed = np.where(chosen[:, None], self.change(h), h)
        return torch.tensor(changed, dtype=hidden.dtype)[None]


@contextmanager
def hooked(
    loaded: LoadedModel, site: Site, change: Change, acts: Callable[[int], bool] = lambda place: True
) -> Iterator[None]:
    """``register_forward_hook`` and its twin for inputs, on the module that the site's name means."""
    path, is_input = PATHS[site.kind]
    module, edit = loaded.module.get_submodule(path.format(site.layer)), PlainHook(change, acts)

    def before(_: object, args: Any, kwargs: Any) -> Any:
        return (
            ((edit(args[0]), *args[1:]), kwargs)
            if args
            else (args, {**kwargs, "hidden_states": edit(kwargs["hidden_states"])})
        )

    def after(_: object, args: object, output: Any) -> Any:
        return (edit(output[0]), *output[1:]) if isinstance(output, tuple) else edit(output)

    handle = (
        module.register_forward_pre_hook(before, with_kwargs=True) if is_input else module.register_forward_hook(after)
    )
    try:
        yield
    finally:
        handle.remove()


def reference(loaded: LoadedModel, prompt: Sequence[int], num_tokens: int) -> Generated:
    """transformers' own ``generate`` on its own attention, under whatever hooks there are."""
    module: Any = loaded.module
    ours = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        output = module.generate(
            torch.tensor([list(prompt)]), max_new_tokens=num_tokens, do_sample=False, eos_token_id=None, pad_token_id=0,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
    finally:
        module.set_attn_implementation(ours)
    tokens = output.sequences[0, len(prompt) :].tolist()
    logprobs = [float(logits[0].log_softmax(-1)[token]) for logits, token in zip(output.logits, tokens, strict=True)]
    return Generated(tokens, logprobs)


def steered(
    loaded: LoadedModel,
    edits: Sequence[EditSpec],
    saes: Sequence[SparseAutoencoder],
    prompt: Sequence[int],
    num_tokens: int,
    *,
    special: frozenset[int] = frozenset(),
    **config: Any,
) -> Generated:
    """The engine with the profile, sent as data as to a remote one; its receipt must add up."""
    by_key = {sae.key: sae for sae in saes}
    sources = tuple(SAESource("", key, "", "", "") for key in by_key)
    version = PublishedVersion("profile", 1, fingerprint(edits), edits_to_json(edits), sources)
    compiler = ProfileCompiler(lambda source: by_key[source.checksum])
    intervention = compiler.compile(sent(SteeringSpec((version,), skip_token_ids=special))).intervention
    transcript = EngineHarness(loaded, **config).generate(
        prompt=tuple(prompt), max_tokens=num_tokens, intervention=intervention, logprobs=0
    )
    return generated(transcript)


def generated(transcript: Transcript) -> Generated:
    receipt = transcript.finished.receipt
    assert receipt is None or receipt.expected == receipt.applied
    return Generated(transcript.token_ids, [one.logprob for one in transcript.logprobs])


def assert_same(got: Generated, expected: Generated) -> None:
    assert got.token_ids == expected.token_ids
    np.testing.assert_allclose(got.logprobs, expected.logprobs, atol=2e-4)
