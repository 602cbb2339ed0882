"""The effect of steering: samples with and without it, their words, and how natural the model finds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from steering.evaluation.text_measures import perplexity
from tools.demo_model.concept import NEUTRAL_PROMPT, word_share

IGNORED = -100  # the target that cross_entropy skips


@dataclass(frozen=True, slots=True)
class Samples:
    """Answers to one prompt: their texts, and their token ids without the end marker."""

    texts: list[str]
    ids: list[list[int]]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Unsteered samples and their perplexity."""

    samples: Samples
    perplexity: float


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Sampling parameters: `count` answers of up to `tokens` tokens; temperature 0 is greedy."""

    count: int = 64
    tokens: int = 80
    temperature: float = 1.0
    seed: int = 0
    prompt: str = NEUTRAL_PROMPT


@dataclass(frozen=True, slots=True)
class Effect:
    """Shares of a concept's words and perplexities under the unsteered model, steered against unsteered."""

    share: float
    base_share: float
    perplexity: float
    base_perplexity: float

    @property
    def ratio(self) -> float:
        """The factor by which steering raises the share of the concept's words."""
        return self.share / max(self.base_share, 1e-9)

    @property
    def perplexity_ratio(self) -> float:
        """The factor by which steering raises the perplexity."""
        return self.perplexity / self.base_perplexity


class Bench:
    """A model with its tokenizer and steered layer, on which deltas are tried out."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, layer: int) -> None:
        self.model, self.tokenizer, self.layer = model, tokenizer, layer
        self.special = torch.tensor(sorted(tokenizer.all_special_ids))

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return the token ids of one user turn, ready for the answer."""
        chat = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        return self.tokenizer(chat, add_special_tokens=False)["input_ids"]  # type: ignore[no-any-return]

    @torch.no_grad()
    def sample(self, plan: SamplingPlan, delta: Tensor | None = None, phase: str = "both") -> Samples:
        """Sample seeded answers; `delta` [d_in] is added to the layer's output at every ordinary token of the phase."""
        generator = torch.Generator().manual_seed(plan.seed)
        prompt = self.prompt_ids(plan.prompt)
        cache = DynamicCache(config=self.model.config)
        ids = torch.tensor([prompt]).repeat(plan.count, 1)  # [count, length]
        answers = torch.empty(plan.count, 0, dtype=torch.long)
        for step in range(plan.tokens):
            active = delta if step > 0 or phase == "both" else None
            with self.steered(ids, active):
                logits = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[
                    :, -1
                ]
            ids = _pick(logits, plan.temperature, generator)  # [count, 1]
            answers = torch.cat([answers, ids], dim=1)
            if torch.isin(answers, self.special).any(1).all():
                break
        kept = [self._until_end(row) for row in answers.tolist()]
        return Samples([self.tokenizer.decode(row) for row in kept], kept)

    @torch.no_grad()
    def perplexity(self, samples: Samples, prompt: str = NEUTRAL_PROMPT) -> float:
        """Return the perplexity of all answers to `prompt` together, under the unsteered model."""
        start = self.prompt_ids(prompt)
        answers = [ids for ids in samples.ids if ids]
        longest = max(map(len, answers), default=0)
        padded = torch.tensor([start + ids + [0] * (longest - len(ids)) for ids in answers])  # [samples, length]
        targets = torch.tensor([ids + [IGNORED] * (longest - len(ids)) for ids in answers])  # [samples, longest]
        logits = self.model(input_ids=padded).logits[:, len(start) - 1 : -1]
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        together = perplexity((-losses[targets.flatten() != IGNORED]).tolist())
        assert together is not None
        return together

    def baseline(self, plan: SamplingPlan) -> Baseline:
        """Return unsteered samples of the plan with their perplexity."""
        samples = self.sample(plan)
        return Baseline(samples, self.perplexity(samples, plan.prompt))

    @contextmanager
    def steered(self, ids: Tensor, delta: Tensor | None) -> Iterator[None]:
        """Add `delta` to the layer's output at the ordinary tokens of `ids` [rows, length], inside the `with` block."""
        if delta is None:
            yield
            return
        moved = (~torch.isin(ids, self.special)).unsqueeze(-1) * delta  # [rows, length, d_in]
        handle = self.model.model.layers[self.layer].register_forward_hook(
            lambda _module, _inputs, output: output + moved
        )
        try:
            yield
        finally:
            handle.remove()

    def _until_end(self, ids: list[int]) -> list[int]:
        ends = [position for position, token in enumerate(ids) if token in self.tokenizer.all_special_ids]
        return ids[: ends[0]] if ends else ids


def compare(bench: Bench, base: Baseline, steered: Samples, words: tuple[str, ...]) -> Effect:
    """Return the effect of `steered` relative to `base` on the share of `words`."""
    base_share = word_share(base.samples.texts, words)
    return Effect(word_share(steered.texts, words), base_share, bench.perplexity(steered), base.perplexity)


def _pick(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
