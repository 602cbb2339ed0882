"""Examples of features from requests, stored only while every API key whose texts were used allows it."""

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
    """Lock examples until the end of the transaction, for writing and for deleting them.

    A deletion thus waits for a transaction that stores examples, and then deletes these too.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


@transaction.atomic
def store_traffic_examples(*, sae: SAE, corpus: Corpus, examples: Callable[[int], Sequence[FeatureExample]]) -> None:
    """Replace the examples of all features; ``examples`` returns them by feature index.

    Raise CorpusError and write nothing if the texts of the corpus may no longer be shown: measuring can take hours.
    """
    lock_examples()
    if not corpus.may_be_kept():
        raise CorpusError(
            f"The texts of the corpus {corpus.name} may no longer be stored as examples, so nothing was stored. "
            "Measure again."
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
    """Delete all examples that came from requests, and return the number of features that had some."""
    lock_examples()
    return Feature.objects.exclude(traffic_examples=[]).update(traffic_examples=[])
