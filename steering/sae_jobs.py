"""Jobs on SAEs, as pages, the API and commands ask for them."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import transaction

from inference.models import LanguageModel
from jobs.models import Job
from jobs.services import enqueue_job
from steering.corpus import DEFAULT_NAME, DEFAULT_TOKENS
from steering.models import SAE
from steering.registration import PreparedSAE, SAELocation
from steering.services import save_sae


@dataclass(frozen=True, slots=True)
class AddedSAE:
    """``measurement`` is the job that measures it, None where none was wanted or it cannot be measured."""

    sae: SAE
    measurement: Job | None


@transaction.atomic
def add_sae(*, prepared: PreparedSAE, measures: bool, owner: User | None = None) -> AddedSAE:
    """Registers it, and queues its first measurement, on the default corpus. A transcoder has none."""
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
    """Downloads it if need be, checks it against the model, registers it, and has it measured if ``measures``."""
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
    """On a corpus of :mod:`steering.corpus_shelf`, at most so many tokens of it."""
    params = {"sae": sae.pk, "corpus": corpus, "tokens": tokens, "replaces_imports": replaces_imports}
    return enqueue_job(kind="steering.health", params=params, owner=owner, title=f"Measure {sae}")
