"""Training of the demo's SAE, and its health."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steering.training.recipe import TrainingRecipe
from steering.training.trainer import SAETrainer
from tools.demo_model.language_model import Report
from tools.demo_model.recipe import SaeRecipe
from tools.demo_model.sae import TopKSae, chunks

AUX_FEATURES = 32


@dataclass(frozen=True, slots=True)
class SaeHealth:
    """Fit of an SAE: mean active features per token, share of variance unexplained, share of features never active."""

    l0: float
    fvu: float
    dead_share: float
    mean_resid_norm: float
    tokens: int


class SaeTrainer:
    """Trains a TopK SAE with :class:`steering.training.trainer.SAETrainer` on random batches of a pool."""

    def __init__(self, pool: Tensor, recipe: SaeRecipe, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        scale = float(pool.norm(dim=1).mean()) / pool.shape[1] ** 0.5
        self._pool = pool / scale  # [n, d_in]
        self._recipe = TrainingRecipe(
            features=recipe.d_sae,
            k=recipe.k,
            tokens=recipe.tokens,
            batch=recipe.batch,
            learning_rate=recipe.learning_rate,
            aux_weight=recipe.aux_weight,
            aux_k=AUX_FEATURES,
            dead_after=recipe.dead_after_batches * recipe.batch,
            seed=seed,
        )
        self._trainer = SAETrainer(self._recipe, self._pool, scale, fast=False)

    def train(self, report: Report) -> None:
        """Train on `recipe.tokens` vectors in random batches from the pool."""
        steps, batch = self._recipe.steps, self._recipe.batch
        for step in range(1, steps + 1):
            picked = torch.randint(len(self._pool), (batch,), generator=self._generator)
            figures = self._trainer.train_step(self._pool[picked])
            if step % 200 == 0 or step == steps:
                report(f"sae: step {step}/{steps}, loss {figures.loss:.4f}, {figures.dead_share:.1%} silent features")

    def finish(self) -> TopKSae:
        """Return the SAE for unscaled vectors."""
        weights = self._trainer.weights()
        return TopKSae(weights.encoder.T.contiguous(), weights.b_enc, weights.W_dec, weights.b_dec, self._recipe.k)


def measure_health(sae: TopKSae, x: Tensor) -> SaeHealth:
    """Return the health of `sae` on residuals x [n, d_in] of ordinary tokens."""
    squared_error, active = 0.0, torch.zeros(sae.W_enc.shape[1])
    for chunk in chunks(x):
        a = sae.encode(chunk)
        squared_error += float((chunk - sae.decode(a)).double().square().sum())
        active += (a > 0).sum(0)
    variance = float((x - x.mean(0)).double().square().sum())
    return SaeHealth(
        l0=float(active.sum()) / len(x),
        fvu=squared_error / variance,
        dead_share=float((active == 0).float().mean()),
        mean_resid_norm=float(x.norm(dim=1).mean()),
        tokens=len(x),
    )
