"""Prompts for fill-in-the-middle: the text between a prefix and a suffix, in the notation of the model's family.

The tokenizer shows the family: it has the marks as single tokens. Models that were trained on such prompts are named
beside each notation; others of the same tokenizer may have the tokens without the training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FillNotation:
    """The marks before the prefix, before the suffix and at the end of the prompt (empty: none).

    ``ends`` are tokens after which models of the family go on with something else: they end the answer.
    """

    prefix: str
    suffix: str
    middle: str
    is_suffix_first: bool = False
    ends: tuple[str, ...] = ()


NOTATIONS = (
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Yi-Coder
    FillNotation(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<|endoftext|>"),
    ),
    # StarCoder, StarCoder2, Granite Code, Stable Code
    FillNotation(
        "<fim_prefix>", "<fim_suffix>", "<fim_middle>", ends=("<fim_pad>", "<file_sep>", "<filename>", "<|endoftext|>")
    ),
    # SantaCoder
    FillNotation("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>", "<|endoftext|>")),
    # CodeLlama 7B and 13B
    FillNotation("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    # DeepSeek-Coder, DeepSeek-Coder-V2
    FillNotation("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ends=("<｜end▁of▁sentence｜>", "<|EOT|>")),
    # Codestral; without a mark at the end, because the prefix comes last
    FillNotation("[PREFIX]", "[SUFFIX]", "", is_suffix_first=True),
)


@dataclass(frozen=True, slots=True)
class FillTokens:
    """The notation of one tokenizer, as token ids."""

    prefix: int
    suffix: int
    middle: int | None
    is_suffix_first: bool
    stop_ids: frozenset[int]

    def prompt(self, start: list[int], prefix: list[int], suffix: list[int]) -> list[int]:
        """Return the prompt. ``start``: the tokens that the tokenizer puts before every text, such as BOS."""
        parts = [[self.prefix, *prefix], [self.suffix, *suffix]]
        first, second = reversed(parts) if self.is_suffix_first else parts
        return [*start, *first, *second, *([] if self.middle is None else [self.middle])]


def find_fill_tokens(id_of: Callable[[str], int | None]) -> FillTokens | None:
    """Return the tokens of the first notation whose marks the tokenizer has, or None. ``id_of``: a token's id."""
    for notation in NOTATIONS:
        prefix, suffix, middle = (id_of(mark) for mark in (notation.prefix, notation.suffix, notation.middle))
        if prefix is None or suffix is None or (middle is None and notation.middle):
            continue
        marks = (prefix, suffix, middle, *map(id_of, notation.ends))
        stop_ids = frozenset(found for found in marks if found is not None)
        return FillTokens(prefix, suffix, middle, notation.is_suffix_first, stop_ids)
    return None
