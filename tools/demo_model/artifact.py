"""The files of the demo: model, SAE, features, profiles, words, figures and card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo_model.card import write_card
from tools.demo_model.concept import CONCEPTS
from tools.demo_model.feature import Feature
from tools.demo_model.profile import Profile
from tools.demo_model.recipe import DemoRecipe
from tools.demo_model.sae import TopKSae, save_sae

MODEL_NAME = "millm-demo"


@dataclass(frozen=True, slots=True)
class Demo:
    """The results of one run of the recipe."""

    recipe: DemoRecipe
    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    sae: TopKSae
    features: list[Feature]
    profiles: list[Profile]
    health: dict[str, Any]


def write_artifacts(demo: Demo, folder: Path) -> None:
    """Write all files to `folder`, replacing existing ones."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(demo.model, demo.tokenizer, folder / "model")
    save_sae(
        demo.sae,
        folder / "sae",
        layer=demo.recipe.sae.layer,
        model_name=MODEL_NAME,
        context_size=demo.recipe.model.row_length,
    )
    _write_lines(folder / "features.json", [_feature_entry(feature) for feature in demo.features])
    _write_json(folder / "profiles.json", [profile_entry(profile) for profile in demo.profiles])
    _write_json(folder / "effects.json", [effect_entry(profile) for profile in demo.profiles])
    _write_json(folder / "words.json", {concept.name: list(concept.words) for concept in CONCEPTS})
    _write_json(folder / "health.json", demo.health)
    (folder / "README.md").write_text(write_card(demo.recipe, demo.health, demo.profiles), encoding="utf-8")


def write_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model in the Hugging Face layout, with weights in bfloat16; `model` itself stays float32."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    state.pop("lm_head.weight")  # tied to the embeddings
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**model.config.to_dict(), "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    config.pop("_name_or_path", None)  # where it was last loaded from: no one else's business
    _write_json(folder / "config.json", config)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def profile_entry(profile: Profile) -> dict[str, Any]:
    """Return the profile's entry in `profiles.json`."""
    note = (
        f"Adds {profile.push:.2f} of the mean residual norm; {profile.effect.ratio:.1f} times the words of the concept "
        f"in samples of a neutral prompt, at {profile.effect.perplexity_ratio:.2f} times their perplexity."
    )
    return {
        "name": profile.concept.name,
        "description": profile.concept.description,
        "edits": [asdict(edit) for edit in profile.edits],
        "note": note,
    }


def effect_entry(profile: Profile) -> dict[str, Any]:
    """Return the measured effect's entry in `effects.json`."""
    effect = profile.effect
    return {
        "name": profile.concept.name,
        "base_share": round(effect.base_share, 5),
        "share": round(effect.share, 5),
        "ratio": round(effect.ratio, 2),
        "base_perplexity": round(effect.base_perplexity, 3),
        "perplexity": round(effect.perplexity, 3),
        "perplexity_ratio": round(effect.perplexity_ratio, 3),
        "push": round(profile.push, 3),
    }


def _feature_entry(feature: Feature) -> dict[str, Any]:
    return {
        "index": feature.index,
        "label": feature.label,
        "max_activation": round(feature.max_activation, 4),
        "density": round(feature.density, 6),
        "top_tokens": list(feature.top_tokens),
    }


def _write_lines(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Write a JSON list with one entry per line: small, and readable in a diff."""
    path.write_text("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n", encoding="utf-8")


def _write_json(path: Path, value: dict[str, Any] | Sequence[Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
