"""Trainings on a server: their checks, the job, and the registration of the result."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth.models import User

from inference.interventions import Site
from inference.models import LanguageModel
from jobs.errors import JobCancelled
from jobs.models import Job
from jobs.services import enqueue_job
from steering.corpora.corpus import MAX_TOKENS, Corpus, CorpusError, tokenise
from steering.corpora.corpus_registry import open_corpus
from steering.model_shape import read_model_shape
from steering.models import SAE
from steering.residuals import open_engine_reader
from steering.sae_registry.jobs import AddedSAE, add_sae
from steering.sae_registry.registration import SAELocation, inspect_sae, prepare_sae, read_health
from steering.training.errors import TrainingError
from steering.training.recipe import TRAINABLE_SITES, TrainingRecipe

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

KIND = "steering.train_sae"
DEFAULT_ACTIVATIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class TrainingOrder:
    """What to train: the SAE's name, its model and site, the recipe, and the limit of stored activations."""

    name: str
    model: LanguageModel
    site: Site
    recipe: TrainingRecipe
    max_activations: int = DEFAULT_ACTIVATIONS

    def check(self, *, folder: Path) -> None:
        """Raise TrainingError or NoSpaceError if it cannot run, or an error of reading the model's shape. Fast."""
        from steering.training.store import check_space  # imports torch

        if not self.name or "/" in self.name or self.name.startswith("."):
            raise TrainingError(
                f"`name` must be the name of a folder, without slashes and leading dots, got {self.name!r}.",
                param="name",
            )
        if SAE.objects.filter(name=self.name).exists():
            raise TrainingError(f"An SAE with the name {self.name} already exists.", param="name")
        if self.model.kind != LanguageModel.Kind.GENERATION:
            raise TrainingError(f"{self.model} does not generate text.", param="model")
        if self.site.kind not in TRAINABLE_SITES:
            raise TrainingError(
                f"`site` must be one of {', '.join(TRAINABLE_SITES)}, got {self.site.kind!r}.", param="site"
            )
        if not self.recipe.batch <= self.max_activations <= MAX_TOKENS:
            raise TrainingError(
                f"`max_activations` must be between the batch ({self.recipe.batch}) and {MAX_TOKENS}, got "
                f"{self.max_activations}.",
                param="max_activations",
            )
        shape = read_model_shape(self.model)
        width = shape.width(self.site)
        if not 0 <= self.site.layer < shape.num_layers:
            raise TrainingError(
                f"The model has layers 0 to {shape.num_layers - 1}, got layer {self.site.layer}.", param="layer"
            )
        weights = 4 * (2 * self.recipe.features * width + 2 * self.recipe.features)
        check_space(folder, 2 * width * self.max_activations + 7 * weights)  # two checkpoints, each with two moments

    @property
    def target(self) -> Path:
        """The folder of the finished SAE."""
        return Path(settings.MILLM_HOME) / "saes" / self.name


def join_corpora(corpora: Sequence[Corpus]) -> Corpus:
    """Return one corpus with all documents, its name and version made from theirs."""
    if len(corpora) == 1:
        return corpora[0]
    version = hashlib.sha256(" ".join(corpus.label for corpus in corpora).encode()).hexdigest()[:12]
    documents = tuple(document for corpus in corpora for document in corpus.documents)
    return Corpus("+".join(corpus.name for corpus in corpora)[:150], version, documents)


def check_training(*, order: TrainingOrder, corpora: Sequence[str]) -> None:
    """Raise TrainingError, NoSpaceError or CorpusError if :func:`request_training` would."""
    order.check(folder=_trainings())
    for name in corpora:
        try:
            _public(open_corpus(name))
        except CorpusError as error:
            raise CorpusError(error.message, param="corpora") from error
    going = Job.objects.filter(kind=KIND, state__in=(Job.State.QUEUED, Job.State.RUNNING), params__name=order.name)
    if going.exists():
        raise TrainingError(f"A job is already training an SAE with the name {order.name}.", param="name")


def request_training(*, order: TrainingOrder, corpora: Sequence[str], owner: User | None = None) -> Job:
    """Queue a training on corpora of :mod:`steering.corpora.corpus_registry`.

    Raise TrainingError, NoSpaceError or CorpusError if it cannot run as described.
    """
    check_training(order=order, corpora=corpora)
    return enqueue_job(
        kind=KIND,
        params={
            "name": order.name,
            "model": order.model.pk,
            "layer": order.site.layer,
            "site": order.site.kind,
            "recipe": order.recipe.as_json(),
            "max_activations": order.max_activations,
            "corpora": list(corpora),
        },
        owner=owner,
        title=f"Train SAE {order.name} on {order.model}",
    )


def run_train_sae(job: RunningJob) -> dict[str, Any]:
    """Train and register an SAE. After a crash it continues from its last checkpoint; if cancelled, it is deleted."""
    from steering.training.run import TrainingPlan, run_training

    params = job.params
    order = TrainingOrder(
        name=params["name"],
        model=LanguageModel.objects.get(pk=params["model"]),
        site=Site(params["layer"], params["site"]),
        recipe=TrainingRecipe.from_json(params["recipe"]),
        max_activations=params["max_activations"],
    )
    done = SAE.objects.filter(name=order.name, model=order.model, source=str(order.target)).first()
    if done is not None:  # a previous run finished this
        return {"sae": done.pk, **{name: getattr(done, name) for name in ("l0", "fvu", "dead_share")}} | {
            "tokens": done.measured_tokens
        }
    _remove_abandoned()
    corpus = join_corpora([_public(open_corpus(name)) for name in params["corpora"]])
    folder = _trainings() / str(job.id)
    plan = TrainingPlan(order.model.name, order.site, order.recipe, corpus.label, order.max_activations)
    try:
        with open_engine_reader(order.model) as reader:
            documents = tokenise(corpus, reader.text, order.max_activations)
            figures = run_training(plan, documents, reader, folder=folder, target=order.target, monitor=job)
    except JobCancelled:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    owner = None if job.owner_id is None else User.objects.filter(pk=job.owner_id).first()
    added = register_trained(order, measures=True, owner=owner)
    job.log(f"Registered {added.sae} with {added.sae.d_sae} features.")
    return {"sae": added.sae.pk, **{name: figures[name] for name in ("l0", "fvu", "dead_share")}} | {
        "tokens": figures["measured_tokens"]
    }


def register_trained(order: TrainingOrder, *, measures: bool, owner: User | None = None) -> AddedSAE:
    """Register the SAE in ``order.target`` with its figures."""
    location = SAELocation(str(order.target))
    candidate = inspect_sae(location, order.model)
    prepared = prepare_sae(order.name, order.model, candidate, health=read_health(order.target / "health.json"))
    return add_sae(prepared=prepared, measures=measures, owner=owner)


def _trainings() -> Path:
    return Path(settings.MILLM_HOME) / "training"


def _remove_abandoned() -> None:
    """Delete the folders of trainings that are not going to continue."""
    folder = _trainings()
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            number = uuid.UUID(path.name)
        except ValueError:
            continue  # of the command
        ended = (Job.State.SUCCEEDED, Job.State.CANCELLED)
        if not Job.objects.filter(pk=number).exclude(state__in=ended).exists():
            shutil.rmtree(path, ignore_errors=True)


def _public(corpus: Corpus) -> Corpus:
    if corpus.is_private:
        raise TrainingError(f"{corpus.name} holds private texts, which an SAE must not be trained on.", param="corpora")
    return corpus
