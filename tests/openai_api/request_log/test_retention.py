"""What the log keeps and for how long: globally, by key, by job and by command."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from jobs.models import Job
from jobs.periodic import enqueue_due
from openai_api.apps import PRUNE
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey, LogAccess, RequestLog
from openai_api.request_log import retention as pruning
from openai_api.request_log.entry import LogEntry, bare_parameters, stricter
from openai_api.request_log.retention import Pruned, Retention, prune_log
from openai_api.request_log.store import row_of
from tests.openai_api.request_log.rows import row
from tests.steering.evaluating import run

pytestmark = pytest.mark.slow

DAY = timedelta(days=1)


def ids() -> set[str]:
    return set(RequestLog.objects.values_list("pk", flat=True))


def aged(number: int, days: float, **fields: Any) -> RequestLog:
    return row(number, created_at=timezone.now() - days * DAY, **fields)


def key(name: str, owner: User, **fields: Any) -> ApiKey:
    return create_api_key(name=name, owner=owner, **fields).api_key


@pytest.mark.django_db
def test_old_rows_go_and_young_ones_stay():
    aged(1, 31)
    aged(2, 29)
    assert prune_log(retention=Retention(days=30, text_days=0)) == Pruned(rows=1, texts=0)
    assert ids() == {"req_2"}


@pytest.mark.django_db
def test_nothing_goes_where_nothing_is_set():
    aged(1, 10_000)
    assert prune_log(retention=Retention(0, 0)) == Pruned(0, 0)
    assert ids() == {"req_1"}


@pytest.mark.django_db
def test_a_key_may_keep_its_rows_for_less_never_for_more(admin_user: User):
    short, long = key("short", admin_user, log_retention_days=2), key("long", admin_user, log_retention_days=100)
    aged(1, 3, api_key=short)
    aged(2, 1, api_key=short)
    aged(3, 3, api_key=long)
    aged(4, 31, api_key=long)
    aged(5, 3)
    prune_log(retention=Retention(days=30, text_days=0))
    assert ids() == {"req_2", "req_3", "req_5"}
    prune_log(retention=Retention(days=0, text_days=0))
    assert ids() == {"req_2", "req_3", "req_5"}


@pytest.mark.django_db
def test_texts_go_before_their_rows():
    words = {"prompt": "SECRET", "completion": "SECRET", "parameters": {"stop": "SECRET", "seed": 7}}
    aged(1, 8, **words, status=400, error_code="bad", error_message="not SECRET", prompt_tokens=5)
    aged(2, 6, **words)
    aged(3, 8, **words, status=503, error_message="The queue is full.")
    assert prune_log(retention=Retention(days=0, text_days=7)) == Pruned(rows=0, texts=2)
    old, young, failed = RequestLog.objects.order_by("pk")
    assert (old.prompt, old.completion, old.error_message) == ("", "", "")
    assert (old.error_code, old.prompt_tokens, old.parameters) == ("bad", 5, {"stop": "left out", "seed": 7})
    assert young.prompt == "SECRET"
    assert failed.error_message == "The queue is full."
    assert prune_log(retention=Retention(days=0, text_days=7)) == Pruned(0, 0)


@pytest.mark.django_db
def test_pruning_goes_by_batches_and_keeps_what_it_did(monkeypatch: pytest.MonkeyPatch):
    for number in range(pruning.BATCH + 3):
        if number < 3:
            aged(number, 40)
    RequestLog.objects.bulk_create(
        RequestLog(id=f"old{n}", created_at=timezone.now() - 50 * DAY, endpoint="/v1/models", status=200)
        for n in range(pruning.BATCH)
    )

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune_log(retention=Retention(30, 0), tell=stop)
    assert ids() == {"req_0", "req_1", "req_2"}


# What is kept in the first place


def entry(**fields: Any) -> LogEntry:
    values = {"status": 200, "prompt": "SECRET", "completion": "SECRET", "parameters": {"stop": ["SECRET"], "n": 2}}
    return LogEntry("req_1", timezone.now(), "/v1/completions", None, **{**values, **fields})


@pytest.mark.parametrize(
    ("server", "of_key", "kept"),
    [
        ("full", "", "full"),
        ("full", "full", "full"),
        ("full", "hash", "hash"),
        ("full", "none", "none"),
        ("hash", "full", "hash"),
        ("none", "hash", "none"),
        ("none", "", "none"),
    ],
)
def test_a_key_may_keep_less_than_the_server_never_more(server: str, of_key: str, kept: str):
    found = row_of(entry(log_content=of_key), server)
    shown = {"full": "SECRET", "none": ""}.get(kept)
    assert found.prompt == shown if shown is not None else found.prompt.startswith("sha256:")
    assert found.parameters == ({"stop": ["SECRET"], "n": 2} if kept == "full" else {"stop": "left out", "n": 2})


def test_without_texts_refusals_lose_their_sentence_and_failures_keep_theirs():
    assert row_of(entry(status=400, error_message="SECRET"), "none").error_message == ""
    assert row_of(entry(status=500, error_message="The engine died."), "none").error_message == "The engine died."
    assert row_of(entry(status=400, error_message="SECRET"), "full").error_message == "SECRET"


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner))


@given(st.dictionaries(st.text(), JSON))
def test_bare_parameters_hold_numbers_switches_and_names(parameters: dict[str, Any]):
    bare = bare_parameters(parameters)
    assert bare.keys() == parameters.keys()
    assert all(isinstance(value, int | float | bool) or value == "left out" for value in bare.values())
    assert bare_parameters(bare) == bare


@given(st.sampled_from(["", "full", "hash", "none"]), st.sampled_from(["", "full", "hash", "none"]))
def test_stricter_is_symmetric_and_keeps_no_more_than_either(one: str, other: str):
    order = ["full", "hash", "none"]
    found = stricter(one, other)
    assert found == stricter(other, one)
    assert all(order.index(found) >= order.index(level or "full") for level in (one, other))


# The job and the command


@pytest.mark.django_db(transaction=True)
def test_a_job_is_queued_when_there_is_something_to_prune_and_once_in_its_time(settings: Any):
    settings.MILLM_LOG_RETENTION_DAYS = 30
    aged(1, 5)
    assert [job for job in enqueue_due() if job.kind == PRUNE] == []
    aged(2, 31)
    (job,) = (job for job in enqueue_due() if job.kind == PRUNE)
    assert enqueue_due() == []
    ended = run(job)
    assert (ended.state, ended.result) == ("succeeded", {"rows": 1, "texts": 0})
    assert ids() == {"req_1"}
    assert LogAccess.objects.get().act == "prune"
    aged(3, 31)
    assert enqueue_due() == []
    Job.objects.update(created_at=timezone.now() - timedelta(hours=2))
    assert len(enqueue_due()) == 1


@pytest.mark.django_db
def test_the_command_takes_days_of_its_own(settings: Any):
    settings.MILLM_LOG_RETENTION_DAYS = 30
    aged(1, 20)
    aged(2, 5, prompt="x")
    output = StringIO()
    call_command("prune_logs", stdout=output)
    assert ids() == {"req_1", "req_2"}
    call_command("prune_logs", days=10, text_days=1, stdout=output)
    assert ids() == {"req_2"}
    assert "Deleted 1 rows, and the texts of 1 other rows." in output.getvalue()
    with pytest.raises(CommandError, match="at least 0"):
        call_command("prune_logs", days=-1)
