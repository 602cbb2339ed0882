"""Search by meaning: embedding labels and queries with a registered model, and ranking features by similarity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from django.db import transaction
from numpy.typing import NDArray
from pgvector.django import CosineDistance

from inference.client import BACKGROUND_PRIORITY, EmbeddingRequest, get_client
from inference.models import LanguageModel
from inference.registry.model_card import ModelCard
from inference.registry.registry import get_registry
from inference.runs import Run, vectors_of
from steering.errors import SteeringError
from steering.features.search import FeatureQuerySet
from steering.models import SAE, Feature, LabelEmbedding

if TYPE_CHECKING:
    from jobs.running_job import RunningJob


class NotAnEmbedderError(SteeringError):
    """The model is not an embedding model."""

    code = "wrong_model_kind"
    param = "embedding_model"


@dataclass(frozen=True, slots=True)
class TextEmbedder:
    """Embeds texts as vectors of length 1. Texts are truncated to the context length of the model."""

    model: ModelCard

    async def embed(self, texts: Sequence[str], *, priority: int = 0) -> list[NDArray[np.float32]]:
        """Return one vector per text. Raise EngineError."""
        encoded = [self._encode(text) for text in texts]
        name = self.model.record.name
        batch = uuid4().hex
        requests = [
            EmbeddingRequest(f"embed-{batch}/{i}", name, ids, i, priority=priority) for i, ids in enumerate(encoded)
        ]
        collected = await Run(get_client(), requests, waits=True).collect()
        return [_normalised(np.frombuffer(values, "<f4")) for values in vectors_of(collected)]

    def _encode(self, text: str) -> tuple[int, ...]:
        """Return the truncated token ids."""
        return tuple(self.model.text.encode(text[: self.model.text.max_chars])[: self.model.max_model_len])


async def find_embedder(name: str) -> TextEmbedder:
    """Return the embedder, loading its model if necessary.

    Raise NotAnEmbedderError, ModelNotFoundError, and errors of loading.
    """
    ready = await get_registry().ready(name)
    if ready.kind != "embedding":
        raise NotAnEmbedderError(f"The model `{ready.record.name}` is for {ready.kind}, not for embedding.")
    return TextEmbedder(ready)


def _normalised(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    length = float(np.linalg.norm(vector))
    result: NDArray[np.float32] = vector / length if length > 0 else vector
    return result


DEPTH = 1_000
_DAMPING = 60  # the constant of reciprocal rank fusion; larger values flatten the weight of the top ranks


class LabelsNotEmbeddedError(SteeringError):
    code = "labels_not_embedded"
    param = "embedding_model"


@dataclass(frozen=True, slots=True)
class QueryEmbedding:
    """The embedding of a query (length 1), and the registered name of its model."""

    model: str
    vector: tuple[float, ...]


def fuse_scores(rankings: Sequence[Sequence[int]]) -> dict[int, float]:
    """Merge rankings by reciprocal rank fusion. Return the scores by primary key, the best first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for place, pk in enumerate(ranking):
            scores[pk] = scores.get(pk, 0.0) + 1 / (_DAMPING + place)
    return {pk: scores[pk] for pk in sorted(scores, key=lambda pk: (-scores[pk], pk))}


@dataclass(frozen=True, slots=True)
class NearLabels:
    """The features with the most similar labels, nearest first, and the cosines of these and of other features."""

    order: list[int]
    cosines: Mapping[int, float]


def nearest(rows: FeatureQuerySet, meaning: QueryEmbedding, others: Sequence[int] = ()) -> NearLabels:
    """Return the nearest features by an exact search, which is fast for tens of thousands of labels.

    ``others`` are features whose cosines are needed too.
    """
    embedded = LabelEmbedding.objects.filter(model__name=meaning.model, feature__in=rows.order_by().values("pk"))
    measured = embedded.annotate(distance=CosineDistance("vector", list(meaning.vector)))
    near = measured.order_by("distance", "feature_id").values_list("feature_id", "distance")
    found = dict(near[:DEPTH])
    if not found:
        raise LabelsNotEmbeddedError(
            f"No labels have been embedded with {meaning.model}. Start a job on an SAE's page in the admin."
        )
    more = dict(near.filter(feature__in=[pk for pk in others if pk not in found]))
    return NearLabels(list(found), {pk: 1 - distance for pk, distance in (found | more).items()})


_BATCH = 64


def run_embed_labels(job: RunningJob) -> dict[str, Any]:
    """Embed the labels of an SAE. Labels that are embedded already are skipped, so a run resumes after a crash."""
    sae = SAE.objects.get(pk=job.params["sae"])
    model = LanguageModel.objects.get(pk=job.params["embedding_model"])
    num_gone = delete_stale_embeddings(sae=sae, model=model)
    rows = list(_missing(sae, model))
    with asyncio.Runner() as runner:
        embedder = runner.run(find_embedder(model.name))
        for start in range(0, len(rows), _BATCH):
            job.progress(start, len(rows), "Embedding labels")
            _keep(runner, embedder, model, rows[start : start + _BATCH])
    job.progress(len(rows), len(rows), "Embedding labels")
    return {"embedded": len(rows), "removed": num_gone}


@transaction.atomic
def delete_stale_embeddings(*, sae: SAE, model: LanguageModel) -> int:
    """Delete embeddings of labels that were changed or removed since."""
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
