"""The trainer finds planted directions, and its gradients are those of autograd on the dense formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from steering.saes.architectures import ARCHITECTURES
from steering.saes.config import SAEMath
from steering.training.active import above, largest_of_batch, largest_per_token, sum_by_feature
from steering.training.errors import TrainingError
from steering.training.recipe import ACTIVATIONS, TrainingRecipe
from steering.training.trainer import SAETrainer
from tests.steering.training.planted import ACTIVE, D_IN, directions, vectors

RECIPE = TrainingRecipe(
    features=56, k=ACTIVE, tokens=512 * 450, batch=512, learning_rate=8e-3, dead_after=20_000, aux_k=8
)


def trainer_of(recipe: TrainingRecipe, **options: bool) -> SAETrainer:
    first = vectors(recipe.batch, 0)
    scale = float(first.norm(dim=1).mean()) / D_IN**0.5
    return SAETrainer(recipe, first / scale, scale, fast=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_planted_directions_are_found(activation):
    recipe = replace(RECIPE, activation=activation)
    trainer = trainer_of(recipe)
    for step in range(recipe.steps):
        figures = trainer.train_step(vectors(recipe.batch, step) / trainer.scale)
    trainer.calibrate(vectors(recipe.batch, seed) / trainer.scale for seed in (1, 2, 3))
    weights = trainer.weights()
    best = (directions() @ weights.W_dec.T).max(dim=1).values
    assert float((best > 0.9).float().mean()) >= 0.95
    assert figures.fvu < 0.15
    math = SAEMath(recipe.architecture, D_IN, recipe.features, k=ACTIVE if activation == "topk" else None)
    sae = ARCHITECTURES[math.architecture]("", math, weights)
    h = vectors(2000, 10_000)
    a = sae.encode(h)
    assert float((a > 0).sum(1).float().mean()) == pytest.approx(ACTIVE, rel=0.2)
    assert float((h - sae.decode(a, h)).square().sum() / (h - h.mean(0)).square().sum()) < 0.15


@pytest.mark.parametrize("activation", ["topk", "batchtopk"])
def test_gradients_are_those_of_the_dense_formula(activation):
    trainer = trainer_of(replace(RECIPE, activation=activation))
    trainer.silent_tokens[:6] = RECIPE.dead_after + 1
    x = vectors(64, 1) / trainer.scale
    pre = trainer._pre_activations(x)
    active, is_on = trainer._select(pre)
    trainer._backward(x, pre, active, active.values * is_on, is_on)
    sparse = [parameter.grad for parameter in trainer.parameters]
    dense = [parameter.detach().clone().requires_grad_() for parameter in trainer.parameters]
    encoder, b_enc, W_dec, b_dec = dense
    pre = (x - b_dec) @ encoder.T + b_enc
    kept = torch.zeros_like(pre, dtype=torch.bool)
    kept[active.tokens, active.features] = True
    error = x - (pre.relu() * kept) @ W_dec - b_dec
    top = pre[:, :6].topk(6, dim=1)
    revived = torch.zeros_like(pre[:, :6]).scatter(1, top.indices, top.values.relu()) @ W_dec[:6]
    loss = error.square().mean() + RECIPE.aux_weight * (error.detach() - revived).square().mean()
    loss.backward()
    for one, other in zip(sparse, dense, strict=True):
        torch.testing.assert_close(one, other.grad, atol=1e-6, rtol=1e-4)


def test_a_rectangle_estimates_the_gradient_of_thresholds():
    """Per pair within the bandwidth: -threshold / bandwidth * dL/da, and likewise for L0 (Rajamanoharan et al.)."""
    recipe = replace(RECIPE, activation="jumprelu", bandwidth=0.5, l0_weight=0.3)
    trainer = trainer_of(recipe)
    x = vectors(32, 1) / trainer.scale
    pre = trainer._pre_activations(x)
    active, is_on = trainer._select(pre)
    trainer._backward(x, pre, active, active.values * is_on, is_on)
    threshold = trainer.log_threshold.detach().exp()
    a = pre * (pre > threshold)
    error = a @ trainer.W_dec.detach() + trainer.b_dec.detach() - x
    of_a = 2 * error @ trainer.W_dec.detach().T / x.numel()
    excess = float((a > 0).sum()) / len(x) / recipe.k - 1
    of_l0 = recipe.l0_weight * 2 * excess / recipe.k / len(x)
    is_near = ((pre - threshold).abs() < recipe.bandwidth / 2).float()
    wanted = -(is_near / recipe.bandwidth * (threshold * of_a + of_l0)).sum(0) * threshold
    torch.testing.assert_close(trainer.log_threshold.grad, wanted, atol=1e-6, rtol=1e-3)


def test_dead_features_learn_from_the_error_of_the_others():
    trainer = trainer_of(replace(RECIPE, aux_weight=1.0))
    before = trainer.W_dec.detach().clone()
    trainer.silent_tokens[:10] = RECIPE.dead_after + 1
    x = vectors(64, 1) / trainer.scale
    active, _ = trainer._select(trainer._pre_activations(x))
    trainer.train_step(x)
    unused = torch.ones(RECIPE.features, dtype=torch.bool)
    unused[active.features] = False
    moved = (trainer.W_dec - before).norm(dim=1) > 1e-6
    assert moved[:10].all()
    assert not moved[10:][unused[10:]].any()


def test_decoder_rows_keep_length_one():
    trainer = trainer_of(RECIPE)
    for step in range(3):
        trainer.train_step(vectors(64, step) / trainer.scale)
    torch.testing.assert_close(trainer.W_dec.norm(dim=1), torch.ones(RECIPE.features))


def test_the_learning_rate_rises_and_falls():
    rates = [RECIPE.learning_rate_at(step) for step in range(RECIPE.steps)]
    assert rates[0] < rates[10] < max(rates) == RECIPE.learning_rate
    assert rates[-1] < 0.02 * RECIPE.learning_rate


def test_active_features_equal_dense_selection():
    pre = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    top = largest_per_token(pre, 4)
    dense = torch.zeros_like(pre)
    dense[top.tokens, top.features] = top.values
    wanted = torch.zeros_like(pre).scatter(1, pre.topk(4).indices, pre.topk(4).values.relu())
    assert torch.equal(dense, wanted)
    for guess in (0.0, 0.5, 9.0):
        found = largest_of_batch(pre, 40, guess)
        assert sorted(found.values.tolist()) == sorted(pre.flatten().topk(40).values.tolist())
    assert torch.equal(pre[found.tokens, found.features], found.values)
    rows = torch.randn(30, 5)
    np.testing.assert_allclose(top.decode(rows, top.values), wanted @ rows, rtol=1e-4, atol=1e-5)
    x = torch.randn(20, 5)
    np.testing.assert_allclose(sum_by_feature(x, top, top.values, 30), wanted.T @ x, rtol=1e-4, atol=1e-5)
    assert len(above(pre, 99.0).features) == 0


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"activation": "relu"}, "activation"),
        ({"features": 0}, "features"),
        ({"k": 57}, "k"),
        ({"tokens": 100}, "tokens"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"aux_weight": -1.0}, "aux_weight"),
        ({"dead_after": 0}, "dead_after"),
    ],
)
def test_bad_recipes(change, param):
    with pytest.raises(TrainingError) as found:
        replace(RECIPE, **change)
    assert found.value.param == param


def test_a_recipe_survives_json():
    assert TrainingRecipe.from_json(RECIPE.as_json()) == RECIPE
