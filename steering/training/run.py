"""One training in a folder: collect activations, train, write the SAE. Each step resumes after a crash."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save

from inference.interventions import Site
from inference.steering_refs import SAESource
from steering.measuring.accumulators import SinkFinder
from steering.measuring.document import TokenisedDocument
from steering.measuring.loss import LossReader, measure_loss
from steering.measuring.measurement import measure_sae
from steering.saes.loader import load_sae
from steering.saes.place import sae_place
from steering.training.errors import TrainingError
from steering.training.export import HEALTH, write_sae
from steering.training.recipe import TrainingRecipe
from steering.training.store import ActivationStore, BatchSampler, replace_file
from steering.training.trainer import SAETrainer, StepFigures

if TYPE_CHECKING:
    from torch import Tensor

_CHECKPOINT = "checkpoint.safetensors"
_LOG_LINES = 50
_CALIBRATION_BATCHES = 32
_HELD_OUT = 0.03
_MAX_HELD_OUT_TOKENS = 60_000


class ActivationReader(Protocol):
    """Reads the activations of several texts at one site."""

    def read_many(self, prompts: Sequence[Sequence[int]], site: Site) -> list[Tensor]:
        """Return ``[tokens, d]`` float32 on the CPU for each prompt."""


class TrainingMonitor(Protocol):
    """Hears of the progress. Both methods may raise an exception to stop the training."""

    def progress(self, done: int, total: int, message: str = "") -> None: ...

    def log(self, line: str) -> None: ...


@dataclass(frozen=True, slots=True)
class TrainingPace:
    """Seconds between checkpoints and between reports, and documents between two flushes of the store."""

    checkpoint_s: float = 60.0
    report_s: float = 1.0
    documents: int = 128


DEFAULT_PACE = TrainingPace()


@dataclass(frozen=True, slots=True)
class SplitDocuments:
    """Documents in random order: those to train on, and those that are held out for measuring."""

    training: tuple[TokenisedDocument, ...]
    held_out: tuple[TokenisedDocument, ...]


def split_documents(documents: Sequence[TokenisedDocument], seed: int) -> SplitDocuments:
    """Hold out about 3 % of the documents, with at most 60,000 tokens."""
    shuffled = list(documents)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - not for cryptography
    num, tokens = 0, 0
    while num < len(shuffled) * _HELD_OUT and tokens < _MAX_HELD_OUT_TOKENS:
        tokens += shuffled[num].num_ordinary
        num += 1
    return SplitDocuments(tuple(shuffled[num:]), tuple(shuffled[:num]))


def collect_activations(
    store: ActivationStore,
    documents: Sequence[TokenisedDocument],
    reader: ActivationReader,
    site: Site,
    max_rows: int,
    monitor: TrainingMonitor,
    pace: TrainingPace = DEFAULT_PACE,
) -> None:
    """Fill the store with activations of ordinary tokens. Special tokens and attention sinks are left out.

    Raise TrainingError for activations that are not finite.
    """
    sinks = SinkFinder()
    while not store.meta.is_complete:
        first = store.meta.documents
        group = documents[first : first + pace.documents]
        monitor.progress(first, len(documents), f"Reading activations: {store.meta.rows} tokens")
        for document, h in zip(group, reader.read_many([one.token_ids for one in group], site), strict=True):
            if not bool(h.isfinite().all()):
                raise TrainingError(f"The activations at {site.label} are not all finite.", param="layer")
            store.add(h[sinks.ordinary(h, torch.tensor(document.is_ordinary))])
        num_read = first + len(group)
        store.flush(num_read, is_complete=num_read >= len(documents) or store.meta.rows >= max_rows)


class TrainingLoop:
    """Trains on a complete store, with checkpoints in its folder."""

    def __init__(self, folder: Path, store: ActivationStore, recipe: TrainingRecipe) -> None:
        """Continue from the checkpoint if there is one. Raise TrainingError if it is of another recipe."""
        self.recipe = recipe
        self._path = folder / _CHECKPOINT
        self._factor = store.scale
        self._sampler = BatchSampler(store.rows(), recipe.batch, recipe.seed)
        self.trainer = SAETrainer(recipe, self._batch(0), store.meta.unit * store.scale)
        if self._path.is_file():
            self._restore()

    def run(self, monitor: TrainingMonitor, pace: TrainingPace = DEFAULT_PACE) -> SAETrainer:
        """Train to the end of the recipe, and set the threshold."""
        steps = self.recipe.steps
        every = max(1, steps // _LOG_LINES)
        figures: list[StepFigures] = []
        saved = reported = time.monotonic()
        while self.trainer.step < steps:
            figures.append(self.trainer.train_step(self._batch(self.trainer.step)))
            step, now = self.trainer.step, time.monotonic()
            if step % every == 0 or step == steps:
                monitor.log(f"Step {step} of {steps}: {_summary(figures)}.")
                figures.clear()
            if now - reported >= pace.report_s or step == steps:
                reported = now
                monitor.progress(step, steps, f"Training: step {step} of {steps}")
            if now - saved >= pace.checkpoint_s:
                self.save()
                saved = time.monotonic()
        num_batches = min(_CALIBRATION_BATCHES, steps)
        self.trainer.calibrate(self._batch(steps + number) for number in range(num_batches))
        return self.trainer

    def save(self) -> None:
        """Write a checkpoint."""
        metadata = {"recipe": json.dumps(self.recipe.as_json(), sort_keys=True)}
        tensors = {name: tensor.contiguous() for name, tensor in self.trainer.state().items()}
        replace_file(self._path, save(tensors, metadata))

    def _restore(self) -> None:
        with safe_open(self._path, framework="pt") as file:
            recipe = TrainingRecipe.from_json(json.loads(file.metadata()["recipe"]))
            if recipe != self.recipe:
                raise TrainingError(
                    f"{self._path.parent} holds a training with other options. Repeat them, or choose an empty folder.",
                    param="folder",
                )
            self.trainer.load_state({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118

    def _batch(self, number: int) -> Tensor:
        return self._sampler.batch(number) / self._factor


def _summary(figures: Sequence[StepFigures]) -> str:
    mean = {name: sum(getattr(one, name) for one in figures) / len(figures) for name in ("loss", "fvu", "l0")}
    return f"loss {mean['loss']:.4f}, FVU {mean['fvu']:.3f}, L0 {mean['l0']:.1f}, {figures[-1].dead_share:.1%} dead"


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A training: an SAE for one site of a model. ``max_activations`` limits what is stored on the disk."""

    model_name: str
    site: Site
    recipe: TrainingRecipe
    corpus: str
    max_activations: int


