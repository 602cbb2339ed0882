"""The job ``steering.health``: measures an SAE beside the traffic, on the model that the engine has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steering.corpus_shelf import open_corpus
from steering.engine_model import opened_in_engine
from steering.health import judge
from steering.health_check import CheckWish, check_sae
from steering.models import SAE

if TYPE_CHECKING:
    from jobs.running_job import RunningJob


def run_health(job: RunningJob) -> dict[str, Any]:
    """From the beginning after a crash: nothing is written before all is measured."""
    sae = SAE.objects.select_related("model").get(pk=job.params["sae"])
    wish = CheckWish(open_corpus(job.params["corpus"]), job.params["tokens"], job.params["replaces_imports"])
    with opened_in_engine(sae.model) as model:
        sae = check_sae(
            sae=sae, model=model, wish=wish, progress=lambda done, total: job.progress(done, total, "Reading texts")
        )
    for verdict in judge(sae):
        job.log(verdict.text)
    return {"sae": sae.pk, "l0": sae.l0, "fvu": sae.fvu, "dead_share": sae.dead_share, "tokens": sae.measured_tokens}
