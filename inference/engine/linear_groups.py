"""Several linears of one input as one product: the first that is asked computes for all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class LinearGroup:
    """The product, and the slices of it that its members have still to fetch. Used by one thread, as a model is."""

    def __init__(self, product: nn.Module, sizes: Sequence[int]) -> None:
        self.product = product
        self._ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        self._sizes = tuple(sizes)
        self._input: Tensor | None = None
        self._output: Tensor | None = None
        self._waiting: set[int] = set()

    def take(self, index: int, x: Tensor) -> Tensor:
        """Member ``index``'s columns for ``x``; computed anew for another input, and when a member asks twice."""
        if self._output is None or x is not self._input or index not in self._waiting:
            self._input, self._output = x, self.product(x)
            self._waiting = set(range(len(self._sizes)))
        mine: Tensor = self._output[..., self._ends[index] - self._sizes[index] : self._ends[index]]
        self._waiting.discard(index)
        if not self._waiting:
            self._input = self._output = None
        return mine


class GroupMember(nn.Module):
    """In the place of one ``nn.Linear`` of the group. The first member owns the product, as a submodule."""

    def __init__(self, group: LinearGroup, index: int, replaced: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = replaced.in_features, replaced.out_features
        self._group, self._index = group, index
        if index == 0:
            self.product = group.product

    def forward(self, x: Tensor) -> Tensor:
        return self._group.take(self._index, x)

    @property
    def joined(self) -> nn.Module:
        """The product of all members."""
        return self._group.product

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, member={self._index}"
