"""Examples of features that come from requests: they stay only while every key whose texts were read allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.db import connection, transaction

from steering.corpora.corpus import Corpus, CorpusError
from steering.features.label_import import example_json
from steering.features.labels import FeatureExample
from steering.models import SAE, Feature

_BATCH = 1000
_LOCK = 0x6D694C58  # "miLX"


def lock_examples() -> None:
    """Until the end of the transaction, for whoever writes or forgets examples.

    Who withdraws texts waits for who is just keeping some of them, and then finds them all.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


@transaction.atomic
def store_traffic_examples(*, sae: SAE, corpus: Corpus, examples: Callable[[int], Sequence[FeatureExample]]) -> None:
    """``examples`` of each feature's index, in place of those from before.

    CorpusError, and nothing is written, where the corpus' texts may not be shown any more: hours may have passed since
    they were read.
    """
    lock_examples()
    if not corpus.may_be_kept():
        raise CorpusError(
            f"Texts of the corpus {corpus.name} may not become examples any more, so nothing was kept. Measure again."
        )
    for first in range(0, sae.d_sae, _BATCH):
        rows = [Feature(sae=sae, index=index) for index in range(first, min(first + _BATCH, sae.d_sae))]
        for row in rows:
            row.traffic_examples = [example_json(one) for one in examples(row.index)]
        Feature.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["sae", "index"], update_fields=["traffic_examples"]
        )


@transaction.atomic
def delete_traffic_examples() -> int:
    """Removes the examples that came from requests, of all features; returns how many features had some."""
    lock_examples()
    return Feature.objects.exclude(traffic_examples=[]).update(traffic_examples=[])
