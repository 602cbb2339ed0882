"""Check at load, on random tokens, that a model computes the same logits as transformers with the same weights.

The module's eager forward runs before any of our changes. Afterwards the same tokens run through the packed forward,
whole over a contiguous cache, and in chunks beside a second text over a paged one. The logits differ by rounding. The
expected size of that is measured by an eager forward in which every layer's input is changed by about the rounding
error. A state that the cache does not hold, or positions that depend on other texts of a step, cause far larger
differences.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from inference.engine.cache.layout import LayerLayout, group_layers, num_heads
from inference.engine.cache.pool import KVPool
from inference.engine.errors import UnsupportedModelError
from inference.engine.kernels.attention import LayoutProbe, TokenSpan
from inference.engine.kernels.linear_kinds import quantise
from inference.engine.kernels.step_inputs import build_step, step_tensors
from inference.engine.kernels.varlen_attention import PAGE_TOKENS, VarlenAttention, choose_attention
from inference.engine.models.facts import Weights
from inference.engine.models.sites import attach, decoder_layers
from inference.interventions import Site

logger = logging.getLogger(__name__)

NUM_TOKENS = 32
BLOCK = 16  # tokens, in a paged cache on the CPU
INT8_EPS = 2.0**-12  # some int8 kernels use activations as 16-bit integers
ROUNDINGS = 8.0  # allowed difference, in units of that caused by rounding every layer's input
FLOORS = {
    torch.float32: 1e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}  # minimum allowed difference, relative to the logits' spread
MOST = 0.5  # if rounding alone changes the logits by this share, a comparison is meaningless

# (text, tokens) of each step; a step's single tokens come first, as in the engine.
Step = tuple[tuple[int, int], ...]
WHOLE: tuple[Step, ...] = (((0, NUM_TOKENS),),)
CHUNKS: tuple[Step, ...] = (((0, 7), (1, 11)), ((0, 1), (1, 9)), ((1, 1), (0, 22)))
SINGLES: tuple[Step, ...] = (((0, 1), (1, 1)),) * 2
TEXTS = 2


@dataclass(frozen=True, slots=True)
class _Run:
    """One way to compute the logits. ``num_singles``: the last steps, which have single tokens only."""

    how: str
    steps: tuple[Step, ...]
    is_paged: bool
    num_singles: int = 0


RUNS = (
    _Run("in one piece over a contiguous cache", WHOLE, is_paged=False),
    _Run("in chunks beside another text over a paged cache", CHUNKS + SINGLES, is_paged=True, num_singles=len(SINGLES)),
)


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of transformers' eager forward for the first of two texts."""

    texts: tuple[tuple[int, ...], ...]
    logits: Tensor  # [tokens, vocab] float32
    dtype: torch.dtype
    tolerance: float


@torch.inference_mode()
def take_reference(
    module: PreTrainedModel, weights: Weights, *, vocab_size: int, max_length: int, avoid: Collection[int] = ()
) -> Reference:
    """Run the module as loaded by transformers. With int8 weights, its linears use the dequantised weights, and
    with ``w8a8`` rounded activations, too.

    ``avoid``: tokens that a model may treat specially.
    """
    texts = _random_texts(vocab_size, min(NUM_TOKENS, max_length), avoid)
    dtype, device = module.dtype, module.device
    eps = max(torch.finfo(dtype).eps, INT8_EPS if weights != "native" else 0.0)
    ids = torch.tensor([texts[0], texts[0]], device=device)
    with ExitStack() as stack:
        stack.enter_context(_moved_inputs(module, eps))
        if weights != "native":
            stack.enter_context(_int8_linears(module, rounded=weights == "w8a8"))
        exact, moved = module(input_ids=ids, use_cache=False).logits.float()
    rounding = float(_errors(moved, exact).median())
    if not np.isfinite(rounding):
        name = str(dtype).removeprefix("torch.")
        raise UnsupportedModelError(
            f"its own forward pass returns values that are not finite in {name}; choose another dtype"
        )
    return Reference(texts, exact, dtype, max(FLOORS.get(dtype, FLOORS[torch.float32]), ROUNDINGS * rounding))


