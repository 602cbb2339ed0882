"""Run the layers of a model one at a time on one whole text, or only what follows the last layer.

The module's own forward prepares each layer's arguments (rotary embeddings, masks) and applies the final norm, the
unembedding, softcaps and scales, so nothing here depends on the architecture. Its layers are replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from inference.engine.kernels.attention import whole_text
from inference.engine.models.sites import decoder_layers

Forward = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of a layer without the hidden states, which come first or under their name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class LayerStack:
    """The layers of a module. Not thread-safe, like the module: it replaces the layers' forward for a moment."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._layers = list(decoder_layers(module))
        self._rest: tuple[Any, ...] | None = None  # what layers return after the hidden states; None: a tensor only
        self._is_probed = False

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def dtype(self) -> torch.dtype:
        return next(self._module.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self._module.parameters()).device

    @torch.no_grad()
    def arguments(self, token_ids: Sequence[int]) -> list[_Arguments]:
        """Return the arguments with which the module calls each layer for this text."""
        found: list[_Arguments] = []

        def note(_: int, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            found.append(_Arguments(args, {k: v for k, v in kwargs.items() if k != "packed_batch"}))
            return hidden

        self._run(token_ids, range(len(token_ids)), note, num_logits=1)
        return found

    def run(self, number: int, hidden: Tensor, arguments: _Arguments) -> Tensor:
        """Return the output of a layer ``[tokens, d]`` for its input."""
        with whole_text() as text:
            output = self._layers[number](hidden.unsqueeze(0), *arguments.args, **arguments.kwargs, packed_batch=text)
        found: Tensor = output[0] if isinstance(output, tuple) else output
        return found[0]

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits ``[rows, vocab]`` of outputs of the last layer ``[rows, d]``."""
        last = len(self._layers) - 1

        def insert(number: int, hidden: Tensor, _: tuple[Any, ...], __: dict[str, Any]) -> Tensor:
            return rows.unsqueeze(0) if number == last else hidden

        return self._run([0] * len(rows), [0] * len(rows), insert, num_logits=len(rows))

    def _run(
        self, token_ids: Sequence[int], places: Sequence[int], act: Callable[..., Tensor], *, num_logits: int
    ) -> Tensor:
        """Run the module with ``act`` in place of each layer."""
        with whole_text() as text, self._replaced(act):
            output = self._module(
                input_ids=torch.tensor([token_ids], device=self.device),
                position_ids=torch.tensor([list(places)], device=self.device),
                use_cache=False,
                logits_to_keep=num_logits,
                packed_batch=text,
            )
        logits: Tensor = output.logits[0]
        return logits

    @contextmanager
    def _replaced(self, act: Callable[..., Tensor]) -> Iterator[None]:
        before = [vars(layer).get("forward") for layer in self._layers]
        try:
            for number, layer in enumerate(self._layers):
                layer.forward = partial(self._replacement, number, layer.forward, act)
            yield
        finally:
            for layer, forward in zip(self._layers, before, strict=True):
                if forward is None:
                    del layer.forward
                else:
                    layer.forward = forward

    def _replacement(
        self, number: int, original: Forward, act: Callable[..., Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        if not self._is_probed:  # the form of a layer's output is known only after it ran
            output = original(*args, **kwargs)
            self._rest = output[1:] if isinstance(output, tuple) else None
            self._is_probed = True
        if args:
            hidden = act(number, args[0], args[1:], kwargs)
        else:
            others = {name: value for name, value in kwargs.items() if name != "hidden_states"}
            hidden = act(number, kwargs["hidden_states"], (), others)
        return hidden if self._rest is None else (hidden, *self._rest)
