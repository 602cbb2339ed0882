"""The stages of making the demo, each a function of the recipe and of earlier results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo_model.concept import CONCEPTS, labelled_stories
from tools.demo_model.corpus import END_OF_TEXT, write_documents, write_drills
from tools.demo_model.effect import Bench, SamplingPlan
from tools.demo_model.feature import Feature, count_activity, describe_features, words_of_tokens
from tools.demo_model.language_model import Report, build_model, train_model
from tools.demo_model.profile import Dictionary, Profile, ProfileDesigner, mean_activations
from tools.demo_model.recipe import DemoRecipe
from tools.demo_model.residual import collect_residuals
from tools.demo_model.sae import TopKSae
from tools.demo_model.sae_training import SaeHealth, SaeTrainer, measure_health
from tools.demo_model.tokenizer import train_tokenizer
from tools.demo_model.warm_start import carry_over

TOKENIZER_STREAM, MODEL_STREAM, SAE_STREAM, MEASURE_STREAM, STORY_STREAM, DRILL_STREAM = range(6)


@dataclass(frozen=True, slots=True)
class Findings:
    """Measurements of an SAE: its health, its features, and mean activations by kind of story."""

    health: SaeHealth
    features: list[Feature]
    max_activation: Tensor
    context: Mapping[str, Tensor]


def stream_seed(recipe: DemoRecipe, stream: int) -> int:
    """Return the seed of one of the document streams, so that measurements use other documents than training."""
    return recipe.seed * 1000 + stream


def make_tokenizer(recipe: DemoRecipe) -> PreTrainedTokenizerFast:
    """Train the tokenizer on its own stream."""
    documents = islice(write_documents(stream_seed(recipe, TOKENIZER_STREAM)), recipe.tokenizer_documents)
    return train_tokenizer(documents, vocab_size=recipe.model.vocab_size, max_positions=recipe.model.max_positions)


def make_model(
    recipe: DemoRecipe, tokenizer: PreTrainedTokenizerFast, report: Report, start: Path | None = None
) -> tuple[LlamaForCausalLM, float]:
    """Return the trained model, its float32 weights rounded to bfloat16 values, and its last training loss in nats.

    Training starts from the model in the folder `start`, if given.
    """
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    model = build_model(
        recipe.model, bos=tokenizer.bos_token_id, eos=[tokenizer.eos_token_id, end], pad=end, seed=recipe.seed
    )
    if start is not None:
        carry_over(model, tokenizer, start)
    drills = islice(write_drills(stream_seed(recipe, DRILL_STREAM)), recipe.model.drill_documents)
    documents = chain(drills, write_documents(stream_seed(recipe, MODEL_STREAM)))
    loss = train_model(model, recipe.model, documents, tokenizer.backend_tokenizer, report)
    round_to_bfloat16(model)
    return model, loss


def round_to_bfloat16(model: LlamaForCausalLM) -> None:
    """Round the parameters in place to values that bfloat16 holds; buffers (rotary frequencies) stay exact."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())


def make_sae(
    recipe: DemoRecipe, tokenizer: PreTrainedTokenizerFast, model: LlamaForCausalLM, report: Report
) -> TopKSae:
    """Train the SAE on a pool of residuals."""
    pool, _ = _residuals(recipe, tokenizer, model, SAE_STREAM, recipe.sae.pool_tokens)
    report(f"sae: pool of {len(pool)} residuals")
    trainer = SaeTrainer(pool, recipe.sae, recipe.seed)
    trainer.train(report)
    return trainer.finish()


def make_features(
    recipe: DemoRecipe, tokenizer: PreTrainedTokenizerFast, model: LlamaForCausalLM, sae: TopKSae, report: Report
) -> Findings:
    """Return health and labelled features, measured on their own stream."""
    x, ids = _residuals(recipe, tokenizer, model, MEASURE_STREAM, recipe.measure_tokens)
    health = measure_health(sae, x)
    report(f"sae: l0 {health.l0:.2f}, fvu {health.fvu:.4f}, dead {health.dead_share:.1%}")
    activity = count_activity(sae, x, words_of_tokens(tokenizer.convert_ids_to_tokens(ids.tolist())))
    stories = labelled_stories(stream_seed(recipe, STORY_STREAM), recipe.labelled_stories)
    context = mean_activations(Bench(model, tokenizer, recipe.sae.layer), sae, stories)
    return Findings(health, describe_features(activity, context), activity.max_activation, context)


def make_profiles(
    recipe: DemoRecipe,
    tokenizer: PreTrainedTokenizerFast,
    model: LlamaForCausalLM,
    sae: TopKSae,
    findings: Findings,
    report: Report,
) -> list[Profile]:
    """Return one profile per concept, with features and strength chosen by their effect on samples."""
    bench = Bench(model, tokenizer, recipe.sae.layer)
    plan = SamplingPlan(count=recipe.effect_samples, tokens=recipe.effect_tokens, seed=recipe.seed)
    dictionary = Dictionary(sae, findings.max_activation, findings.health.mean_resid_norm)
    designer = ProfileDesigner(bench, dictionary, plan)
    return [designer.design(concept, findings.context, report) for concept in CONCEPTS]


def _residuals(
    recipe: DemoRecipe, tokenizer: PreTrainedTokenizerFast, model: LlamaForCausalLM, stream: int, tokens: int
) -> tuple[Tensor, Tensor]:
    documents = write_documents(stream_seed(recipe, stream))
    return collect_residuals(
        model, recipe.sae.layer, documents, tokenizer.backend_tokenizer, tokens, tokenizer.all_special_ids
    )