@torch.inference_mode()
def compare(module: nn.Module, reference: Reference, *, batch_invariant: bool = False) -> bool:
    """Raise UnsupportedModelError if the packed forward gives other logits than the eager one.

    Return whether it is ``batch_invariant``, and logits have the same bits in chunks beside another text.
    """
    began_at = time.monotonic()
    is_meaningless = reference.tolerance > MOST
    if is_meaningless:
        logger.info("Self-check skipped: in this type, rounding alone changes the logits too much for a comparison.")
        if not batch_invariant:
            return False
    layouts = probe_layouts(module)
    strict = reference.dtype is torch.float32
    worst = 0.0
    logits = [
        _Trial(module, layouts, reference.texts, is_paged=run.is_paged, batch_invariant=batch_invariant).run(run.steps)
        for run in RUNS
    ]
    is_invariant = batch_invariant and all(torch.equal(logits[0], other) for other in logits[1:])
    if is_meaningless:
        return is_invariant
    for run, computed in zip(RUNS, logits, strict=True):
        errors = _errors(computed, reference.logits)
        cut = len(errors) - run.num_singles
        for part, how in ((errors[:cut], run.how), (errors[cut:], f"token by token {run.how}")):
            difference = float(part.max() if strict else part.median()) if len(part) else 0.0
            worst = max(worst, difference)
            if not difference <= reference.tolerance:
                raise UnsupportedModelError(
                    f"when a text is processed {how}, its logits differ from transformers' by {difference:.1%} of "
                    f"their spread, but rounding explains only {reference.tolerance:.1%}"
                )
    seconds = time.monotonic() - began_at
    logger.info("Logits agree with transformers to %.2g of %.2g allowed (%.1f s).", worst, reference.tolerance, seconds)
    return is_invariant


@torch.inference_mode()
def probe_layouts(module: nn.Module) -> list[LayerLayout]:
    """Return the layers' shapes, determined by a forward pass of one token."""
    probe = LayoutProbe()
    token = torch.zeros(1, 1, dtype=torch.long, device=next(module.parameters()).device)
    module(input_ids=token, position_ids=token, use_cache=False, packed_batch=probe)
    return [probe.layouts[layer] for layer in sorted(probe.layouts)]


# The reference


def _random_texts(vocab_size: int, num_tokens: int, avoid: Collection[int]) -> tuple[tuple[int, ...], ...]:
    generator = np.random.default_rng(0)
    allowed = np.setdiff1d(np.arange(vocab_size), np.fromiter(avoid, dtype=np.int64, count=len(avoid)))
    chosen = generator.choice(allowed if len(allowed) else np.arange(vocab_size), (TEXTS, num_tokens))
    return tuple(tuple(int(token) for token in text) for text in chosen)


@contextmanager
def _moved_inputs(module: nn.Module, eps: float) -> Iterator[None]:
    """Change the second text's values at the input of each layer by up to half of ``eps``, up or down."""
    generator = torch.Generator().manual_seed(0)

    def move(hidden: Tensor) -> Tensor:
        noise = torch.rand(hidden.shape[-2:], generator=generator).sub_(0.5).mul_(eps).to(hidden.device)
        exact, moved = hidden.unbind(-3)
        return torch.stack((exact, (moved.float() * (1 + noise)).to(hidden.dtype)), -3)

    detach = [attach(module, Site(layer, "resid_pre"), move) for layer in range(len(decoder_layers(module)))]
    try:
        yield
    finally:
        for undo in detach:
            undo()


@contextmanager
def _int8_linears(module: PreTrainedModel, *, rounded: bool) -> Iterator[None]:
    """Make linears that will be int8 compute with dequantised int8 weights, created per call.

    ``rounded``: they round activations to 8 bits, except the output embeddings.
    """
    linears, head = [child for child in module.modules() if type(child) is nn.Linear], module.get_output_embeddings()
    for linear in linears:
        linear.forward = partial(_int8_product, linear, rounded=rounded and linear is not head)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for linear in linears:
            del linear.forward