class TrainingReader(ActivationReader, LossReader, Protocol):
    """A model that is trained on: its activations, and its predictions for the figures of the result."""


def run_training(
    plan: TrainingPlan,
    documents: Sequence[TokenisedDocument],
    reader: TrainingReader,
    *,
    folder: Path,
    target: Path,
    monitor: TrainingMonitor,
    pace: TrainingPace = DEFAULT_PACE,
) -> dict[str, Any]:
    """Train an SAE and write it with its figures to ``target``. Return the figures, as in ``health.json``.

    ``folder`` holds activations and checkpoints: a run that ended early continues there. It is removed at the end.
    Raise TrainingError, NoSpaceError, InvalidSAEError, or an error of reading the model.
    """
    split = split_documents(documents, plan.recipe.seed)
    tokens = sum(document.num_ordinary for document in split.training)
    if tokens < 2 * plan.recipe.batch:
        raise TrainingError(
            f"The corpus has {tokens} tokens to train on; at least two batches ({2 * plan.recipe.batch}) are needed.",
            param="corpus",
        )
    store = ActivationStore(folder, f"{plan.model_name}, {plan.site.label}, {plan.corpus}")
    collect_activations(store, split.training, reader, plan.site, plan.max_activations, monitor, pace)
    monitor.log(f"Training on {store.meta.rows} tokens of {plan.corpus}.")
    trainer = TrainingLoop(folder, store, plan.recipe).run(monitor, pace)
    monitor.log("Measuring on texts that were held out.")
    context = max(len(document.token_ids) for document in documents)
    write_sae(
        target,
        trainer.weights(),
        plan.recipe,
        plan.site,
        model_name=plan.model_name,
        corpus=plan.corpus,
        context_size=context,
    )
    figures = measure_training(plan, split.held_out or split.training[:1], reader, target, monitor)
    figures |= {"training_tokens": trainer.step * plan.recipe.batch, "distinct_tokens": store.meta.rows}
    replace_file(target / HEALTH, (json.dumps(figures, indent=2) + "\n").encode())
    shutil.rmtree(folder)
    return figures


def measure_training(
    plan: TrainingPlan,
    documents: Sequence[TokenisedDocument],
    reader: LossReader,
    target: Path,
    monitor: TrainingMonitor,
) -> dict[str, Any]:
    """Measure the written SAE on documents, and return its figures."""
    sae = load_sae(sae_place(target))
    source = SAESource(target.name, sae.key, str(target), "", "")

    def report(done: int, total: int) -> None:
        monitor.progress(done, total, "Measuring")

    measurement = measure_sae(sae, plan.site, documents, reader, report)
    loss = measure_loss(sae, source, plan.site, documents, measurement, reader, report)
    figures: dict[str, Any] = {
        "l0": measurement.l0,
        "fvu": measurement.reconstruction.fvu,
        "dead_share": measurement.dead_share,
        "mean_resid_norm": measurement.reconstruction.mean_norm,
        "measured_tokens": measurement.num_tokens,
    }
    if loss is not None:
        figures |= {
            "loss_recovered": loss.recovered,
            "model_loss": loss.model,
            "spliced_loss": loss.spliced,
            "zero_loss": loss.zero,
            "mean_loss": loss.mean,
            "loss_tokens": loss.num_tokens,
        }
    return figures | {
        "corpus": plan.corpus,
        "model": plan.model_name,
        "site": str(plan.site),
        "recipe": plan.recipe.as_json(),
    }
