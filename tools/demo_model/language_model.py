"""The demo language model: a small Llama, and its training on packed rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.demo_model.recipe import ModelRecipe

Report = Callable[[str], None]
FALL = 1 / 3  # the share of all steps over which the learning rate falls


def build_model(recipe: ModelRecipe, *, bos: int, eos: list[int], pad: int, seed: int) -> LlamaForCausalLM:
    """Build an untrained model of the recipe's shape, in float32, seeded."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_kv_heads,
        max_position_embeddings=recipe.max_positions,
        tie_word_embeddings=True,
        bos_token_id=bos,
        eos_token_id=eos[0],
        pad_token_id=pad,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=bos, eos_token_id=eos, pad_token_id=pad, do_sample=True, temperature=0.8, top_p=0.95
    )
    return model


def pack_rows(documents: Iterator[str], backend: Tokenizer, length: int, rows: int) -> Tensor:
    """Return `rows` rows of `length` tokens; each starts with a new document and is filled with further ones."""
    packed = torch.empty(rows, length, dtype=torch.long)  # [rows, length]
    for row in range(rows):
        ids: list[int] = []
        while len(ids) < length:
            ids += backend.encode(next(documents), add_special_tokens=False).ids
        packed[row] = torch.tensor(ids[:length])
    return packed


def train_model(
    model: LlamaForCausalLM, recipe: ModelRecipe, documents: Iterator[str], backend: Tokenizer, report: Report
) -> float:
    """Train in place on `recipe.tokens` tokens with AdamW; return the mean loss of the last tenth, in nats."""
    steps = max(1, recipe.tokens // recipe.tokens_per_step)
    optimizer = torch.optim.AdamW(
        _parameter_groups(model, recipe.weight_decay), lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True
    )
    losses: list[float] = []
    started = time.monotonic()
    model.train()
    for step in range(steps):
        length = recipe.long_row_length if step % recipe.long_every == recipe.long_every - 1 else recipe.row_length
        rows = pack_rows(documents, backend, length, max(1, recipe.tokens_per_step // length))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * learning_rate_share(step, steps, recipe.warmup_steps)
        losses.append(_train_step(model, optimizer, rows))
        if step % 50 == 49 or step == steps - 1:
            rate = (step + 1) * recipe.tokens_per_step / (time.monotonic() - started)
            report(
                f"model: step {step + 1}/{steps}, loss {sum(losses[-50:]) / len(losses[-50:]):.3f}, {rate:.0f} tokens/s"
            )
    model.eval()
    tail = losses[-max(1, steps // 10) :]
    return sum(tail) / len(tail)


def learning_rate_share(step: int, steps: int, warmup: int) -> float:
    """Return the share of the peak rate at `step`: linear warm-up, the full rate, and a linear fall to 0.02 over the
    last third.

    Until the fall begins nothing depends on `steps`, so that a run can be measured before its length is decided.
    """
    if step < warmup:
        return (step + 1) / warmup
    left = (steps - step) / max(1.0, steps * FALL)
    return min(1.0, 0.02 + 0.98 * left)


def computes_bfloat16() -> bool:
    """Return whether this processor has fast bfloat16 multiplication; otherwise float32 is many times faster."""
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _train_step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, rows: Tensor) -> float:
    with torch.autocast("cpu", torch.bfloat16, enabled=computes_bfloat16()):
        hidden = model.model(input_ids=rows, use_cache=False).last_hidden_state  # [rows, length, hidden]
        logits = model.lm_head(hidden[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def _parameter_groups(model: LlamaForCausalLM, weight_decay: float) -> list[dict[str, object]]:
    """Return parameter groups: matrices have weight decay, norms do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
