"""A key shares its texts no more while an SAE is measured on them: no example of them stays, and none comes later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from inference.models import LanguageModel
from openai_api.keys.services import change_api_key, delete_api_keys
from openai_api.models import ApiKey
from openai_api.request_log.traffic_corpus import traffic_corpus
from steering.corpora.corpus import Corpus, CorpusError
from steering.features.labels import FeatureExample
from steering.features.traffic_examples import store_traffic_examples
from steering.models import SAE, Feature
from tests.openai_api.test_traffic_corpus import CHAT, log

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = (FeatureExample(("secret",), (1.0,)),)
WAITING = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture
def key() -> ApiKey:
    owner = User.objects.create_user("owner")
    return ApiKey.objects.create(name="a key", prefix="x", digest="d", owner=owner, shares_examples=True)


@pytest.fixture
def sae() -> SAE:
    model = LanguageModel.objects.create(name="tiny", source="x")
    return SAE.objects.create(
        name="s", model=model, source="x", format="f", architecture="a", layer=0, d_in=4, d_sae=3, checksum="c"
    )


@pytest.fixture
def corpus(key: ApiKey) -> Corpus:
    """As the job reads it before it measures."""
    log(key, CHAT)
    return traffic_corpus()


def keep(sae: SAE, corpus: Corpus) -> None:
    store_traffic_examples(sae=sae, corpus=corpus, examples=lambda index: SECRET)


def num_examples() -> int:
    return Feature.objects.exclude(traffic_examples=[]).count()


def withdraw(key: ApiKey) -> None:
    key.shares_examples = False
    change_api_key(api_key=key)


def delete(key: ApiKey) -> None:
    delete_api_keys(keys=ApiKey.objects.filter(pk=key.pk))


def delete_owner(key: ApiKey) -> None:
    key.owner.delete()


ways_to_end = pytest.mark.parametrize("end", [withdraw, delete, delete_owner])


def overlapping(first: Callable[[], None], second: Callable[[], None]) -> list[CorpusError]:
    """``second`` begins after ``first`` has written and before that is committed; what it was refused with."""
    refusals: list[CorpusError] = []

    def work() -> None:
        try:
            second()
        except CorpusError as error:
            refusals.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=work, daemon=True)
    with transaction.atomic():
        first()
        thread.start()
        wait_until_it_waits()
    thread.join()
    return refusals


def wait_until_it_waits() -> None:
    end = time.monotonic() + 60
    with connection.cursor() as cursor:
        while time.monotonic() < end:
            cursor.execute(WAITING)
            if cursor.fetchone() != (0,):
                return
            time.sleep(0.01)
    pytest.fail("The other transaction did not wait for this one.")


def test_nothing_was_withdrawn(sae, corpus):
    keep(sae, corpus)
    assert num_examples() == sae.d_sae


@ways_to_end
def test_withdrawn_before_they_are_kept(end, sae, corpus, key):
    end(key)
    with pytest.raises(CorpusError, match="nothing was stored"):
        keep(sae, corpus)
    assert num_examples() == 0


@ways_to_end
def test_withdrawn_while_they_are_kept(end, sae, corpus, key):
    assert overlapping(lambda: keep(sae, corpus), lambda: end(key)) == []
    assert num_examples() == 0


@ways_to_end
def test_kept_while_it_is_withdrawn(end, sae, corpus, key):
    (refusal,) = overlapping(lambda: end(key), lambda: keep(sae, corpus))
    assert "Measure again" in str(refusal)
    assert num_examples() == 0


def test_texts_of_other_keys_go_with_them(sae, corpus, key):
    """One reading has examples of all keys, and nobody knows whose each one is; the next is without the deleted key."""
    other = ApiKey.objects.create(name="other", prefix="y", digest="e", owner=key.owner, shares_examples=True)
    log(other, CHAT)
    both = traffic_corpus()
    delete(key)
    with pytest.raises(CorpusError):
        keep(sae, both)
    keep(sae, traffic_corpus())
    assert num_examples() == sae.d_sae
