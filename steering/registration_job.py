"""The job ``steering.add_sae``: downloads an SAE from the Hub, checks it and registers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User

from inference.files.downloads import watch
from inference.models import LanguageModel
from steering.models import SAE
from steering.registration import SAELocation, inspect_sae, prepare_sae
from steering.sae_jobs import add_sae
from steering.sae_source import locate_sae

if TYPE_CHECKING:
    from jobs.running_job import RunningJob


def run_add_sae(job: RunningJob) -> dict[str, Any]:
    """Files that were fetched before are kept, so a run after a crash goes on where that one ended."""
    params = job.params
    model = LanguageModel.objects.get(pk=params["model"])
    done = SAE.objects.filter(name=params["name"], model=model, source=params["source"]).first()
    if done is not None:  # the run before got as far as this
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
    job.progress(1, 1, "Reading and checking the weights")
    prepared = prepare_sae(params["name"], model, candidate)
    owner = None if job.owner_id is None else User.objects.filter(pk=job.owner_id).first()
    added = add_sae(prepared=prepared, measures=params.get("measures", False), owner=owner)
    job.log(f"Registered {added.sae} with {added.sae.d_sae} features.")
    if added.measurement is not None:
        job.log(f"The job “{added.measurement}” tells how well it fits.")
    return {"sae": added.sae.pk}
