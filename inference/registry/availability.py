"""The state and memory need of a registered model, as its page and the list show them."""

from __future__ import annotations

from dataclasses import dataclass

from django.template.defaultfilters import filesizeformat

from core.errors import MillmError
from inference.files.sources import present_directory
from inference.models import LanguageModel
from inference.registry.loads import LoadProgress, LoadStatus
from inference.registry.memory_plan import gibibytes
from inference.registry.registry import get_registry


@dataclass(frozen=True, slots=True)
class ModelAvailability:
    """``is_moving``: the state will change soon without an action. ``percent`` is None if the total is unknown."""

    state: str
    sentence: str
    error: str = ""
    percent: int | None = None
    is_moving: bool = False


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory of a model: ``needed`` and ``free`` in bytes, or a ``problem`` if neither is known."""

    needed: int = 0
    free: int = 0
    budget: int = 0
    device: str = ""
    problem: str = ""

    @property
    def fits(self) -> bool:
        return not self.problem and self.needed <= self.free

    @property
    def share(self) -> int:
        """Return the needed memory in percent of the free memory, at most 100."""
        return min(100, round(100 * self.needed / self.free)) if self.free else 100

    @property
    def text(self) -> str:
        return f"{gibibytes(self.needed)} needed, {gibibytes(self.free)} free on {self.device}"


def model_availability(model: LanguageModel) -> ModelAvailability:
    """Return the availability from the row, and from this process if it is loading the model itself."""
    registry = get_registry()
    status = registry.load_status(model.name) if registry.is_serving else LoadStatus()
    if status.progress is not None:
        sentence, percent = _progress_text(status.progress)
        return ModelAvailability("loading", sentence, percent=percent, is_moving=True)
    if status.is_waiting:
        return ModelAvailability(
            "waiting", "Waiting for other loads, or for memory used by running models.", is_moving=True
        )
    return _of_row(model, status.retry_in_s)


def _of_row(model: LanguageModel, retry_in_s: float | None) -> ModelAvailability:
    state = LanguageModel.State(model.state)
    if state == LanguageModel.State.LOADED:
        at = f" since {model.loaded_at:%Y-%m-%d %H:%M} UTC" if model.loaded_at else ""
        return ModelAvailability(state, f"Ready{at}.")
    if state == LanguageModel.State.LOADING:
        return ModelAvailability(state, "Loading in another process, or interrupted.", is_moving=True)
    if state == LanguageModel.State.FAILED:
        again = f" Requests retry in {retry_in_s:.0f} s; Load retries now." if retry_in_s else ""
        return ModelAvailability(state, f"The last load failed.{again}", error=model.error)
    return ModelAvailability(state, "The next request loads it.")


def _progress_text(progress: LoadProgress) -> tuple[str, int | None]:
    if progress.total_bytes and progress.done_bytes < progress.total_bytes:
        percent = 100 * progress.done_bytes // progress.total_bytes
        done, total = (filesizeformat(size) for size in (progress.done_bytes, progress.total_bytes))
        return f"Downloaded {done} of {total}.", percent
    return f"{progress.phase[:1].upper()}{progress.phase[1:]} ({progress.for_s:.0f} s).", None


def memory_need(model: LanguageModel) -> MemoryNeed:
    """Return the memory that the model needs. Reads file headers only. Works in serving processes, which have torch."""
    registry = get_registry()
    if not registry.is_serving:
        return MemoryNeed(problem="Only the running server can measure it.")
    try:
        path = present_directory(model.model_source)
        if path is None:
            return MemoryNeed(problem="Unknown until the model is downloaded.")
        plan = registry.memory_plan(model, path)
    except MillmError as error:
        return MemoryNeed(problem=str(error))
    return MemoryNeed(plan.needed, plan.free, plan.budget, plan.device)
