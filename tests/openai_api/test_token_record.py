"""What the log keeps of single tokens: what was asked for, joined at its token, within a bound, as text that it is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from inference.captures import ActivationCapture, CaptureSpec, FeatureValues, TopFeatures
from inference.client import CaptureEvent, Event, GenerationRequest, SamplingParams, TokenLogprob, TokensEvent
from inference.interventions import Site
from openai_api.generation.token_record import MAX_SIZE, TokenRecord
from openai_api.models import RequestLog
from openai_api.request_log.entry import TOKENS, LogEntry
from openai_api.request_log.retention import Retention, prune_log
from openai_api.request_log.store import LogStore, row_of
from tests.openai_api.conftest import Api, chunks_of
from tests.openai_api.fakes import TURN, FakeText, finished, tokens_of
from tests.openai_api.test_activations import FakeEncoder, FakeFeatures, features  # noqa: F401 - a fixture

TOP = CaptureSpec(site=Site(2), probe=TopFeatures(FakeEncoder(), 3))  # type: ignore[arg-type]
CHOSEN = CaptureSpec(site=Site(2), probe=FeatureValues(FakeEncoder(), (7, 3)))  # type: ignore[arg-type]
PROMPT = (1, 2)
TEXT: Any = FakeText()


def asked(number: int = 0, *, logprobs: int | None = None, captures: tuple[CaptureSpec, ...] = ()) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=50, logprobs=logprobs)
    return GenerationRequest(f"r/{number}", "tiny", PROMPT, sampling, None, number, captures=captures)


def record_of(*requests: GenerationRequest, num_own: int = 1, **options: Any) -> TokenRecord:
    captures = {request.index: request.captures[:num_own] for request in requests}
    record = TokenRecord.of(requests, captures.__getitem__, text=TEXT, sae="org/sae", **options)
    assert record is not None
    return record


def wrote(text: bytes, *logprobs: TokenLogprob, index: int = 0) -> TokensEvent:
    return TokensEvent(index, tuple(text), text.decode("utf-8", "replace"), logprobs)


def read(place: int, *values: float, number: int = 0, index: int = 0, top: bool = True) -> CaptureEvent:
    indices = np.arange(10, 10 + len(values))[None] if top else None
    reading = ActivationCapture(number, 1, np.array([values], np.float32), (place,), indices)
    return CaptureEvent(index, (reading,))


def answer(record: TokenRecord, index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = record.body()["answers"][index]
    return found


def test_nothing_is_recorded_where_nothing_was_asked_for():
    assert TokenRecord.of([asked()], lambda number: (), text=TEXT, sae="") is None


def test_what_a_watch_rule_reads_is_not_the_request_s():
    assert TokenRecord.of([asked(captures=(TOP,))], lambda number: (), text=TEXT, sae="") is None
    record = record_of(asked(logprobs=0, captures=(TOP,)), num_own=0)
    record.note(read(0, 5.0))
    record.note(wrote(b"a", TokenLogprob(97, -1.0)))
    assert "features" not in answer(record)["tokens"][0]
    assert answer(record)["prompt"] == []


def test_features_stand_at_their_token_whenever_they_come():
    """A step captures the token that it was given, before the next one comes; a draft's are read at once."""
    record = record_of(asked(logprobs=1, captures=(TOP,)))
    record.note(read(1, 4.0, 0.0, 2.0))
    record.note(read(2, 1.5, 0.5))
    record.note(wrote(b"a", TokenLogprob(97, -0.123456789, ((98, -2.0), (97, -0.123456789)))))
    record.note(wrote(b"b", TokenLogprob(98, float("-inf"), ())))
    found = answer(record)
    assert found["prompt"] == [{"place": 1, "id": 2, "text": "\x02", "features": [[10, 4.0], [12, 2.0]]}]
    assert found["tokens"] == [
        {
            "place": 2,
            "id": 97,
            "text": "a",
            "logprob": -0.12346,
            "top": [["b", -2.0], ["a", -0.12346]],
            "features": [[10, 1.5], [11, 0.5]],
        },
        {"place": 3, "id": 98, "text": "b", "logprob": -9999.0, "top": []},
    ]
    assert found["num_tokens"] == 2