def _int8_product(linear: nn.Linear, x: Tensor, *, rounded: bool) -> Tensor:
    weight, scales = quantise(linear.weight)
    if rounded:
        step = x.float().abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
        out = functional.linear((x / step).round().to(x.dtype), weight.to(x.dtype)).float().mul_(scales).mul_(step)
    else:
        out = functional.linear(x, weight.to(x.dtype)).float().mul_(scales)
    return (out if linear.bias is None else out.add_(linear.bias)).to(x.dtype)


def _errors(got: Tensor, expected: Tensor) -> Tensor:
    """Return the difference of each token, relative to the spread of the expected logits, ``[tokens]``."""
    spread: Tensor = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    difference: Tensor = (got - expected).norm(dim=-1)
    return difference / spread.clamp_min(torch.finfo(torch.float32).tiny)


# The packed forward


class _Trial:
    """Two texts with a small cache."""

    def __init__(
        self,
        module: nn.Module,
        layouts: list[LayerLayout],
        texts: Sequence[Sequence[int]],
        *,
        is_paged: bool,
        batch_invariant: bool,
    ) -> None:
        self._module, self._texts, self._batch_invariant = module, texts, batch_invariant
        self._device = next(module.parameters()).device
        length = len(texts[0])
        on_cpu = self._device.type == "cpu"
        self._block = (BLOCK if on_cpu else PAGE_TOKENS) if is_paged else length
        width = -(-length // self._block)
        groups = group_layers(layouts)
        # The blocks are scattered in the pool, and those of the texts alternate.
        table = np.arange(TEXTS * width, dtype=np.int32)[::-1].reshape(width, TEXTS).T
        self._tables = tuple(np.ascontiguousarray(table) for _ in groups)
        self._pool = KVPool(layouts, groups, [TEXTS * width] * len(groups), self._block, self._device)
        self._attention = None if on_cpu else _attention(module, layouts, self._device, self._block if is_paged else 0)
        self._done = [0] * TEXTS

    def run(self, steps: Sequence[Step]) -> Tensor:
        """Return the logits of the first text, ``[tokens, vocab]``."""
        return torch.cat([logits for step in steps if (logits := self._step(step)) is not None])

    def _step(self, step: Step) -> Tensor | None:
        """Return the first text's logits; None if it is not in the step."""
        counted = [(text, min(count, len(self._texts[text]) - self._done[text])) for text, count in step]
        chunks = sorted(((text, count) for text, count in counted if count), key=lambda chunk: chunk[1] > 1)
        if not chunks:
            return None
        segments = tuple(TokenSpan(self._done[text], count) for text, count in chunks)
        tokens = [t for text, n in chunks for t in self._texts[text][self._done[text] : self._done[text] + n]]
        rows = np.array([text for text, _ in chunks])
        arrays = build_step(
            segments,
            tokens,
            range(len(tokens)),
            np.zeros(len(tokens), dtype=np.int64),
            rows,
            self._tables,
            self._block,
        )
        tensors = step_tensors(arrays, self._device)
        varlen = tensors.varlen(self._attention, segments) if self._attention else None
        logits: Tensor = self._module(
            input_ids=tensors.tokens.unsqueeze(0),
            position_ids=tensors.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=tensors.logit_places,
            packed_batch=tensors.batch(segments, self._pool, varlen, batch_invariant=self._batch_invariant),
        ).logits[0]
        for text, count in chunks:
            self._done[text] += count
        owners = torch.tensor([text for text, count in chunks for _ in range(count)], device=self._device)
        return logits[owners == 0].float()


def _attention(module: nn.Module, layouts: list[LayerLayout], device: torch.device, page: int) -> VarlenAttention:
    return choose_attention(layouts, num_heads(module), device, page=page)
