"""The job ``steering.embed_labels``: embeds an SAE's labels, so that they can be found by meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django.db import transaction

from inference.client import BACKGROUND_PRIORITY
from inference.models import LanguageModel
from steering.models import SAE, Feature, LabelEmbedding
from steering.text_embedder import TextEmbedder, find_embedder

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

_BATCH = 64


def run_embed_labels(job: RunningJob) -> dict[str, Any]:
    """Labels whose text was embedded already are left out, so a run after a crash goes on where that one ended."""
    sae = SAE.objects.get(pk=job.params["sae"])
    model = LanguageModel.objects.get(pk=job.params["embedding_model"])
    num_gone = forget_stale(sae=sae, model=model)
    rows = list(_missing(sae, model))
    with asyncio.Runner() as runner:
        embedder = runner.run(find_embedder(model.name))
        for start in range(0, len(rows), _BATCH):
            job.progress(start, len(rows), "Embedding labels")
            _keep(runner, embedder, model, rows[start : start + _BATCH])
    job.progress(len(rows), len(rows), "Embedding labels")
    return {"embedded": len(rows), "removed": num_gone}


@transaction.atomic
def forget_stale(*, sae: SAE, model: LanguageModel) -> int:
    """Deletes embeddings of labels that have changed since, or are gone."""
    rows = LabelEmbedding.objects.filter(feature__sae=sae, model=model).select_related("feature")
    stale = [row.pk for row in rows.only("text", "feature__label", "feature__description") if row.is_stale]
    return LabelEmbedding.objects.filter(pk__in=stale).delete()[0]


def _missing(sae: SAE, model: LanguageModel) -> Iterable[Feature]:
    done = LabelEmbedding.objects.filter(model=model, feature__sae=sae).values("feature")
    return sae.features.exclude(label="").exclude(pk__in=done).order_by("index")


def _keep(runner: asyncio.Runner, embedder: TextEmbedder, model: LanguageModel, rows: Sequence[Feature]) -> None:
    texts = [row.label_text for row in rows]
    vectors = runner.run(embedder.embed(texts, priority=BACKGROUND_PRIORITY))
    LabelEmbedding.objects.bulk_create(
        (
            LabelEmbedding(feature=row, model=model, text=text, vector=vector.tolist())
            for row, text, vector in zip(rows, texts, vectors, strict=True)
        ),
        ignore_conflicts=True,
    )
