"""The load of minutes and hours: how it is counted, kept, forgotten and put together."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest
from django.db import OperationalError
from hypothesis import given
from hypothesis import strategies as st

from console.load.history import SPANS, read_history, total
from console.load.load import MAX_NAMES, NO_GAPS, NO_WAITS, Load, percentile
from console.load.sampler import MAX_PENDING, LoadSampler, delete_old_load, record_load
from console.load.totals import Totals, load_between, read_totals
from console.models import HOUR_S, MINUTE_S, LoadSample
from inference.metrics import FAST_BUCKETS, SLOW_BUCKETS
from openai_api.request_log.metrics import MAX_NAMES as MAX_USED
from openai_api.request_log.metrics import RecentUse, Use

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
NOTHING = Totals(0, {}, 0, 0, NO_WAITS, NO_GAPS, 0, 0, 0, 0, 0.0)
counts = st.integers(0, 10**6)
names = st.dictionaries(st.sampled_from("abc"), st.integers(1, 100), max_size=3)
loads = st.builds(
    Load,
    requests=counts,
    errors=names,
    first_tokens=st.tuples(*[counts] * len(NO_WAITS)),
    gaps=st.tuples(*[counts] * len(NO_GAPS)),
    running=counts,
    kv=st.floats(0, 1),
    profiles=names,
)


@given(loads, loads, loads)
def test_loads_add_up_in_any_order(a: Load, b: Load, c: Load):
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + Load() == a


def test_of_many_names_the_most_counted_stay():
    many = Load(errors={f"code{n}": n + 1 for n in range(3 * MAX_NAMES)})
    kept = (many + many).errors
    assert len(kept) == MAX_NAMES
    assert min(kept.values()) == 2 * (2 * MAX_NAMES + 1)


@given(st.lists(st.floats(0.0001, 300), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float):
    edges = np.array(SLOW_BUCKETS)
    counted = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
    found = percentile(SLOW_BUCKETS, tuple(int(n) for n in counted), share)
    true = np.sort(values)[max(0, int(np.ceil(share * len(values) - 1e-9)) - 1)]
    place = int(np.searchsorted(edges, true))
    assert found is not None
    lower = 0.0 if place == 0 else edges[place - 1]
    assert lower - 1e-9 <= found <= edges[min(place, len(edges) - 1)] + 1e-9


def test_percentiles_of_nothing_and_of_what_is_beyond_all_bounds():
    assert percentile(FAST_BUCKETS, NO_GAPS, 0.5) is None
    assert percentile(FAST_BUCKETS, (*NO_GAPS[:-1], 3), 0.5) == FAST_BUCKETS[-1]


def test_what_lies_between_two_readings():
    before = replace(NOTHING, requests=5, errors={"a": 1}, steps=10, sequences=20, running=3, kv=0.5)
    after = replace(before, requests=9, errors={"a": 1, "b": 2}, steps=2, sequences=3, running=1, kv=0.25)
    load = load_between(before, after, Use({"cats@1": 2}, {"7": 1}))
    assert (load.requests, load.errors, load.profiles, load.keys) == (4, {"b": 2}, {"cats@1": 2}, {"7": 1})
    assert (load.steps, load.sequences) == (0, 0)  # a model was unloaded, with its steps
    assert (load.running, load.kv) == (3, 0.5)


def test_the_process_counters_can_be_read():
    totals = read_totals()
    assert len(totals.first_tokens) == len(NO_WAITS)
    assert len(totals.gaps) == len(NO_GAPS)


def test_use_is_counted_until_it_is_taken_and_names_are_bounded():
    use = RecentUse()
    for number in range(MAX_USED + 50):
        use.note(f"p{number}@1", None)
    use.note("p0@1", 7)
    use.note("", None)
    taken = use.take()
    assert (taken.profiles["p0@1"], taken.profiles[""], taken.keys) == (2, 50, {"7": 1})
    assert len(taken.profiles) == MAX_USED + 1
    assert use.take() == Use()


class Counters:
    """Readings that a test sets, and a database that may be away."""

    def __init__(self) -> None:
        self.totals = NOTHING
        self.is_away = False
        self.sampler = LoadSampler(
            retention=timedelta(days=35), read=lambda: self.totals, take_use=Use, record=self.record
        )

    def record(self, **fields: object) -> None:
        if self.is_away:
            raise OperationalError("away")
        record_load(**fields)  # type: ignore[arg-type]

    def tick(self, at: datetime, requests: int) -> None:
        self.totals = replace(self.totals, requests=self.totals.requests + requests)
        self.sampler.tick(at, at.timestamp())


def kept(span_s: int) -> dict[datetime, int]:
    return dict(LoadSample.objects.filter(span_s=span_s).order_by("begins_at").values_list("begins_at", "requests"))


@pytest.mark.django_db(transaction=True)
def test_minutes_are_written_when_they_end_and_hours_grow():
    counters = Counters()
    for second in range(0, 180, 20):
        counters.tick(NOON + timedelta(seconds=second), 1)
    minute = timedelta(minutes=1)
    assert kept(MINUTE_S) == {NOON: 3, NOON + minute: 3}
    assert kept(HOUR_S) == {NOON: 7}  # with the tick that ended the second minute
    counters.sampler.write_rest(NOON + 3 * minute)
    assert kept(MINUTE_S) == {NOON: 3, NOON + minute: 3, NOON + 2 * minute: 3}
    assert kept(HOUR_S) == {NOON: 9}


@pytest.mark.django_db(transaction=True)
def test_minutes_wait_for_a_database_that_is_away():
    counters = Counters()
    counters.is_away = True
    for number in range(4):
        counters.tick(NOON + timedelta(minutes=number), 1)
    assert not LoadSample.objects.exists()
    counters.is_away = False
    counters.tick(NOON + timedelta(minutes=4), 1)
    assert list(kept(MINUTE_S).values()) == [1, 1, 1, 1]


def test_not_for_ever():
    counters = Counters()
    counters.is_away = True
    for number in range(MAX_PENDING + 50):
        counters.tick(NOON + timedelta(minutes=number), 1)
    assert len(counters.sampler.sums.minutes) == MAX_PENDING


def test_live_rates_are_those_of_the_last_seconds():
    counters = Counters()
    for number in range(60):
        counters.totals = replace(counters.totals, gaps=(counters.totals.gaps[0] + 100, *NO_GAPS[1:]), running=2)
        counters.sampler.sums.minutes.clear()
        counters.tick(NOON + timedelta(seconds=number), 3)
    live = counters.sampler.live()
    assert (live.requests_per_s, live.tokens_per_s, live.running) == (3.0, 100.0, 2)


@pytest.mark.django_db
def test_old_samples_are_forgotten():
    ages = {MINUTE_S: (timedelta(hours=1), timedelta(hours=26)), HOUR_S: (timedelta(days=34), timedelta(days=36))}
    minutes, hours = ({NOON - age: Load(requests=1) for age in ages[span]} for span in (MINUTE_S, HOUR_S))
    record_load(process=uuid.uuid4(), minutes=minutes, hours=hours)
    assert delete_old_load(now=NOON, retention=timedelta(days=35)) == 2
    assert list(kept(MINUTE_S)) == [NOON - timedelta(hours=1)]
    assert list(kept(HOUR_S)) == [NOON - timedelta(days=34)]


@pytest.mark.django_db
@pytest.mark.parametrize("name", list(SPANS))
def test_history_is_complete_evenly_spaced_and_one_query(name: str, django_assert_num_queries):
    span = SPANS[name]
    now = NOON + timedelta(minutes=7, seconds=31)
    begin = span.begin(now)
    inside = {begin: Load(requests=1), now.replace(second=0): Load(requests=10)}
    if span.sample_s == HOUR_S:
        inside = {begin: Load(requests=1), NOON: Load(requests=10)}
    outside = {begin - timedelta(seconds=span.sample_s): Load(requests=100)}
    both = {**inside, **outside}
    for _ in range(2):  # two processes
        minutes, hours = (both, {}) if span.sample_s == MINUTE_S else ({}, both)
        record_load(process=uuid.uuid4(), minutes=minutes, hours=hours)
    with django_assert_num_queries(1):
        points = read_history(span, now)
    assert len(points) == span.num_points
    assert {(b.at - a.at).total_seconds() for a, b in pairwise(points)} == {span.point_s}
    assert points[-1].at <= now < points[-1].at + timedelta(seconds=span.point_s)
    assert (points[0].load.requests, points[-1].load.requests) == (2, 20)
    assert total(points).requests == 22