def test_features_that_were_named_are_kept_silent_or_not():
    record = record_of(asked(captures=(CHOSEN,)))
    record.note(wrote(b"a"))
    record.note(read(2, 0.0, 3.0, top=False))
    assert answer(record)["tokens"] == [{"place": 2, "id": 97, "text": "a", "features": [[7, 0.0], [3, 3.0]]}]


def test_what_was_read_of_a_token_that_a_stop_string_took_back_is_left_out():
    record = record_of(asked(captures=(TOP,)))
    record.note(wrote(b"a"))
    record.note(read(2, 1.0))
    record.note(read(3, 9.0))
    assert len(answer(record)["tokens"]) == 1
    assert "9.0" not in json.dumps(record.body())


def test_a_character_of_several_tokens_stands_at_its_last_one():
    record = record_of(asked(logprobs=0))
    letters = "ä😀".encode()
    record.note(wrote(letters, *(TokenLogprob(token, -1.0) for token in letters)))
    record.note(wrote(b"\xff", TokenLogprob(255, -1.0)))
    record.note(TokensEvent(0, (TURN,), "", (TokenLogprob(TURN, -1.0),)))
    assert [token["text"] for token in answer(record)["tokens"]] == ["", "ä", "", "", "", "😀", "�", "</s>"]


def test_sequences_are_kept_apart():
    record = record_of(asked(0, logprobs=0), asked(1, logprobs=0))
    record.note(wrote(b"a", TokenLogprob(97, -1.0), index=1))
    record.note(wrote(b"b", TokenLogprob(98, -2.0), index=0))
    assert [[token["text"] for token in answer(record, index)["tokens"]] for index in (0, 1)] == [["b"], ["a"]]


@pytest.mark.parametrize("num_top", [0, 20])
def test_a_record_is_bounded(num_top: int):
    """A long answer keeps its beginning, and how long it was."""
    record = record_of(asked(logprobs=num_top, captures=(TOP,)))
    top = tuple((97, -1.2345) for _ in range(num_top))
    for place in range(20_000):
        record.note(wrote(b"a", TokenLogprob(97, -1.2345, top)))
        record.note(read(2 + place, 1.2345, 1.2345, 1.2345))
    found = answer(record)
    assert found["num_tokens"] == 20_000
    assert 100 < len(found["tokens"]) < 3_000
    assert 0.5 * MAX_SIZE < len(json.dumps(record.body())) < 1.5 * MAX_SIZE
    assert 0.9 * MAX_SIZE < record.size <= MAX_SIZE, "what is not kept takes no room of the log's queue"


def test_a_long_prompt_is_bounded_too():
    request = GenerationRequest("r/0", "tiny", (97,) * 50_000, SamplingParams(max_tokens=1), None, 0, captures=(TOP,))
    record = record_of(request, max_size=10_000)
    for place in range(50_000):
        record.note(read(place, 1.0, 2.0, 3.0))
    assert len(json.dumps(record.body())) < 15_000
    assert len(answer(record)["prompt"]) < 200


def test_reading_the_last_token_of_a_long_prompt_alone_does_not_bring_the_prompt():
    request = GenerationRequest("r/0", "tiny", (97,) * 50_000, SamplingParams(max_tokens=1), None, 0, captures=(TOP,))
    record = record_of(request, max_size=10_000)
    record.note(read(0, 1.0, 2.0, 3.0))
    record.note(read(49_999, 1.0, 2.0, 3.0))
    assert [token["place"] for token in answer(record)["prompt"]] == [0, 49_999]


