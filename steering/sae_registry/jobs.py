"""Jobs on SAEs: adding one from the Hub, and measuring one. Pages, the API and commands queue them here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction

from core.errors import MillmError
from inference.files.downloads import watch
from inference.models import LanguageModel
from jobs.models import Job
from jobs.services import enqueue_job
from steering.corpora.corpus import DEFAULT_NAME, DEFAULT_TOKENS
from steering.corpora.corpus_registry import open_corpus
from steering.models import SAE
from steering.residuals import open_engine_reader
from steering.sae_registry.files import locate_sae
from steering.sae_registry.health import judge
from steering.sae_registry.health_check import MeasureParams, check_sae
from steering.sae_registry.registration import PreparedSAE, SAELocation, inspect_sae, prepare_sae
from steering.sae_registry.uploads import delete_upload
from steering.services import save_sae

if TYPE_CHECKING:
    from jobs.running_job import RunningJob


@dataclass(frozen=True, slots=True)
class AddedSAE:
    """A registered SAE and the job that measures it, or None if it is not measured."""

    sae: SAE
    measurement: Job | None


@transaction.atomic
def add_sae(*, prepared: PreparedSAE, measures: bool, owner: User | None = None) -> AddedSAE:
    """Register an SAE and queue its first measurement on the default corpus. Transcoders cannot be measured."""
    sae = save_sae(prepared=prepared)
    if not measures or sae.architecture.endswith("transcoder"):
        return AddedSAE(sae, None)
    return AddedSAE(sae, request_measurement(sae=sae, owner=owner))


def request_sae(
    *,
    name: str,
    model: LanguageModel,
    location: SAELocation,
    layer: int | None = None,
    site: str = "",
    measures: bool = False,
    owner: User | None = None,
) -> Job:
    """Queue a job that downloads an SAE, checks it against the model, registers it, and measures it if requested."""
    return enqueue_job(
        kind="steering.add_sae",
        params={
            "name": name,
            "model": model.pk,
            "source": location.source,
            "revision": location.revision,
            "subfolder": location.subfolder,
            "layer": layer,
            "site": site,
            "measures": measures,
        },
        owner=owner,
        title=f"Download {location.source} {location.subfolder}".strip(),
    )


def request_measurement(
    *,
    sae: SAE,
    corpus: str = DEFAULT_NAME,
    tokens: int = DEFAULT_TOKENS,
    replaces_imports: bool = False,
    owner: User | None = None,
) -> Job:
    """Queue a measurement on a corpus of :mod:`steering.corpora.corpus_registry`, with at most ``tokens`` tokens."""
    params = {"sae": sae.pk, "corpus": corpus, "tokens": tokens, "replaces_imports": replaces_imports}
    return enqueue_job(kind="steering.health", params=params, owner=owner, title=f"Measure {sae}")


def run_add_sae(job: RunningJob) -> dict[str, Any]:
    """Download and register an SAE. Downloaded files are kept, so a run resumes after a crash."""
    params = job.params
    model = LanguageModel.objects.get(pk=params["model"])
    done = SAE.objects.filter(name=params["name"], model=model, source=params["source"]).first()
    if done is not None:  # a previous run finished this
        return {"sae": done.pk}
    location = SAELocation(params["source"], params["revision"], params["subfolder"])
    candidate = inspect_sae(location, model, layer=params["layer"], site=params["site"] or None)
    for doubt in candidate.doubts:
        job.log(doubt)
    watch(
        lambda download: locate_sae(
            location.source, revision=location.revision, subfolder=location.subfolder, download=download
        ),
        lambda done, total: job.progress(done, total, "Downloading"),
    )
    job.progress(1, 1, "Checking the weights")
    owner = None if job.owner_id is None else User.objects.filter(pk=job.owner_id).first()
    try:
        prepared = prepare_sae(params["name"], model, candidate)
        added = add_sae(prepared=prepared, measures=params.get("measures", False), owner=owner)
    except (MillmError, ValidationError):  # the uploaded files will never be usable
        delete_upload(location.source)
        raise
    job.log(f"Registered {added.sae} with {added.sae.d_sae} features.")
    if added.measurement is not None:
        job.log(f'The job "{added.measurement}" measures how well it fits.')
    return {"sae": added.sae.pk}


def run_health(job: RunningJob) -> dict[str, Any]:
    """Measure an SAE in the engine. After a crash it starts again: nothing is saved before the end."""
    sae = SAE.objects.select_related("model").get(pk=job.params["sae"])
    params = MeasureParams(open_corpus(job.params["corpus"]), job.params["tokens"], job.params["replaces_imports"])
    with open_engine_reader(sae.model) as model:
        sae = check_sae(
            sae=sae,
            reader=model,
            params=params,
            progress=lambda done, total: job.progress(done, total, "Reading texts"),
        )
    for verdict in judge(sae):
        job.log(verdict.text)
    return {"sae": sae.pk, "l0": sae.l0, "fvu": sae.fvu, "dead_share": sae.dead_share, "tokens": sae.measured_tokens}
