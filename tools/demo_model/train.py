"""Make the demo, from an empty folder to its artifacts."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo_model.artifact import Demo, write_artifacts
from tools.demo_model.language_model import Report
from tools.demo_model.recipe import DemoRecipe
from tools.demo_model.stages import make_features, make_model, make_profiles, make_sae, make_tokenizer

THREADS = 2


def train_demo(
    recipe: DemoRecipe, folder: Path, report: Report, *, start: Path | None = None, threads: int = THREADS
) -> Demo:
    """Make the demo by `recipe` and write it to `folder`; the model begins with the weights in `start`, if given.

    `threads` is fixed, because sums depend on how they are split.
    """
    torch.set_num_threads(threads)
    tokenizer = make_tokenizer(recipe)
    report(f"tokenizer: {len(tokenizer)} tokens")
    model, loss = make_model(recipe, tokenizer, report, start)
    demo = finish_demo(recipe, tokenizer, model, loss, report)
    write_artifacts(demo, folder)
    report(f"written to {folder}")
    return demo


def finish_demo(
    recipe: DemoRecipe, tokenizer: PreTrainedTokenizerFast, model: LlamaForCausalLM, loss: float, report: Report
) -> Demo:
    """Run all stages after the language model: SAE, features and profiles."""
    sae = make_sae(recipe, tokenizer, model, report)
    findings = make_features(recipe, tokenizer, model, sae, report)
    profiles = make_profiles(recipe, tokenizer, model, sae, findings, report)
    health = findings.health
    figures = {
        "l0": round(health.l0, 4),
        "fvu": round(health.fvu, 5),
        "mean_resid_norm": round(health.mean_resid_norm, 4),
        "tokens": health.tokens,
        "model_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "train_loss": round(loss, 4),
        "seed": recipe.seed,
        "layer": recipe.sae.layer,
        "site": "resid_post",
        "dead_share": round(health.dead_share, 5),
    }
    return Demo(recipe, model, tokenizer, sae, findings.features, profiles, figures)
