"""Training of an SAE on batches of activations.

::

    x    = h / scale - b_dec           scale: the mean norm of h is sqrt(d_in) afterwards
    pre  = x W_enc + b_enc
    a    = activation(pre)
    xhat = a W_dec + b_dec             decoder rows have length 1

The loss is the mean squared error, plus the auxiliary loss for dead features (Gao et al. 2024, "Scaling and evaluating
sparse autoencoders"), for JumpReLU plus ``l0_weight * (L0 / k - 1)^2`` with the straight-through estimates of
Rajamanoharan et al. 2024 ("Jumping ahead"), where the gradient of a threshold ``t`` uses a rectangle of the width
``bandwidth`` around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from steering.saes.sae import SAEWeights
from steering.training.active import ActiveFeatures, above, largest_of_batch, largest_per_token, sum_by_feature
from steering.training.recipe import TrainingRecipe

_NAMES = ("encoder", "b_enc", "W_dec", "b_dec", "log_threshold")
_FIRST_ACTIVE = 2  # times k: active features of a JumpReLU SAE before its first step


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Figures of one batch: loss, fraction of variance unexplained, active features per token, share of dead ones."""

    loss: float
    fvu: float
    l0: float
    dead_share: float


class SAETrainer:
    """Parameters and optimiser of an SAE in training; deterministic for the recipe and the batches."""

    def __init__(self, recipe: TrainingRecipe, first: Tensor, scale: float, *, fast: bool | None = None) -> None:
        """Initialise from a first batch ``[tokens, d_in]``, already divided by ``scale``.

        The decoder has random directions, the encoder is its transpose, and ``b_dec`` the mean of the batch. ``fast``
        computes the product that finds the active features in bfloat16; None: where the processor has it.
        """
        self.recipe, self.scale = recipe, scale
        self.step = 0
        self._fast = has_fast_bfloat16() if fast is None else fast
        generator = torch.Generator().manual_seed(recipe.seed)
        directions = torch.randn(recipe.features, first.shape[1], generator=generator)
        directions /= directions.norm(dim=1, keepdim=True)
        self.encoder = directions.clone()  # [d_sae, d_in]
        self.b_enc = torch.zeros(recipe.features)
        self.W_dec = directions  # [d_sae, d_in]
        self.b_dec = first.mean(0)  # [d_in]
        self.log_threshold = torch.full((recipe.features,), math.log(self._first_threshold(first)))
        self.silent_tokens = torch.zeros(recipe.features, dtype=torch.int64)
        self.batch_threshold = torch.zeros(())  # of batchtopk: the smallest active value of the last batch
        for parameter in self.parameters:
            parameter.requires_grad_()
        beta1 = 0.0 if recipe.activation == "jumprelu" else 0.9
        self._optimizer = torch.optim.Adam(self.parameters, lr=recipe.learning_rate, betas=(beta1, 0.999), fused=True)

    @property
    def parameters(self) -> list[Tensor]:
        names = _NAMES if self.recipe.activation == "jumprelu" else _NAMES[:-1]
        return [getattr(self, name) for name in names]

    @property
    def is_dead(self) -> Tensor:
        """Which features ``[d_sae]`` were silent for longer than ``recipe.dead_after`` tokens."""
        return self.silent_tokens > self.recipe.dead_after

    def train_step(self, x: Tensor) -> StepFigures:
        """Take one step on a batch ``[tokens, d_in]`` that is divided by the scale."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate_at(self.step)
        self._optimizer.zero_grad(set_to_none=True)
        pre = self._pre_activations(x)
        active, is_on = self._select(pre)
        values = active.values * is_on
        error, loss = self._backward(x, pre, active, values, is_on)
        fired = torch.bincount(active.features[values > 0], minlength=self.recipe.features) > 0
        self.silent_tokens = torch.where(fired, 0, self.silent_tokens + len(x))
        self._update()
        self.step += 1
        variance = float((x - x.mean(0)).square().sum())
        num_active = int((values > 0).sum())
        return StepFigures(
            loss=loss,
            fvu=float(error.square().sum()) / variance if variance else 0.0,
            l0=num_active / len(x),
            dead_share=float(self.is_dead.float().mean()),
        )

    def calibrate(self, batches: Iterable[Tensor]) -> None:
        """Set the threshold of a ``batchtopk`` SAE: the mean of the smallest active values of ``batches``.

        No-op for other activations. Called after the last step, in float32.
        """
        if self.recipe.activation != "batchtopk":
            return
        smallest = []
        for x in batches:
            pre = self._pre_activations(x, exact=True)
            found = largest_of_batch(pre, self.recipe.k * len(x), 0.8 * float(self.batch_threshold))
            smallest.append(float(found.values.min()) if len(found.values) else 0.0)
        self.batch_threshold = torch.tensor(sum(smallest) / len(smallest))

    def weights(self) -> SAEWeights:
        """Return the weights for activations that are not scaled.

        All activations commute with a positive factor, so only biases and thresholds change.
        """
        with torch.no_grad():
            threshold = None
            if self.recipe.activation == "jumprelu":
                threshold = self.log_threshold.exp() * self.scale
            elif self.recipe.activation == "batchtopk":
                threshold = (self.batch_threshold * self.scale).expand(self.recipe.features).clone()
            return SAEWeights(
                encoder=self.encoder.detach().clone(),
                b_enc=self.b_enc.detach() * self.scale,
                W_dec=self.W_dec.detach().clone(),
                b_dec=self.b_dec.detach() * self.scale,
                threshold=threshold,
            )

    def state(self) -> dict[str, Tensor]:
        """Return everything that a checkpoint needs: parameters, moments of Adam, and counters."""
        state = {name: getattr(self, name).detach() for name in _NAMES}
        state |= {"silent_tokens": self.silent_tokens, "batch_threshold": self.batch_threshold}
        state |= {"step": torch.tensor(self.step), "scale": torch.tensor(self.scale, dtype=torch.float64)}
        for name, parameter in zip(_NAMES, self.parameters, strict=False):
            for key, value in self._optimizer.state[parameter].items():
                state[f"adam.{name}.{key}"] = value
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore a state of :meth:`state`. Raise KeyError or RuntimeError if it is of another recipe."""
        with torch.no_grad():
            for name in _NAMES:
                getattr(self, name).copy_(state[name])
        self.silent_tokens, self.batch_threshold = state["silent_tokens"].clone(), state["batch_threshold"].clone()
        self.step, self.scale = int(state["step"]), float(state["scale"])
        for name, parameter in zip(_NAMES, self.parameters, strict=False):
            prefix = f"adam.{name}."
            self._optimizer.state[parameter] = {
                key.removeprefix(prefix): value.clone() for key, value in state.items() if key.startswith(prefix)
            }

    @torch.no_grad()
    def _pre_activations(self, x: Tensor, *, exact: bool = False) -> Tensor:
        """Return ``[tokens, d_sae]``; with bfloat16 unless ``exact``, where that is fast."""
        centred = x - self.b_dec
        if self._fast and not exact:
            return (centred.bfloat16() @ self.encoder.bfloat16().T).float() + self.b_enc
        return centred @ self.encoder.T + self.b_enc

    @torch.no_grad()
    def _select(self, pre: Tensor) -> tuple[ActiveFeatures, Tensor]:
        """Return the pairs that have a gradient, and which of them are active (``[pairs]``, bool)."""
        recipe = self.recipe
        if recipe.activation == "topk":
            active = largest_per_token(pre, recipe.k)
        elif recipe.activation == "batchtopk":
            active = largest_of_batch(pre, recipe.k * len(pre), 0.8 * float(self.batch_threshold))
            self.batch_threshold = active.values.min() if len(active.values) else torch.zeros(())
        else:
            threshold = self.log_threshold.exp()
            active = above(pre, threshold - recipe.bandwidth / 2)
            return active, (active.values > threshold[active.features]) & (active.values > 0)
        return active, active.values > 0

    def _backward(
        self, x: Tensor, pre: Tensor, active: ActiveFeatures, values: Tensor, is_on: Tensor
    ) -> tuple[Tensor, float]:
        """Set all gradients. Return the error ``[tokens, d_in]`` and the loss."""
        weights = values.clone().requires_grad_()
        error = active.decode(self.W_dec, weights) + self.b_dec - x
        loss = error.square().mean()
        aux = self._dead_features(pre)
        if aux is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            revived, aux_weights = aux
            left = -error.detach() - revived.decode(self.W_dec, aux_weights)
            loss = loss + self.recipe.aux_weight * left.square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
        assert weights.grad is not None
        with torch.no_grad():
            self._set_encoder_gradient(x, active, weights.grad * is_on)
            if aux is not None:
                assert aux[1].grad is not None
                self._set_encoder_gradient(x, aux[0], aux[1].grad * (aux[0].values > 0))
            penalty = 0.0
            if self.recipe.activation == "jumprelu":
                penalty = self._set_threshold_gradient(len(x), active, weights.grad, is_on)
        return error.detach(), float(loss.detach()) + penalty

    def _dead_features(self, pre: Tensor) -> tuple[ActiveFeatures, Tensor] | None:
        """Return the largest dead features of each token, and their values as a leaf; None without dead features."""
        dead = self.is_dead.nonzero().flatten()
        if not len(dead) or not self.recipe.aux_weight:
            return None
        found = largest_per_token(pre[:, dead], min(self.recipe.aux_k, len(dead)))
        revived = ActiveFeatures(dead[found.features], found.values, found.offsets)
        return revived, found.values.clone().requires_grad_()

    def _set_encoder_gradient(self, x: Tensor, active: ActiveFeatures, gradient: Tensor) -> None:
        """Add the gradients of the encoder, given those of the pre-activations of the active pairs ``[pairs]``."""
        d_sae = self.recipe.features
        bias = torch.zeros(d_sae).index_add_(0, active.features, gradient)
        _add_gradient(self.encoder, sum_by_feature(x - self.b_dec, active, gradient, d_sae))
        _add_gradient(self.b_enc, bias)
        _add_gradient(self.b_dec, -(bias @ self.encoder))

    def _set_threshold_gradient(
        self, num_tokens: int, active: ActiveFeatures, gradient: Tensor, is_on: Tensor
    ) -> float:
        """Add the gradients of the thresholds, and return the penalty on L0."""
        recipe = self.recipe
        threshold = self.log_threshold.exp()[active.features]
        is_near = ((active.values - threshold).abs() < recipe.bandwidth / 2).float()
        excess = int(is_on.sum()) / num_tokens / recipe.k - 1
        of_penalty = recipe.l0_weight * 2 * excess / recipe.k / num_tokens
        of_pairs = -is_near / recipe.bandwidth * (threshold * gradient + of_penalty) * threshold
        _add_gradient(self.log_threshold, torch.zeros(recipe.features).index_add_(0, active.features, of_pairs))
        return recipe.l0_weight * excess * excess

    @torch.no_grad()
    def _update(self) -> None:
        """Take the optimiser's step. Decoder rows move only sideways, and keep the length 1."""
        gradient = self.W_dec.grad
        assert gradient is not None
        gradient -= (gradient * self.W_dec).sum(1, keepdim=True) * self.W_dec
        self._optimizer.step()
        self.W_dec /= self.W_dec.norm(dim=1, keepdim=True)

    def _first_threshold(self, first: Tensor) -> float:
        """Return the threshold at which a few times ``k`` features are active before the first step."""
        pre = self._pre_activations(first[:256])
        num = min(pre.numel(), _FIRST_ACTIVE * self.recipe.k * len(pre))
        return max(float(pre.flatten().topk(num).values[-1]), 1e-3)


def _add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def has_fast_bfloat16() -> bool:
    """Return whether the processor has products of bfloat16."""
    return bool(torch.cpu._is_avx512_bf16_supported())