class TestOfRequests:
    """Through the endpoints, over a fake engine."""

    async def test_a_chat_that_asks_for_both(self, api: Api, features: FakeFeatures):  # noqa: F811
        (await api.chat(return_activations=True, logprobs=True, top_logprobs=2)).json()
        (record,) = api.log.only.tokens
        body = record.body()
        assert body["sae"] == "org/sae"
        (found,) = body["answers"]
        assert [token["text"] for token in found["tokens"]] == ["a", "b"]
        assert [token.get("features") for token in found["tokens"]] == [[[3, 2.0]], None]
        assert [token["text"] for token in found["prompt"]] == ["<s>", "h", "i", "</s>"]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_logprobs_alone(self, api: Api, stream: bool):
        response = await api.complete(logprobs=1, stream=stream, n=2)
        if stream:
            await chunks_of(response)
        (record,) = api.log.only.tokens
        answers = record.body()["answers"]
        assert [one["index"] for one in answers] == [0, 1]
        assert all(token["logprob"] <= 0 for one in answers for token in one["tokens"])
        assert all("features" not in token for one in answers for token in one["tokens"])

    async def test_nothing_where_nothing_was_asked_for(self, api: Api):
        await api.chat()
        assert api.log.only.tokens == ()

    async def test_a_refused_request_has_none(self, api: Api, features: FakeFeatures):  # noqa: F811
        assert (await api.chat(return_activations={"sae": "other"})).status_code == 404
        assert api.log.only.tokens == ()

    async def test_a_request_that_fails_keeps_what_was_known(self, api: Api, features: FakeFeatures):  # noqa: F811
        def script(request: GenerationRequest) -> Iterable[Event]:
            yield tokens_of(request, "ab")[0]
            yield finished(request, 1, reason="cancelled")

        api.engine.script = script
        assert (await api.chat(return_activations=True)).status_code == 503
        assert [token["text"] for token in api.log.only.tokens[0].body()["answers"][0]["tokens"]] == ["a"]


def entry(**fields: Any) -> LogEntry:
    record = record_of(asked(logprobs=0, captures=(TOP,)))
    record.note(wrote(b"SECRET\x00", *(TokenLogprob(token, -1.0) for token in b"SECRET\x00")))
    record.note(read(2, float("nan"), float("inf")))
    values = {"prompt": "x", "completion": "SECRET", "parameters": {"seed": 7}, "status": 200, "tokens": (record,)}
    return LogEntry("req_1", timezone.now(), "/v1/completions", None, **{**values, **fields})


class TestItsRow:
    def test_is_kept_among_the_parameters(self, db: None):
        LogStore().insert([entry()])
        parameters = RequestLog.objects.get().parameters
        assert parameters["seed"] == 7
        (record,) = parameters[TOKENS]
        assert [token["text"] for token in record["answers"][0]["tokens"]] == [*"SECRET", "�"]

    @pytest.mark.parametrize(("server", "key"), [("hash", ""), ("none", ""), ("full", "hash"), ("full", "none")])
    def test_is_not_kept_where_texts_are_not(self, server: str, key: str):
        row = row_of(entry(log_content=key), server)
        assert TOKENS not in row.parameters
        assert row.parameters == {"seed": 7}

    def test_counts_as_text_of_the_queue_and_goes_with_it(self):
        one = entry()
        assert one.num_characters > 8 * 40
        one.drop_texts()
        assert one.num_characters == 0
        assert row_of(one, "full").parameters == {"dropped": "texts and parameters"}

    def test_is_pruned_with_its_texts(self, db: None):
        LogStore().insert([entry()])
        RequestLog.objects.update(created_at=timezone.now() - timedelta(days=9))
        prune_log(retention=Retention(days=0, text_days=7))
        parameters = RequestLog.objects.get().parameters
        assert parameters == {"seed": 7, TOKENS: "left out"}

    def test_is_written_again_after_a_failed_attempt(self):
        one = entry()
        assert row_of(one, "full").parameters == row_of(one, "full").parameters
