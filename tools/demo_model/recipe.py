"""The recipe: every size and number that determines the result of `train_demo`."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """Shape of the language model and of its training; `tokens` is the budget, so that runs are repeatable.

    The first `drill_documents` are drills in copying. Small steps, for copying is learned by their number.
    """

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 512
    num_layers: int = 5
    num_heads: int = 8
    num_kv_heads: int = 4
    max_positions: int = 1024
    tokens: int = 8_000_000
    drill_documents: int = 9_000
    tokens_per_step: int = 1536
    row_length: int = 384
    long_row_length: int = 1024
    long_every: int = 10
    learning_rate: float = 1.5e-3
    warmup_steps: int = 100
    weight_decay: float = 0.05


@dataclass(frozen=True, slots=True)
class SaeRecipe:
    """Shape of the SAE and of its training, in residual vectors (`tokens`)."""

    layer: int = 2
    d_sae: int = 2048
    k: int = 16
    tokens: int = 3_500_000
    pool_tokens: int = 300_000
    batch: int = 1024
    learning_rate: float = 2e-3
    aux_weight: float = 1 / 32
    dead_after_batches: int = 60


@dataclass(frozen=True, slots=True)
class DemoRecipe:
    """Everything that `train_demo` needs; equal recipes give equal artifacts on equal machines."""

    seed: int = 7
    tokenizer_documents: int = 12_000
    measure_tokens: int = 120_000
    labelled_stories: int = 800
    effect_samples: int = 64
    effect_tokens: int = 80
    model: ModelRecipe = ModelRecipe()
    sae: SaeRecipe = SaeRecipe()


def quick_recipe(seed: int = 7) -> DemoRecipe:
    """Return a recipe that writes all files in seconds. Its output is only useful for tests."""
    model = replace(
        ModelRecipe(),
        vocab_size=600,
        hidden_size=32,
        intermediate_size=64,
        num_layers=3,
        num_heads=2,
        num_kv_heads=1,
        tokens=20_000,
        drill_documents=20,
        tokens_per_step=2048,
        row_length=128,
        long_row_length=256,
        warmup_steps=2,
    )
    sae = replace(SaeRecipe(), layer=1, d_sae=64, k=8, tokens=16_000, pool_tokens=5_000, batch=512)
    return DemoRecipe(
        seed=seed,
        tokenizer_documents=200,
        measure_tokens=4_000,
        labelled_stories=40,
        effect_samples=4,
        effect_tokens=6,
        model=model,
        sae=sae,
    )
