"""When each word of a Whisper window is spoken: its tokens are aligned with the audio by cross-attention.

The method of OpenAI's implementation and of transformers, with the same times (tests/media/test_alignment.py): dynamic
time warping over the heads that the generation config names in ``alignment_heads``. Only the attention of those heads
is kept, and the warping computes a diagonal at a time, where transformers has a loop of Python over all cells.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FRAMES_PER_STEP = 2  # features of 10 ms for a step of attention, 20 ms
UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # languages that write no spaces between words
OPENING = "\"'“¿([{-"  # joins the next word
CLOSING = "\"'.。,，!！?？:：”)]}、"  # joins the previous word
_REPLACEMENT = "\ufffd"


class Aligner:
    """Finds the steps of 20 ms at which the tokens of a window are spoken."""

    def __init__(self, model: Any, heads: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._heads = [(int(layer), int(head)) for layer, head in heads]
        self._filter_width = int(model.config.median_filter_width)

    @torch.inference_mode()
    def steps(self, encoded: Tensor, ids: Sequence[int], tokens: Sequence[int], num_frames: int) -> list[int]:
        """Return the step of each token, which follow ``ids``, of a window of ``num_frames`` features."""
        num_steps = num_frames // FRAMES_PER_STEP
        if not tokens or not num_steps:
            return [0] * len(tokens)
        weights = self._attention(encoded, [*ids, *tokens])[:, len(ids) :, :num_steps].float()
        deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
        weights = torch.nan_to_num((weights - mean) / deviation)  # a single token has no deviation
        matrix = median_filter(weights, self._filter_width).mean(dim=0)
        return warped(-matrix.cpu().double().numpy())

    def _attention(self, encoded: Tensor, ids: list[int]) -> Tensor:
        """Run the decoder and return the cross-attention of the heads, ``[heads, ids, steps]``."""
        decoder, found = self._model.get_decoder(), {}
        hooks = []
        for layer in {layer for layer, _ in self._heads}:
            heads = [head for other, head in self._heads if other == layer]

            def keep(module: Any, inputs: Any, output: Any, layer: int = layer, heads: list[int] = heads) -> None:
                found.update({(layer, head): output[1][0, head] for head in heads})

            hooks.append(decoder.layers[layer].encoder_attn.register_forward_hook(keep))
        implementation = self._model.config._attn_implementation
        self._model.set_attn_implementation("eager")  # others do not return their weights
        try:
            decoder(torch.tensor([ids], device=encoded.device), encoder_hidden_states=encoded, use_cache=False)
        finally:
            self._model.set_attn_implementation(implementation)
            for hook in hooks:
                hook.remove()
        return torch.stack([found[place] for place in self._heads])


def median_filter(weights: Tensor, width: int) -> Tensor:
    """Return the median of the ``width`` neighbours along the last dimension, which is reflected at its ends."""
    side = width // 2
    if weights.shape[-1] <= side:
        return weights
    padded = torch.nn.functional.pad(weights, (side, side), mode="reflect")
    return padded.unfold(-1, width, 1).sort()[0][..., side]


def warped(costs: npt.NDArray[np.float64]) -> list[int]:
    """Return the first column of each row on the cheapest path from the first to the last cell.

    The path goes on diagonally, to the next row or to the next column; the last where two are equally cheap.
    """
    num_rows, num_columns = costs.shape
    total = np.full((num_rows + 1, num_columns + 1), np.inf, dtype=np.float32)
    total[0, 0] = 0.0
    moves = np.full(total.shape, 2, dtype=np.int8)
    for diagonal in range(2, num_rows + num_columns + 1):
        rows = np.arange(max(1, diagonal - num_columns), min(num_rows, diagonal - 1) + 1)
        columns = diagonal - rows
        both, row, column = total[rows - 1, columns - 1], total[rows - 1, columns], total[rows, columns - 1]
        move = np.where((both < row) & (both < column), 0, np.where((row < both) & (row < column), 1, 2))
        moves[rows, columns] = move
        total[rows, columns] = costs[rows - 1, columns - 1] + np.choose(move, (both, row, column))
    return _first_columns(moves)


def _first_columns(moves: npt.NDArray[np.int8]) -> list[int]:
    row, column = moves.shape[0] - 1, moves.shape[1] - 1
    first = [0] * row
    while row > 0 and column > 0:
        first[row - 1] = column - 1
        move = moves[row, column]
        row -= move in (0, 1)
        column -= move in (0, 2)
    return first


def words_of(tokenizer: Any, tokens: Sequence[int], language: str | None) -> list[tuple[str, int, int]]:
    """Join tokens to words. Return each with its first token and the one after its last."""
    words = list(_characters(tokenizer, tokens))
    if language not in UNSPACED:
        words = list(_joined_at_spaces(words))
    return _with_punctuation(words)


def _characters(tokenizer: Any, tokens: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Yield the shortest runs of tokens that are whole characters."""
    whole, start, num_characters = str(tokenizer.decode(tokens)), 0, 0
    for stop in range(1, len(tokens) + 1):
        text = str(tokenizer.decode(tokens[start:stop]))
        broken = text.find(_REPLACEMENT)
        # The text itself may have a replacement character there.
        if broken < 0 or whole[num_characters + broken : num_characters + broken + 1] in ("", _REPLACEMENT):
            yield text, start, stop
            start, num_characters = stop, num_characters + len(text)


def _joined_at_spaces(parts: Sequence[tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    word: tuple[str, int, int] | None = None
    for text, start, stop in parts:
        if word is None or text.startswith(" ") or text.strip() in string.punctuation:
            if word is not None:
                yield word
            word = (text, start, stop)
        else:
            word = (word[0] + text, word[1], stop)
    if word is not None:
        yield word


def _with_punctuation(words: Sequence[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Join opening punctuation to the next word, then closing punctuation to the previous one."""
    opened: list[tuple[str, int, int]] = []
    for text, start, stop in reversed(words):
        if opened and text.startswith(" ") and text.strip() in OPENING:
            opened[-1] = (text + opened[-1][0], start, opened[-1][2])
        else:
            opened.append((text, start, stop))
    closed: list[tuple[str, int, int]] = []
    for text, start, stop in reversed(opened):
        if closed and not closed[-1][0].endswith(" ") and text in CLOSING:
            closed[-1] = (closed[-1][0] + text, closed[-1][1], stop)
        else:
            closed.append((text, start, stop))
    return closed
