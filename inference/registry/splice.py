"""A replacement of the residual at one site, for measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.interventions import FeatureDecoder, Site
from inference.steering_refs import SAERef

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """Replaces residuals by the reconstruction of an SAE. An engine in another process loads it by ``ref``."""

    sae: FeatureDecoder
    ref: SAERef

    def __call__(self, h: Tensor) -> Tensor:
        return self.sae.decode(self.sae.encode(h), h)


@dataclass(frozen=True, slots=True, eq=False)
class Splice:
    """A replacement of the residual at a site: ``replace`` maps ``[tokens, width]`` float32 to the same shape.
    It must be a :class:`Reconstruction` or picklable.

    Unless ``everywhere``, special tokens, the first token of a text and tokens whose norm exceeds ``norm_limit`` keep
    their residual.
    """

    site: Site
    width: int
    replace: Callable[[Tensor], Tensor]
    norm_limit: float = float("inf")
    everywhere: bool = False

    def apply(self, h: Tensor, is_ordinary: Sequence[bool]) -> Tensor:
        """Return the new residuals of a whole text ``[tokens, d]``."""
        import torch

        new = self.replace(h.float()).to(h.dtype)
        if self.everywhere:
            return new
        mixed: Tensor = torch.where(self.ordinary(h, is_ordinary)[:, None], new, h)
        return mixed

    def ordinary(self, h: Tensor, is_ordinary: Sequence[bool]) -> Tensor:
        """Return the mask ``[tokens]`` of tokens that are replaced unless ``everywhere``."""
        import torch

        mask: Tensor = torch.tensor(is_ordinary, device=h.device) & (h.float().norm(dim=-1) <= self.norm_limit)
        mask[:1] = False
        return mask
