"""The model card of the demo, written from the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.demo_model.profile import Profile
from tools.demo_model.recipe import DemoRecipe

_CARD = """# miLLM demo model and SAE

A very small language model with a sparse autoencoder (SAE), trained by this project on text that it writes itself.
It is made for trying out and testing miLLM without downloading anything; it knows nothing of the real world.

- `model/`: Llama architecture, {parameters:,} parameters (bfloat16), {layers} layers of width {hidden},
  vocabulary {vocab}, context {context}; chat template with system, user, assistant and tool turns.
- `sae/`: TopK SAE, SAELens v6 layout, {d_sae} features (k = {k}) on the residual stream after layer {layer}
  (`resid_post`).
- `features.json`: label, maximal activation, density and words of every live feature.
- `profiles.json`: steering profiles; `words.json`: the words their effect is measured by; `effects.json`: the effect.
- `health.json`: figures of the model and the SAE.

## How it was made

`manage.py train_demo --seed {seed} --tokens {tokens}`: a grammar writes stories and chats of a small world (moods,
animals, places, people, food, weather), a byte-level BPE tokenizer is trained on them, then the model, then the SAE on
residuals of ordinary tokens (special tokens are left out). Features for the profiles are picked by what they do to
samples.

## Measured

| figure | value |
|---|---|
| training loss, mean of the last tenth | {loss:.3f} nats per token |
| SAE: mean active features (L0) | {l0:.2f} |
| SAE: variance unexplained (FVU) | {fvu:.4f} |
| SAE: features never active on {measured:,} tokens | {dead:.1%} |
| mean residual norm | {norm:.2f} |

Steering, over {samples} seeded samples of {sample_tokens} tokens at temperature 1.0 of "Tell me a story.", against
unsteered:

| profile | words of the concept, unsteered | steered | times | perplexity ratio | push |
|---|---|---|---|---|---|
{effects}

Perplexity is that of the samples under the unsteered model; push is the norm of the added vector as a share of the mean
residual norm.

## Limits

It writes short English sentences of its small world and makes things up; its sums may be wrong; questions outside its
world get no useful answer. It is not fit for any use but demonstration and tests.

## Licence

MIT, as the project.
"""


def write_card(recipe: DemoRecipe, health: Mapping[str, Any], profiles: Sequence[Profile]) -> str:
    """Return the model card as Markdown."""
    model, sae = recipe.model, recipe.sae
    return _CARD.format(
        parameters=health["model_parameters"],
        layers=model.num_layers,
        hidden=model.hidden_size,
        vocab=model.vocab_size,
        context=model.max_positions,
        d_sae=sae.d_sae,
        k=sae.k,
        layer=sae.layer,
        seed=recipe.seed,
        tokens=model.tokens,
        loss=health["train_loss"],
        l0=health["l0"],
        fvu=health["fvu"],
        measured=health["tokens"],
        dead=health["dead_share"],
        norm=health["mean_resid_norm"],
        samples=recipe.effect_samples,
        sample_tokens=recipe.effect_tokens,
        effects="\n".join(map(_effect_row, profiles)),
    )


def _effect_row(profile: Profile) -> str:
    effect = profile.effect
    return (
        f"| {profile.concept.name} | {effect.base_share:.2%} | {effect.share:.2%} | {effect.ratio:.1f} | "
        f"{effect.perplexity_ratio:.2f} | {profile.push:.2f} |"
    )
