"""Replace the ``nn.Linear`` modules of a loaded model with faster ones.

Projections of the same input (query, key and value; gate and up) become one product. 16-bit weights get the layout that
our kernels read, or keep theirs where oneDNN is slow with them. Otherwise, and in float32, oneDNN packs them; a head
shared with the embeddings is copied for it. With batch invariance only our kernels compute products, or tiles of one
shape. On a GPU products are only combined, or use int8 weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inference.engine.kernels.int8_trial import few_packed_rows
from inference.engine.kernels.layouts import InterleavedEmbedding, can_interleave, interleaved, needs_only_rows
from inference.engine.kernels.linear_kinds import (
    FastLinear,
    GpuInt8Linear,
    Int8Linear,
    OrderedInt8Linear,
    OrderedLinear,
    PackedLinear,
    PlainLinear,
    RoundedInt8Linear,
    RowsLinear,
    can_pack,
    can_read_rows,
)
from inference.engine.kernels.pages import in_huge_pages
from inference.engine.models.facts import Weights

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(frozen=True, slots=True)
class LinearsReport:
    """What was replaced, and the size of the module's weights before and after.

    ``head``: the new class of the output embeddings. ``num_groups``: products that combine several linears.
    """

    num_linears: int
    num_groups: int
    bytes_before: int
    bytes_after: int
    head: str

    def __str__(self) -> str:
        before, after = self.bytes_before / 1e6, self.bytes_after / 1e6
        return f"{self.num_linears} linears, {self.num_groups} fused, {before:.0f} -> {after:.0f} MB, head {self.head}"


@dataclass(frozen=True, slots=True)
class _Options:
    """``uses``: how many modules have each parameter, by its id."""

    weights: Weights
    batch_invariant: bool
    uses: Counter[int]

    def interleaved(self, weight: Tensor) -> Tensor:
        """Return the weight in the layout of our kernels. Only weights that other modules use are copied for it."""
        is_shared = self.uses[id(weight)] > 1
        return interleaved(weight.detach(), in_place=not is_shared)


def prepare_linears(
    module: nn.Module, *, weights: Weights, quantise_head: bool, batch_invariant: bool = False
) -> LinearsReport:
    """Replace the linears of a module, and free each original weight immediately.

    Subclasses of ``nn.Linear`` stay, and so do dtypes without a gain (float16 without our kernels on a processor that
    supports it). With ``int8``, the output embeddings are quantised if ``quantise_head``; input embeddings never are.
    With ``w8a8``, the activations are rounded to 8 bits, too, except those of the output embeddings.
    ``batch_invariant`` is for the CPU.
    """
    uses = Counter(id(parameter) for child in module.modules() for parameter in child._parameters.values())
    before, options = bytes_of(module), _Options(weights, batch_invariant, uses)
    head = _output_embeddings(module)
    num_linears = num_groups = 0
    # Only modules with children: otherwise the list would keep the replaced linears and their weights alive.
    for parent in [parent for parent in module.modules() if parent._modules]:
        for names in GROUPS:
            if _can_join(parent, names, options):
                _join(parent, names, options)
                num_linears, num_groups = num_linears + len(names), num_groups + 1
        for name, child in list(parent.named_children()):
            if child is not head and _is_replaceable(child, options):
                setattr(parent, name, _fast_linear(child.weight, child.bias, options))  # type: ignore[arg-type]
                num_linears += 1
    if head is not None:
        of_head: Weights = "int8" if weights != "native" and quantise_head else "native"
        num_linears += _replace_head(module, head, _Options(of_head, batch_invariant, uses))
    return LinearsReport(num_linears, num_groups, before, bytes_of(module), type(_output_embeddings(module)).__name__)


def bytes_of(module: nn.Module) -> int:
    """Return the size of all parameters and buffers, shared ones counted once."""
    return sum(
        t.numel() * t.element_size() for t in {id(t): t for t in (*module.parameters(), *module.buffers())}.values()
    )


def _is_replaceable(child: nn.Module | None, options: _Options) -> bool:
    if type(child) is not nn.Linear or (child.weight.device.type != "cpu" and options.weights == "native"):
        return False
    dtype = child.weight.dtype
    return options.weights != "native" or options.batch_invariant or can_read_rows(dtype) or can_pack(dtype)


def _fast_linear(weight: Tensor, bias: Tensor | None, options: _Options) -> FastLinear:
    weights = options.weights
    if weight.device.type != "cpu":
        few_rows = few_packed_rows(weight.device, weight.dtype) if weights == "int8" else 0
        return GpuInt8Linear(weight, bias, few_rows) if weights == "int8" else PlainLinear(weight, bias)
    if weights == "w8a8":
        return RoundedInt8Linear(weight, bias)
    if options.batch_invariant:
        if weights == "int8":
            return OrderedInt8Linear(weight, bias)
        return OrderedLinear(options.interleaved(weight), bias)
    if weights == "int8":
        return Int8Linear(weight, bias)
    if can_read_rows(weight.dtype):
        return RowsLinear(options.interleaved(weight), bias)
    return PackedLinear(weight, bias)


def _can_join(parent: nn.Module, names: tuple[str, ...], options: _Options) -> bool:
    """Return whether all exist, with the same input size and dtype, and all or none with a bias."""
    members = [getattr(parent, name, None) for name in names]
    if not all(_is_replaceable(m, options) or _is_on_gpu(m) for m in members):
        return False
    kinds = {(m.in_features, m.weight.dtype, m.bias is None) for m in members}  # type: ignore[union-attr]
    return len(kinds) == 1


def _is_on_gpu(member: nn.Module | None) -> bool:
    return type(member) is nn.Linear and member.weight.device.type != "cpu"


def _join(parent: nn.Module, names: tuple[str, ...], options: _Options) -> None:
    members: list[nn.Linear] = [getattr(parent, name) for name in names]
    weight = torch.cat([m.weight.detach() for m in members])
    bias = None if members[0].bias is None else torch.cat([m.bias.detach() for m in members])
    group = LinearGroup(_fast_linear(weight, bias, options), [m.out_features for m in members])
    for index, (name, member) in enumerate(zip(names, members, strict=True)):
        setattr(parent, name, GroupMember(group, index, member))


def _replace_head(module: nn.Module, head: nn.Module, options: _Options) -> int:
    """Replace the output embeddings. Return the number of replaced linears: 1 or 0."""
    if not isinstance(head, nn.Linear) or not _is_replaceable(head, options):
        return 0
    stays = options.batch_invariant or can_read_rows(head.weight.dtype)
    if options.weights == "native" and _is_tied(module, head) and stays:
        weight = _shared(module, head, options)
        fast: FastLinear = (OrderedLinear if options.batch_invariant else RowsLinear)(weight, head.bias)
    else:
        fast = _fast_linear(head.weight, head.bias, options)
    module.set_output_embeddings(fast)  # type: ignore[operator]
    return 1


def _shared(module: nn.Module, head: nn.Linear, options: _Options) -> Tensor:
    """Return the weight of a tied head in the layout of our kernels, and let the embeddings use it too."""
    embeddings: nn.Embedding = module.get_input_embeddings()  # type: ignore[operator]
    if can_interleave(head.weight) and needs_only_rows(embeddings):
        have_it_alone = options.uses[id(head.weight)] == 2  # the head and the embeddings
        weight = interleaved(head.weight.detach(), in_place=have_it_alone)
        module.set_input_embeddings(InterleavedEmbedding(weight, embeddings))  # type: ignore[operator]
        return weight
    head.weight.data = in_huge_pages(head.weight.data)  # also for the embeddings: it is one parameter
    return head.weight


def _is_tied(module: nn.Module, head: nn.Linear) -> bool:
    embeddings = module.get_input_embeddings()  # type: ignore[operator]
    return isinstance(embeddings, nn.Embedding) and embeddings.weight is head.weight


def _output_embeddings(module: nn.Module) -> nn.Module | None:
    found = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None  # type: ignore[operator]
    return found if isinstance(found, nn.Module) else None


class LinearGroup:
    """A combined product, and the slices that its members have not fetched yet. Not thread-safe, like the model."""

    def __init__(self, product: nn.Module, sizes: Sequence[int]) -> None:
        self.product = product
        self._ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        self._sizes = tuple(sizes)
        self._input: Tensor | None = None
        self._output: Tensor | None = None
        self._waiting: set[int] = set()

    def take(self, index: int, x: Tensor) -> Tensor:
        """Return the columns of member ``index`` for ``x``. Recomputed for another input, or if a member asks twice."""
        if self._output is None or x is not self._input or index not in self._waiting:
            self._input, self._output = x, self.product(x)
            self._waiting = set(range(len(self._sizes)))
        mine: Tensor = self._output[..., self._ends[index] - self._sizes[index] : self._ends[index]]
        self._waiting.discard(index)
        if not self._waiting:
            self._input = self._output = None
        return mine


class GroupMember(nn.Module):
    """Replaces one ``nn.Linear`` of a group. The first member owns the product as a submodule."""

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
        """Return the product of all members."""
        return self._group.product

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, member={self._index}"
