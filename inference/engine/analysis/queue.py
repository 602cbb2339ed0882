"""The analyses of one model that wait, and the one that runs: one at a time, in order of arrival."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property

import torch

from inference.analyses import AnalysisEvent, AnalysisRequest, AttributionRequest, LensRequest
from inference.captures import loaded
from inference.engine.analysis.attribution import run_attribution
from inference.engine.analysis.errors import AnalysisError
from inference.engine.analysis.layers import LayerStack
from inference.engine.analysis.lens import run_lens
from inference.engine.messages import Delivery, FailedEvent, FinishedEvent, Timings, Usage
from inference.engine.models.loader import LoadedModel
from inference.engine.scheduling.sink_queue import SinkQueue
from inference.engine.scheduling.step_isolation import (
    OUT_OF_MEMORY,
    SERVER_ERROR,
    free_unused_memory,
    is_out_of_memory,
)

logger = logging.getLogger(__name__)
Units = Generator[None, None, AnalysisEvent]


@dataclass(slots=True, eq=False)
class _Analysis:
    request: AnalysisRequest
    sink: object
    submitted_at: float
    units: Units | None = None
    begun_at: float | None = None

    def timings(self) -> Timings:
        queue_s = 0.0 if self.begun_at is None else self.begun_at - self.submitted_at
        return Timings(queue_s=queue_s, total_s=time.monotonic() - self.submitted_at)

    def failure(self, code: str, message: str) -> Delivery:
        return self.sink, FailedEvent(self.request.index, code, message, Usage(), self.timings())


class AnalysisQueue:
    """Used by the engine thread only."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._pending: SinkQueue[_Analysis] = SinkQueue()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, request: AnalysisRequest, sink: object, submitted_at: float) -> list[Delivery]:
        """Queue a request. Return its failure if it cannot run."""
        problem = self._problem(request)
        if problem:
            return [(sink, FailedEvent.before_start(request, "invalid_analysis", problem))]
        self._pending.append(_Analysis(request, sink, submitted_at))
        return []

    def cancel(self, sink: object) -> list[Delivery]:
        mine = self._pending.take_of(sink)
        return [(sink, FinishedEvent(one.request.index, "cancelled", Usage(), one.timings())) for one in mine]

    def fail_all(self, code: str, text: str) -> list[Delivery]:
        return [one.failure(code, text) for one in self._pending.take_all()]

    def step(self) -> list[Delivery]:
        """Run one unit of the analysis that came first. An exception fails only that one."""
        analysis = self._pending.first
        try:
            with torch.inference_mode(mode=False):
                event = self._advance(analysis)
        except torch.AcceleratorError:
            raise
        except AnalysisError as error:
            delivery = analysis.failure(error.code, str(error))
        except Exception as error:
            # An error of the model's own code or of an SAE concerns only this request.
            code = OUT_OF_MEMORY if is_out_of_memory(error) else SERVER_ERROR
            logger.exception("An analysis failed (%s).", code)
            delivery = analysis.failure(code, _FAILURES[code])
        else:
            if event is None:
                return []
            self._pending.popleft()
            ended = FinishedEvent(analysis.request.index, "stop", Usage(), analysis.timings())
            return [(analysis.sink, event), (analysis.sink, ended)]
        self._pending.popleft()
        analysis.units = None
        if isinstance(delivery[1], FailedEvent) and delivery[1].code == OUT_OF_MEMORY:
            free_unused_memory()
        return [delivery]

    @cached_property
    def _stack(self) -> LayerStack:
        return LayerStack(self._model.module)

    def _advance(self, analysis: _Analysis) -> AnalysisEvent | None:
        """Run a unit; return the result after the last one."""
        if analysis.units is None:
            analysis.begun_at = time.monotonic()
            analysis.units = _units(self._stack, analysis.request)
        try:
            next(analysis.units)
        except StopIteration as end:
            event: AnalysisEvent = end.value
            return event
        return None

    def _problem(self, request: AnalysisRequest) -> str:
        """Return why the shapes or ids do not fit the model, or an empty text."""
        width, vocab, ids = self._model.hidden_size, self._model.vocab_size, _ids(request)
        arrays = [request.residuals] if isinstance(request, LensRequest) else [request.residual, *request.inputs]
        if any(array.ndim != 2 or array.shape[1] != width or not len(array) for array in arrays):
            return f"Residuals of this model must be [tokens, {width}]."
        if ids and not 0 <= min(ids) <= max(ids) < vocab:
            return f"Token ids must be between 0 and {vocab - 1}."
        if isinstance(request, LensRequest):
            return "" if not request.targets or len(request.targets) == len(request.residuals) else "One target a row."
        return self._attribution_problem(request)

    def _attribution_problem(self, request: AttributionRequest) -> str:
        if any(len(array) != len(request.token_ids) for array in (request.residual, *request.inputs)):
            return "Each token needs a residual at each layer."
        if not 1 <= len(request.inputs) <= self._model.num_layers + 1:
            return f"The model has {self._model.num_layers} layers, got {len(request.inputs)} residuals."
        if loaded(request.reader).d_in != self._model.hidden_size:
            return f"The model is {self._model.hidden_size} wide, but the SAE expects {loaded(request.reader).d_in}."
        return ""


_FAILURES = {
    OUT_OF_MEMORY: "The server ran out of memory for this analysis. Use a shorter text.",
    SERVER_ERROR: "The model's own code failed in this analysis; see the log.",
}


def _ids(request: AnalysisRequest) -> tuple[int, ...]:
    if isinstance(request, LensRequest):
        return request.targets
    return (*request.token_ids, request.target, *(() if request.contrast is None else (request.contrast,)))


def _units(stack: LayerStack, request: AnalysisRequest) -> Units:
    if isinstance(request, LensRequest):
        return run_lens(stack, request)
    return run_attribution(stack, request)
