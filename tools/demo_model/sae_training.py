"""Training of the TopK SAE (Gao et al. 2024: TopK activation, auxiliary loss for dead features, unit decoder rows)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tools.demo_model.language_model import Report, learning_rate_share
from tools.demo_model.recipe import SaeRecipe
from tools.demo_model.sae import TopKSae, chunks, keep_top

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
    """Trains on vectors scaled to a mean norm of sqrt(d_in); `finish` folds the scale back into the biases."""

    def __init__(self, pool: Tensor, recipe: SaeRecipe, seed: int) -> None:
        self.recipe = recipe
        self.generator = torch.Generator().manual_seed(seed)
        self.scale = float(pool.norm(dim=1).mean()) / pool.shape[1] ** 0.5
        self.pool = pool / self.scale  # [n, d_in]
        self.sae = self._fresh_sae(pool.shape[1])
        self.parameters = [self.sae.W_enc, self.sae.b_enc, self.sae.W_dec, self.sae.b_dec]
        for parameter in self.parameters:
            parameter.requires_grad_()
        self.optimizer = torch.optim.Adam(self.parameters, lr=recipe.learning_rate, betas=(0.9, 0.999), fused=True)
        self.batches_silent = torch.zeros(recipe.d_sae, dtype=torch.long)  # [d_sae]

    def _fresh_sae(self, d_in: int) -> TopKSae:
        """Initialise with random unit vectors as decoder rows, their transpose as encoder, and the mean of the pool as
        b_dec."""
        directions = torch.randn(self.recipe.d_sae, d_in, generator=self.generator)
        directions /= directions.norm(dim=1, keepdim=True)
        return TopKSae(
            directions.T.clone(), torch.zeros(self.recipe.d_sae), directions, self.pool.mean(0), self.recipe.k
        )

    def train(self, report: Report) -> None:
        """Train on `recipe.tokens` vectors in random batches from the pool."""
        steps = max(1, self.recipe.tokens // self.recipe.batch)
        for step in range(steps):
            picked = torch.randint(len(self.pool), (self.recipe.batch,), generator=self.generator)
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.learning_rate * learning_rate_share(step, steps, 20)
            loss = self._step(self.pool[picked])
            if step % 200 == 199 or step == steps - 1:
                report(f"sae: step {step + 1}/{steps}, loss {loss:.4f}, {int(self._dead().sum())} silent features")

    def finish(self) -> TopKSae:
        """Return the SAE for unscaled vectors. TopK and relu commute with positive scales, so only biases change."""
        tensors = [parameter.detach() for parameter in self.parameters]
        return TopKSae(tensors[0], tensors[1] * self.scale, tensors[2], tensors[3] * self.scale, self.recipe.k)

    def _dead(self) -> Tensor:
        return self.batches_silent > self.recipe.dead_after_batches

    def _step(self, x: Tensor) -> float:
        pre = self.sae.pre_activations(x)  # [batch, d_sae]
        a = keep_top(pre, self.recipe.k)
        error = x - self.sae.decode(a)
        loss = error.square().mean()
        total = loss + self.recipe.aux_weight * self._aux_loss(pre, error.detach())
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        fired = (a.detach() > 0).any(0)
        self.batches_silent = torch.where(fired, 0, self.batches_silent + 1)
        with torch.no_grad():
            self.sae.W_dec /= self.sae.W_dec.norm(dim=1, keepdim=True)
        return loss.item()

    def _aux_loss(self, pre: Tensor, error: Tensor) -> Tensor:
        """Return the auxiliary loss: dead features reconstruct the residual error of the others."""
        dead = self._dead()
        if not dead.any():
            return torch.zeros(())
        masked = pre.masked_fill(~dead, -torch.inf)
        revived = keep_top(masked, min(AUX_FEATURES, int(dead.sum()))) @ self.sae.W_dec
        return (error - revived).square().mean()


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
