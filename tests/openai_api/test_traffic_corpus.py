"""Texts of requests become a corpus only where their key says so."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from inference.models import LanguageModel
from openai_api.keys.services import change_api_key, delete_api_keys
from openai_api.models import ApiKey, RequestLog
from openai_api.request_log.traffic_corpus import traffic_corpus
from steering.corpora.corpus import CorpusError
from steering.corpora.corpus_registry import corpus_names, open_corpus
from steering.models import SAE, Feature

pytestmark = pytest.mark.django_db


@pytest.fixture
def keys():
    owner = User.objects.create_user("owner")
    return [
        ApiKey.objects.create(name=f"key {shares}", prefix="x", digest=str(shares), owner=owner, shares_examples=shares)
        for shares in (True, False)
    ]


def log(key: ApiKey | None, prompt: object, completion: str = "Yes.", **fields: object) -> RequestLog:
    row = {"endpoint": "/v1/chat/completions", "model": "tiny", "status": 200, "created_at": timezone.now(), **fields}
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return RequestLog.objects.create(
        id=f"req-{RequestLog.objects.count()}", api_key=key, prompt=text, completion=completion, **row
    )


CHAT = [{"role": "user", "content": "Is it raining?"}]


def test_only_keys_that_allow_it(keys):
    shared, private = keys
    log(shared, CHAT)
    log(private, [{"role": "user", "content": "secret"}])
    log(None, [{"role": "user", "content": "anonymous"}])
    corpus = traffic_corpus()
    assert corpus.is_private
    assert [d.messages for d in corpus.documents] == [(*CHAT, {"role": "assistant", "content": "Yes."})]


def features(model: LanguageModel) -> list[Feature]:
    sae = SAE.objects.create(
        name="s", model=model, source="x", format="f", architecture="a", layer=0, d_in=4, d_sae=3, checksum="c"
    )
    example = [{"tokens": ["secret"], "values": [1.0]}]
    rows = [Feature(sae=sae, index=n, examples=example, traffic_examples=example if n else []) for n in range(3)]
    return Feature.objects.bulk_create(rows)


def num_with_traffic() -> int:
    assert not Feature.objects.filter(examples=[]).exists(), "those of a corpus stay"
    return Feature.objects.exclude(traffic_examples=[]).count()


def test_examples_go_with_the_key_that_shared_them(keys):
    """Withdrawn or deleted; anything else that happens to a key leaves them alone."""
    shared, private = keys
    features(LanguageModel.objects.create(name="tiny", source="x"))
    private.name = shared.name = "renamed"
    change_api_key(api_key=private)
    change_api_key(api_key=shared)
    delete_api_keys(keys=ApiKey.objects.filter(pk=private.pk))
    assert num_with_traffic() == 2
    shared.shares_examples = False
    change_api_key(api_key=shared)
    assert num_with_traffic() == 0


def test_examples_go_with_a_deleted_key(keys):
    features(LanguageModel.objects.create(name="tiny", source="x"))
    delete_api_keys(keys=ApiKey.objects.all())
    assert num_with_traffic() == 0


def test_examples_go_with_the_user_whose_key_it_was(keys):
    features(LanguageModel.objects.create(name="tiny", source="x"))
    User.objects.create_user("somebody else").delete()
    assert num_with_traffic() == 2
    keys[0].owner.delete()
    assert num_with_traffic() == 0


def test_completions_and_what_is_no_text(keys):
    log(keys[0], "Once upon", " a time.", endpoint="/v1/completions")
    log(keys[0], [[1, 2, 3]], endpoint="/v1/completions")
    log(keys[0], [{"role": "user", "content": [{"type": "text", "text": "parts"}]}])
    log(keys[0], "not json")
    log(keys[0], CHAT, "", status=500)
    log(keys[0], "x", "y", endpoint="/v1/embeddings")
    assert [d.text for d in traffic_corpus().documents] == ["Once upon a time."]


def test_withdrawing_takes_effect(keys):
    log(keys[0], CHAT)
    ApiKey.objects.update(shares_examples=False)
    with pytest.raises(CorpusError, match="No API key allows"):
        traffic_corpus()


def test_no_texts_are_kept(keys, settings):
    log(keys[0], "a" * 64, "b" * 64)
    settings.MILLM_LOG_CONTENT = "hash"
    with pytest.raises(CorpusError, match="MILLM_LOG_CONTENT"):
        traffic_corpus()


def test_is_offered_by_name(keys):
    log(keys[0], CHAT)
    assert "requests" in corpus_names()
    assert open_corpus("requests").name == "requests"
