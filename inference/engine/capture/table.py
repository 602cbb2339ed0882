"""The capture hooks of one model, and the step that they report to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from inference.captures import (
    AllFeatures,
    CaptureSpec,
    FeatureValues,
    Projections,
    Residuals,
    Stage,
    TopFeatures,
    loaded,
)
from inference.engine.capture.step import CaptureStep
from inference.engine.models.sites import HookOrder, SiteError, SiteHooks, site_width
from inference.interventions import Site

_TURNS: dict[Stage, HookOrder] = {"pre": HookOrder.READ_BEFORE, "post": HookOrder.READ_AFTER}


class CaptureTable:
    """Manages the hooks of a model. A hook exists only while a sequence captures there, because on the CPU a hook
    inside a layer prevents fusion.
    """

    def __init__(self, module: nn.Module, hooks: SiteHooks) -> None:
        self._module = module
        self._hooks = hooks
        self._users: Counter[tuple[Site, Stage]] = Counter()
        self._remove: dict[tuple[Site, Stage], Callable[[], None]] = {}
        self._step: CaptureStep | None = None  # while a forward pass runs that captures

    @property
    def num_hooks(self) -> int:
        return len(self._remove)

    @property
    def is_capturing(self) -> bool:
        """Whether the current forward pass captures anything."""
        return self._step is not None

    def acquire(self, specs: tuple[CaptureSpec, ...]) -> None:
        """Install the hooks of these captures. Raise SiteError, and install none, if one does not fit the model."""
        for spec in specs:
            self._check(spec)
        for at in _places_of(specs):
            self._users[at] += 1
            if at not in self._remove:
                site, stage = at
                self._remove[at] = self._hooks.put(site, _TURNS[stage], partial(self._look, site, stage))

    def release(self, specs: tuple[CaptureSpec, ...]) -> None:
        for at in _places_of(specs):
            self._users[at] -= 1
            if not self._users[at]:
                del self._users[at]
                self._remove.pop(at)()

    def close(self) -> None:
        for remove in self._remove.values():
            remove()
        self._remove.clear()
        self._users.clear()

    @contextmanager
    def capturing(self, step: CaptureStep | None) -> Iterator[None]:
        """Capture the forward pass in the block into ``step``."""
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def _look(self, site: Site, stage: Stage, hidden: Tensor) -> None:
        if self._step is not None:
            self._step.look(site, stage, hidden)

    def _check(self, spec: CaptureSpec) -> None:
        width, probe = site_width(self._module, spec.site), spec.probe
        if isinstance(probe, Residuals):
            return
        if isinstance(probe, Projections):
            if probe.width != width:
                raise SiteError(
                    f"The vectors have {probe.width} values, but the model has {width} at {spec.site.label}."
                )
            return
        d_in = loaded(probe.reader).d_in
        if d_in != width:
            raise SiteError(f"The model is {width} wide at {spec.site}, but the SAE expects {d_in}.")
        if isinstance(probe, FeatureValues):
            outside = [index for index in probe.features if not 0 <= index < probe.reader.d_sae]
            if outside or not probe.features:
                raise SiteError(f"The SAE has features 0 to {probe.reader.d_sae - 1}, got {outside or 'none'}.")
        is_pooled = spec.pooling != "none"
        assert not (isinstance(probe, TopFeatures) and is_pooled), "TopFeatures cannot be pooled"
        assert not isinstance(probe, AllFeatures) or is_pooled, "AllFeatures must be pooled"


def _places_of(specs: tuple[CaptureSpec, ...]) -> set[tuple[Site, Stage]]:
    return {(spec.site, spec.stage) for spec in specs}
