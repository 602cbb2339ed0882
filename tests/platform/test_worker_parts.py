"""What web workers share, without processes: limits over a socket pair, requests in progress, metrics."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from core.errors import MillmError
from core.runtime import runtime
from inference.engine.errors import EngineDownError
from inference.metrics import INTER_TOKEN_LATENCY, PROMPT_TOKENS
from inference.web_worker.link import Call, Link, Message
from millm_site.workers.limits import KeyLedger, WorkerLimits
from millm_site.workers.metrics import AllProcesses, MetricsSource, ProcessFamily, add_increases
from openai_api.http.in_flight import Board, InFlight
from openai_api.keys.limits import RATE_LIMITS, Limits
from openai_api.keys.record import KeyRecord
from tests.inference.rows import until
from tests.openai_api.conftest import Clock


class Workers:
    """Two workers' limits, and the main process's."""

    def __init__(self) -> None:
        self.limits = Limits(Clock())
        runtime.install(RATE_LIMITS, self.limits)
        self.ledgers: list[KeyLedger] = []
        self.links: list[Link] = []
        self.clients = [self._client() for _ in range(2)]
        self.asked = 0

    def _client(self) -> WorkerLimits:
        ours, theirs = (Link(end) for end in socket.socketpair())
        ledger = KeyLedger(ours)

        def handle(message: Message) -> None:
            assert isinstance(message, Call)
            self.asked += 1
            assert ledger.handle(message)

        threading.Thread(target=ours.run, args=(handle,), daemon=True).start()
        threading.Thread(target=theirs.run, args=(handle,), daemon=True).start()
        self.ledgers.append(ledger)
        self.links += [ours, theirs]
        return WorkerLimits(theirs)


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    runtime.remove(RATE_LIMITS)
    for link in workers.links:
        link.close()


def key(**limits: int) -> KeyRecord:
    return KeyRecord(1, "k", "d", **limits)  # type: ignore[arg-type]


class TestLimits:
    async def test_requests_of_both_count_and_refusals_are_those_of_one_process(self, workers: Workers) -> None:
        one, other = workers.clients
        limited = key(requests_per_minute=2)
        await one.aadmit(limited)
        await other.aadmit(limited)
        with pytest.raises(MillmError) as caught:
            await one.aadmit(limited)
        with pytest.raises(MillmError) as expected:
            workers.limits.admit(limited)
        assert vars(caught.value) == vars(expected.value)
        assert one.headers(limited) == workers.limits.headers(limited)
        assert one.headers(limited)["x-ratelimit-remaining-requests"] == "0"
        assert await asyncio.to_thread(other.current_headers, limited) == workers.limits.headers(limited)

    async def test_what_was_reserved_and_not_used_is_given_back(self, workers: Workers) -> None:
        one, other = workers.clients
        limited = key(tokens_per_minute=100, tokens_per_day=1_000)
        lease = await one.aadmit(limited)
        await lease.areserve_tokens(80)
        second = await other.aadmit(limited)
        with pytest.raises(MillmError, match="tokens per minute"):
            await second.areserve_tokens(30)
        lease.close(10)
        lease.close(10)
        third = await one.aadmit(limited)
        await third.areserve_tokens(90)
        assert one.headers(limited)["x-ratelimit-remaining-tokens"] == "0"

    async def test_media_of_a_day(self, workers: Workers) -> None:
        limited = KeyRecord(1, "k", "d", media_per_day={"images": 3})
        one, other = [await client.aadmit(limited) for client in workers.clients]
        await one.areserve_media("images", 2)
        with pytest.raises(MillmError, match="1 of 3 images are left"):
            await other.areserve_media("images", 2)
        one.close(0, {"images": 1})
        await other.areserve_media("images", 2)

    async def test_the_end_of_a_request_through_another_worker_may_be_late(self, workers: Workers) -> None:
        one, other = workers.clients[0], WorkerLimits(workers.links[3], settle_s=2)
        limited = key(max_concurrent_requests=1)
        first = await one.aadmit(limited)
        second = asyncio.create_task(other.aadmit(limited))
        await until(lambda: workers.asked >= 2)
        first.close(0)
        (await second).close(0)

    async def test_requests_of_a_worker_that_ends_count_no_more(self, workers: Workers) -> None:
        one, other = workers.clients
        limited = key(max_concurrent_requests=1)
        await one.aadmit(limited)
        with pytest.raises(MillmError, match="concurrent"):
            await other.aadmit(limited)
        workers.ledgers[0].close()
        await other.aadmit(limited)

    async def test_an_admission_that_nobody_waits_for_any_more_is_released(self, workers: Workers) -> None:
        one, other = workers.clients
        limited = key(max_concurrent_requests=1)
        admission = asyncio.create_task(one.aadmit(limited))
        await asyncio.sleep(0)
        admission.cancel()
        with pytest.raises(asyncio.CancelledError):
            await admission
        for _ in range(2):  # the second answer shows that the release before it was handled
            with pytest.raises(MillmError, match="0 requests"):
                await one.aadmit(key(requests_per_minute=0))
        (await other.aadmit(limited)).close(0)

    async def test_keys_without_limits_ask_nobody(self, workers: Workers) -> None:
        lease = await workers.clients[0].aadmit(key())
        await lease.areserve_tokens(10**9)
        await lease.areserve_media("images", 10**9)
        lease.close(1)
        assert (workers.asked, workers.clients[0].headers(key())) == (0, {})

    async def test_without_a_main_process_limited_keys_are_refused(self, workers: Workers) -> None:
        for link in workers.links:
            link.close()
        with pytest.raises(EngineDownError):
            async with asyncio.timeout(60):
                await workers.clients[0].aadmit(key(requests_per_minute=1))


def test_requests_in_progress_are_counted_together() -> None:
    board = Board.create(2)
    one, other = InFlight(), InFlight()
    one.enter(3)
    one.share(board, 0)
    other.share(Board(board.descriptor), 1)
    other.enter(3)
    other.enter(3)
    assert one.count == other.count == 3
    with pytest.raises(MillmError, match="limit of 3 concurrent requests"):
        one.enter(3)
    board.write(1, 0)  # the other process ended
    one.enter(3)
    one.leave()
    assert one.count == 1


class TestMetrics:
    def test_increases_are_added_once(self) -> None:
        source = MetricsSource()
        source.take()
        assert source.take() == {}
        PROMPT_TOKENS.labels("of-a-worker").inc(5)
        for value in (0.0005, 0.3, 99.0):
            INTER_TOKEN_LATENCY.labels("of-a-worker").observe(value)
        before = samples()
        increases = source.take()
        assert source.take() == {}
        add_increases(increases)
        after = samples()
        assert after == {name: 2 * value for name, value in before.items()}
        assert after["millm_prompt_tokens_total"] == 10
        assert after["millm_inter_token_latency_seconds_count"] == 6

    def test_metrics_about_a_process_have_its_name(self) -> None:
        family = ProcessFamily("process_x", "About it.", "gauge", (("process_x", {"a": "b"}, 1.0),))
        found = list(AllProcesses({"main": (family,), "1": (family,)}).collect())
        about = [metric for metric in found if metric.name == "process_x"]
        assert [sample.labels for sample in about[0].samples] == [
            {"worker": "main", "a": "b"},
            {"worker": "1", "a": "b"},
        ]
        assert len(about) == 1
        assert not [metric for metric in found if metric.name == "process_resident_memory_bytes"], "without a name"


def samples() -> dict[str, float]:
    """The samples of the metrics of the test, by name and bound."""
    return {
        sample.name + sample.labels.get("le", ""): sample.value
        for metric in (PROMPT_TOKENS, INTER_TOKEN_LATENCY)
        for family in metric.collect()
        for sample in family.samples
        if sample.labels["model"] == "of-a-worker"
    }
