"""/v1/batches over the fake engine; the job runs in a thread of the test, as a worker would run it."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone
from openai.types import Batch

from core.runtime import runtime
from inference.client import BACKGROUND_PRIORITY, EngineStats, Event, QueueFullError
from jobs.execution import RunningJobs, run_job
from jobs.models import Job
from jobs.services import cancel_job
from jobs.webhooks.models import WebhookDelivery
from openai_api.endpoints.batch_job import BATCH_WINDOW
from openai_api.keys.limits import RATE_LIMITS, Limits
from openai_api.keys.quotas import Quotas, end_of_day
from openai_api.keys.record import KeyRecord
from openai_api.responses.models import StoredResponse
from storage.batch_lines import BatchLine
from storage.batch_results import BatchResults, Checkpoint, Result
from storage.models import Batch as BatchRow
from storage.models import StoredFile
from tests.database import in_thread
from tests.jobs.webhook_receiver import register_webhook
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import ANSWER, answering, record, silent
from tests.openai_api.test_decisions import scoring

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0
    return tmp_path


def line(custom_id: str, url: str = CHAT, method: str = "POST", **body: Any) -> dict[str, Any]:
    messages = {"messages": [{"role": "user", "content": custom_id}]} if url == CHAT else {}
    return {"custom_id": custom_id, "method": method, "url": url, "body": {"model": "tiny", **messages, **body}}


async def send(api: Api, *lines: Any, purpose: str = "batch", headers: Any = None) -> str:
    data = b"\n".join(each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines)
    form = {"file": SimpleUploadedFile("in.jsonl", data), "purpose": purpose}
    response = await api.client.post("/v1/files", form, headers=headers)
    assert response.status_code == 200, response.content
    file_id: str = response.json()["id"]
    return file_id


async def create(api: Api, file_id: str, endpoint: str = CHAT, headers: Any = None, **fields: Any) -> Batch:
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **fields}
    return strict(await api.post("/v1/batches", body, **(headers or {})))


async def get(api: Api, batch: Batch, headers: Any = None) -> Batch:
    return strict(await api.client.get(f"/v1/batches/{batch.id}", headers=headers))


def strict(response: Any) -> Batch:
    assert response.status_code == 200, response.content
    return Batch.model_validate(response.json(), strict=True)


async def run(batch: Batch, running: RunningJobs | None = None) -> None:
    row = await BatchRow.objects.aget(public_id=batch.id)
    assert row.job_id is not None
    await in_thread(run_job, row.job_id, running)


async def lines_of(api: Api, file_id: str | None, headers: Any = None) -> list[dict[str, Any]]:
    assert file_id is not None
    response: Any = await api.client.get(f"/v1/files/{file_id}/content", headers=headers)
    content = b"".join([part async for part in response.streaming_content])
    return [json.loads(each) for each in content.decode().splitlines()]


def check_error(response: Any, status: int, code: str, param: str | None) -> None:
    assert response.status_code == status, response.content[:500]
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error


def webhook_types() -> list[tuple[str, str]]:
    return list(WebhookDelivery.objects.order_by("pk").values_list("event_type", "data__id"))


async def test_the_end_of_a_batch_has_a_webhook(api: Api, django_user_model: Any):
    await in_thread(register_webhook, django_user_model, "batch.completed", "batch.failed", "batch.cancelled")
    done = await create(api, await send(api, line("a")))
    await run(done)
    bad = await create(api, await send(api, b"no json"))
    await run(bad)
    cancelled = await create(api, await send(api, line("b")))
    await api.post(f"/v1/batches/{cancelled.id}/cancel", {})
    assert await in_thread(webhook_types) == [
        ("batch.completed", done.id),
        ("batch.failed", bad.id),
        ("batch.cancelled", cancelled.id),
    ]


async def test_results_and_errors_come_as_files_in_order(api: Api):
    lines = [line(f"r{n}") for n in range(40)]
    lines[7]["body"]["temperature"] = 9
    lines[21]["body"]["model"] = "nobody"
    batch = await create(api, await send(api, *lines), metadata={"a": "b"})
    assert (batch.status, batch.metadata, batch.output_file_id) == ("validating", {"a": "b"}, None)
    assert batch.expires_at == batch.created_at + 86_400
    await run(batch)
    done = await get(api, batch)
    assert done.status == "completed"
    assert done.model == "tiny"
    counts = done.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (40, 38, 2)
    assert None not in (done.in_progress_at, done.finalizing_at, done.completed_at)
    good, bad = await lines_of(api, done.output_file_id), await lines_of(api, done.error_file_id)
    assert [each["custom_id"] for each in good] == [f"r{n}" for n in range(40) if n not in {7, 21}]
    assert [(each["custom_id"], each["response"]["status_code"]) for each in bad] == [("r7", 400), ("r21", 404)]
    assert all(each["error"] is None for each in good + bad)
    assert {each["response"]["body"]["choices"][0]["message"]["content"] for each in good} == {ANSWER}
    assert bad[1]["response"]["body"]["error"]["code"] == "model_not_found"
    assert done.usage is not None
    assert done.usage.output_tokens == 38 * len(ANSWER)
    assert done.usage.total_tokens == sum(each["response"]["body"]["usage"]["total_tokens"] for each in good)
    assert {request.priority for request in api.engine.requests} == {BACKGROUND_PRIORITY}
    logged = [entry for entry in api.log.entries if entry.endpoint == CHAT]
    assert len(logged) == 40
    assert {each["response"]["request_id"] for each in good + bad} == {entry.id for entry in logged}
    output = await StoredFile.objects.aget(public_id=done.output_file_id)
    assert output.purpose == "batch_output"
    assert output.expires_at is not None


@pytest.mark.parametrize(
    ("endpoint", "body"), [("/v1/completions", {"prompt": "x"}), ("/v1/embeddings", {"model": "vectors", "input": "x"})]
)
async def test_other_endpoints(api: Api, endpoint: str, body: dict[str, Any]):
    batch = await create(api, await send(api, line("a", endpoint, **body)), endpoint)
    await run(batch)
    done = await get(api, batch)
    assert (done.status, done.error_file_id) == ("completed", None)
    (result,) = await lines_of(api, done.output_file_id)
    assert result["response"]["status_code"] == 200
    assert done.usage is not None
    assert done.usage.input_tokens == result["response"]["body"]["usage"]["prompt_tokens"] > 0


BAD_LINES: list[tuple[Any, str, str | None]] = [
    (b"{", "invalid_json_line", None),
    (b"[]", "invalid_json_line", None),
    (b"[" * 9_000, "invalid_json_line", None),
    (b"\xff\xfe{}", "invalid_json_line", None),
    (b'{"custom_id": NaN}', "invalid_json_line", None),
    (b'{"custom_id": "\\ud800", "method": "POST"}', "invalid_custom_id", "custom_id"),
    (line(""), "invalid_custom_id", "custom_id"),
    (line("x" * 600), "invalid_custom_id", "custom_id"),
    ({**line("a"), "custom_id": 3}, "invalid_custom_id", "custom_id"),
    (line("a", method="GET"), "invalid_method", "method"),
    (line("a", "/v1/embeddings"), "invalid_url", "url"),
    ({**line("a"), "body": "x"}, "invalid_body", "body"),
    (line("a", model=None), "missing_required_parameter", "body.model"),
    (line("a", stream=True), "unsupported_parameter", "body.stream"),
    (line("first"), "duplicate_custom_id", "custom_id"),
    (b'{"custom_id": "' + b"x" * 20_000 + b'"}', "line_too_long", None),
]


@pytest.mark.parametrize(("bad", "code", "param"), BAD_LINES)
async def test_lines_that_are_no_requests_fail_the_batch_by_number(
    api: Api, settings: Any, bad: Any, code: str, param: str | None
):
    settings.MILLM_MAX_BODY_BYTES = 10_000
    settings.MILLM_MAX_FILE_BYTES = 10**6
    batch = await create(api, await send(api, line("first"), b"", bad, line("last")))
    await run(batch)
    done = await get(api, batch)
    assert done.status == "failed"
    assert done.failed_at is not None
    assert done.errors is not None
    assert done.errors.data is not None
    (error,) = done.errors.data
    assert (error.line, error.code, error.param) == (3, code, param)
    assert api.engine.requests == []
    assert (done.output_file_id, done.error_file_id) == (None, None)


async def test_an_empty_file_and_too_many_errors(api: Api):
    batch = await create(api, await send(api, b"\n\n"))
    await run(batch)
    failed = await get(api, batch)
    assert failed.errors is not None
    assert [(each.code, each.line) for each in failed.errors.data or []] == [("empty_file", None)]
    batch = await create(api, await send(api, *[b"{"] * 500))
    await run(batch)
    failed = await get(api, batch)
    assert failed.errors is not None
    assert len(failed.errors.data or []) == 50


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"endpoint": "/v1/images"}, 400, "invalid_value", "endpoint"),
        ({"completion_window": "0h"}, 400, "invalid_value", "completion_window"),
        ({"completion_window": "169h"}, 400, "invalid_value", "completion_window"),
        ({"completion_window": "1 day"}, 400, "invalid_value", "completion_window"),
        ({"input_file_id": "file-0"}, 404, "file_not_found", "input_file_id"),
        ({"input_file_id": "x" * 65}, 400, "invalid_value", "input_file_id"),
        ({"metadata": {"k": "v" * 513}}, 400, "invalid_value", "metadata.k"),
        ({"metadata": {str(n): "" for n in range(17)}}, 400, "invalid_value", "metadata"),
        ({"metadata": {"k": "\0"}}, 400, "invalid_value", "metadata.k"),
    ],
)
async def test_requests_that_are_refused(api: Api, change: dict[str, Any], status: int, code: str, param: str):
    file_id = await send(api, line("a"))
    body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **change}
    check_error(await api.post("/v1/batches", body), status, code, param)
    assert await Job.objects.acount() == 0


async def test_a_file_for_something_else_is_no_input(api: Api):
    file_id = await send(api, line("a"), purpose="user_data")
    body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    check_error(await api.post("/v1/batches", body), 400, "invalid_value", "input_file_id")


async def test_another_owner_s_batch_is_as_absent(api: Api, django_user_model: Any):
    owner = await django_user_model.objects.acreate(username="mine")
    mine = api.keys.add("a", owner_id=owner.pk)
    batch = await create(api, await send(api, line("a"), headers=mine), headers=mine)
    assert (await get(api, batch, mine)).id == batch.id
    check_error(await api.client.get(f"/v1/batches/{batch.id}"), 404, "batch_not_found", "batch_id")
    check_error(await api.client.post(f"/v1/batches/{batch.id}/cancel"), 404, "batch_not_found", "batch_id")
    assert (await api.client.get("/v1/batches")).json()["data"] == []
    listed = (await api.client.get("/v1/batches", headers=mine)).json()
    assert [each["id"] for each in listed["data"]] == [batch.id]
    await run(batch)
    done = await get(api, batch, mine)
    assert len(await lines_of(api, done.output_file_id, mine)) == 1
    check_error(await api.client.get(f"/v1/files/{done.output_file_id}"), 404, "file_not_found", "file_id")


async def test_the_key_s_rights_and_its_end_hold_for_the_batch(api: Api):
    mine = api.keys.add("a", allowed_models=frozenset({"vectors"}))
    batch = await create(api, await send(api, line("a"), headers=mine), headers=mine)
    await run(batch)
    done = await get(api, batch, mine)
    (refused,) = await lines_of(api, done.error_file_id, mine)
    assert refused["response"]["body"]["error"]["code"] == "model_not_allowed"
    batch = await create(api, await send(api, line("a"), headers=mine), headers=mine)
    kept = dict(api.keys.records)
    api.keys.records.clear()
    await run(batch)
    api.keys.records.update(kept)
    done = await get(api, batch, mine)
    assert (done.status, [each.code for each in (done.errors and done.errors.data) or []]) == (
        "failed",
        ["invalid_api_key"],
    )


async def test_a_busy_server_is_asked_again(api: Api):
    refusals = iter([QueueFullError("full", retry_after_s=0.1), None, QueueFullError("full", retry_after_s=0.1)])
    script = api.engine.script

    def sometimes(request: Any) -> Iterable[Event]:
        failure = next(refusals, None)
        if failure is not None:
            raise failure
        return script(request)

    api.engine.script = sometimes
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(4)]))
    await run(batch)
    done = await get(api, batch)
    assert done.request_counts is not None
    assert (done.status, done.request_counts.completed) == ("completed", 4)
    assert [entry.status for entry in api.log.entries if entry.endpoint == CHAT].count(503) == 2


async def test_nothing_is_sent_while_others_wait(api: Api):
    waiting = threading.Event()
    asked = threading.Semaphore(0)

    class Busy(type(api.engine)):  # type: ignore[misc]
        def stats(self) -> EngineStats:
            asked.release()
            return EngineStats("running", waiting=0 if waiting.is_set() else 1)

    api.engine.__class__ = Busy
    batch = await create(api, await send(api, line("a")))
    task = asyncio.create_task(run(batch))
    for _ in range(3):
        await asyncio.to_thread(asked.acquire, timeout=20)
    assert api.engine.requests == []
    waiting.set()
    await task
    assert len(api.engine.requests) == 1


async def test_at_most_half_of_the_places_are_taken(api: Api, settings: Any):
    settings.MILLM_MAX_BATCH_SIZE = 4
    loops: list[asyncio.AbstractEventLoop] = []  # the job has one of its own

    def wait_for_the_test(request: Any) -> Iterable[Event]:
        loops.append(asyncio.get_running_loop())
        return ()

    api.engine.script = wait_for_the_test
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(10)]))
    task = asyncio.create_task(run(batch))
    for number in range(10):
        await until(partial(has_streams, api, min(10, number + 2)))
        assert len([stream for stream in api.engine.streams if not stream.num_closes]) <= 2
        events = answering("x")(api.engine.requests[number])
        loops[number].call_soon_threadsafe(api.engine.streams[number].push, *events)
    await task
    assert (await get(api, batch)).status == "completed"


def has_streams(api: Api, count: int) -> bool:
    return len(api.engine.streams) >= count


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another thread's doing
            await asyncio.sleep(0.01)


async def test_a_cancelled_batch_keeps_its_results(api: Api):
    def stuck_at_the_last(request: Any) -> Iterable[Event]:
        return silent(request) if len(api.engine.requests) > 32 else answering("x")(request)

    api.engine.script = stuck_at_the_last
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(40)]))
    task = asyncio.create_task(run(batch))
    await until(lambda: len(api.engine.requests) > 32)
    cancelling = strict(await api.client.post(f"/v1/batches/{batch.id}/cancel"))
    assert cancelling.status == "cancelling"
    await task
    done = await get(api, batch)
    assert done.status == "cancelled"
    assert None not in (done.cancelling_at, done.cancelled_at)
    assert len(await lines_of(api, done.output_file_id)) == 32
    assert all(stream.num_closes for stream in api.engine.streams)
    check_error(await api.client.post(f"/v1/batches/{batch.id}/cancel"), 409, "batch_ended", None)
    assert (await Job.objects.aget()).state == Job.State.CANCELLED


async def test_a_batch_that_never_ran_is_cancelled_at_once(api: Api):
    batch = await create(api, await send(api, line("a")))
    assert strict(await api.client.post(f"/v1/batches/{batch.id}/cancel")).status == "cancelled"
    await run(batch)
    assert api.engine.requests == []


async def test_a_job_cancelled_by_an_administrator_ends_its_batch(api: Api):
    batch = await create(api, await send(api, line("a")))
    await in_thread(lambda: cancel_job(job=Job.objects.get()))
    assert (await get(api, batch)).status == "cancelled"


async def test_a_run_continues_with_the_lines_that_had_not_ended(api: Api, home: Path):
    """The process stops; lines that had ended since the last checkpoint don't run again, half a result is cut off."""
    running = RunningJobs()

    def stop_after_36(request: Any) -> Iterable[Event]:
        if len(api.engine.requests) <= 36:
            return answering("x")(request)
        running.stopping.set()
        return silent(request)

    api.engine.script = stop_after_36
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(50)]))
    await run(batch, running)
    row = await Job.objects.aget()
    assert (row.state, row.checkpoint["completed"]) == (Job.State.QUEUED, 0)  # all of it took less than SAVE_S
    assert (await get(api, batch)).status == "in_progress"
    results = BatchResults(batch.id, row.checkpoint["run"])
    with results.output.open("ab") as file:
        file.write(b'{"custom_id": "half a li')
    api.engine.script = answering("y")
    await run(batch)
    done = await get(api, batch)
    results_lines = await lines_of(api, done.output_file_id)
    assert [each["custom_id"] for each in results_lines] == [f"r{n}" for n in range(50)]
    texts = [each["response"]["body"]["choices"][0]["message"]["content"] for each in results_lines]
    assert texts == ["x"] * 36 + ["y"] * 14
    assert done.request_counts is not None
    assert done.request_counts.completed == 50
    assert done.usage is not None
    assert done.usage.output_tokens == 50
    assert not results.folder.parent.exists()


async def test_a_run_that_was_replaced_adds_nothing(api: Api):
    """It hung, another run ended the batch, and then it goes on."""
    hangs, goes_on = threading.Event(), threading.Event()

    async def hang_from_the_33rd_on() -> None:
        if len(api.engine.requests) > 32 and not goes_on.is_set():
            hangs.set()
            async with asyncio.timeout(60):
                while not goes_on.is_set():  # noqa: ASYNC110 - a thread for each of up to 8 lines would be all of them
                    await asyncio.sleep(0.01)

    api.engine.script, api.engine.waits = answering("first"), hang_from_the_33rd_on
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(40)]))
    hung = asyncio.create_task(run(batch))
    assert await asyncio.to_thread(hangs.wait, 60)
    row = await Job.objects.aget()
    await Job.objects.aupdate(state=Job.State.QUEUED, claim=None, heartbeat_at=None)
    api.engine.script, api.engine.waits = answering("second"), None
    await asyncio.wait_for(run(batch), 30)
    goes_on.set()
    await hung
    done = await get(api, batch)
    found = await lines_of(api, done.output_file_id)
    assert (done.status, [each["custom_id"] for each in found]) == ("completed", [f"r{n}" for n in range(40)])
    texts = [each["response"]["body"]["choices"][0]["message"]["content"] for each in found]
    num_first = texts.count("first")
    assert texts == ["first"] * num_first + ["second"] * (40 - num_first)
    assert 24 <= num_first <= 32  # at most 8 lines were in progress
    assert done.request_counts is not None
    assert done.request_counts.completed == 40
    assert (await Job.objects.aget()).claim is None
    assert row.claim is not None


async def test_a_used_up_quota_postpones_the_batch_to_the_next_day(api: Api):
    """Lines are asked once, what was answered is kept, and no worker waits."""
    now = datetime(2026, 11, 22, 20, tzinfo=UTC)
    runtime.install(RATE_LIMITS, Limits(api.clock, Quotas(lambda: now)))
    headers = api.keys.add("sk-a", requests_per_day=8)
    file_id = await send(api, *[line(f"r{n}") for n in range(10)], headers=headers)  # of the day's 8 requests 1
    batch = await create(api, file_id, headers=headers)  # and 1
    await run(batch)
    row = await Job.objects.aget()
    assert (row.state, row.claim, row.crashes) == (Job.State.QUEUED, None, 0)
    assert row.not_before is not None
    assert timezone.now() < row.not_before <= end_of_day(timezone.now())
    assert "quota" in row.message
    assert len(api.engine.requests) == 6
    assert (await BatchRow.objects.aget()).completed == 6
    await run(batch)  # not yet
    assert len(api.engine.requests) == 6
    now += timedelta(days=1)
    await Job.objects.aupdate(not_before=timezone.now())
    await run(batch)
    done = await get(api, batch, headers)
    assert done.status == "completed"
    found = await lines_of(api, done.output_file_id, headers)
    assert sorted(each["custom_id"] for each in found) == sorted(f"r{n}" for n in range(10))
    assert len(api.engine.requests) == 10


async def test_a_line_that_needs_more_than_a_day_s_quota_fails_and_the_others_go_on(api: Api):
    runtime.install(RATE_LIMITS, Limits(api.clock, Quotas(lambda: datetime(2026, 11, 22, 20, tzinfo=UTC))))
    headers = api.keys.add("sk-a", tokens_per_day=1_000)
    lines = [line("fits"), line("never fits", max_tokens=2_000), line("fits too")]
    api.registry.context = 4_000
    batch = await create(api, await send(api, *lines, headers=headers), headers=headers)
    await run(batch)
    done = await get(api, batch, headers)
    assert done.status == "completed"
    found = await lines_of(api, done.output_file_id, headers)
    assert sorted(each["custom_id"] for each in found) == ["fits", "fits too"]
    (failed,) = await lines_of(api, done.error_file_id, headers)
    error = failed["response"]["body"]["error"]
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("never fits", 429)
    assert error["code"] == "insufficient_quota"
    assert "the daily quota of this API key is 1000" in error["message"]


async def test_lines_that_are_done_ahead_are_not_asked_again(home: Path):
    results = BatchResults("batch_a", "one")
    done = results.resume(Checkpoint())

    def result(number: int) -> Result:
        return Result(number, {"n": number}, is_error=False)

    def expect(results: BatchResults, *numbers: int) -> None:
        results.expect([BatchLine(number, "", b"", 10 * number) for number in numbers])

    expect(results, 1, 2, 3, 5)
    done = results.append(done, [result(5), result(3), result(1)])
    assert (done.number, done.offset, done.ahead) == (1, 10, (3, 5))
    later = BatchResults("batch_a", "two")
    done = later.resume(Checkpoint.read(json.loads(json.dumps(done.as_json()))))
    expect(later, 2, 6)
    done = later.append(done, [result(6), result(2)])
    assert (done.number, done.ahead, done.completed) == (6, (), 5)
    later.drop_others()
    with later.writing(later.output, done.output_bytes) as writer:
        assert writer is not None
        assert [json.loads(each)["n"] for each in writer.flushed().read_text().splitlines()] == [1, 2, 3, 5, 6]
    assert not results.folder.exists()


@pytest.mark.parametrize("torn", [b'{"line": 4, "usa', b"{}\t{}\n", b"\0\0\t\0\n", b'{"id": "of an older version"}\n'])
def test_results_written_after_the_checkpoint_are_taken_over(home: Path, torn: bytes):
    """The process died between two checkpoints, perhaps while it wrote a line."""
    results = BatchResults("batch_a", "one")
    results.expect([BatchLine(number, "", b"", 10 * number) for number in range(1, 6)])
    saved = results.append(
        results.resume(Checkpoint()), [Result(1, {"n": 1}, is_error=False, usage={"input_tokens": 7})]
    )
    done = results.append(saved, [Result(3, {"n": 3}, is_error=False, usage={"input_tokens": 5})])
    done = results.append(done, [Result(2, {"n": 2}, is_error=True)])
    assert (done.number, done.completed, done.failed) == (3, 2, 1)
    with results.output.open("ab") as file:
        file.write(torn)
    later = BatchResults("batch_a", "two")
    done = later.resume(saved)
    assert (done.number, done.ahead, done.completed, done.failed) == (1, (2, 3), 2, 1)
    assert done.usage["input_tokens"] == 12
    later.expect([BatchLine(4, "", b"", 40)])
    done = later.append(done, [Result(4, {"n": 4}, is_error=False)])
    assert (done.number, done.offset, done.ahead) == (4, 40, ())
    with later.writing(later.output, done.output_bytes) as writer:
        assert writer is not None
        assert [json.loads(each)["n"] for each in writer.flushed().read_text().splitlines()] == [1, 3, 4]


async def test_results_that_are_lost_are_made_again(api: Api):
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(3)]))
    await Job.objects.aupdate(checkpoint={"number": 2, "offset": 500, "output_bytes": 4_000, "completed": 2})
    await run(batch)
    assert len(await lines_of(api, (await get(api, batch)).output_file_id)) == 3


async def test_a_closed_window_expires_the_rest(api: Api):
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(40)]))
    await BatchRow.objects.aupdate(expires_at=timezone.now() - timedelta(seconds=1))
    await run(batch)
    done = await get(api, batch)
    assert (done.status, done.output_file_id) == ("expired", None)
    rest = await lines_of(api, done.error_file_id)
    assert [each["custom_id"] for each in rest] == [f"r{n}" for n in range(40)]
    assert {each["error"]["code"] for each in rest} == {"batch_expired"}
    assert api.engine.requests == []


async def test_a_deleted_input_ends_the_batch_clearly(api: Api):
    file_id = await send(api, line("a"))
    batch = await create(api, file_id)
    await api.client.delete(f"/v1/files/{file_id}")
    await run(batch)
    done = await get(api, batch)
    assert (done.status, [each.code for each in (done.errors and done.errors.data) or []]) == (
        "failed",
        ["file_not_found"],
    )


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_full_disk_leaves_the_batch_to_another_worker(api: Api, settings: Any, is_begun: bool):
    """Nothing is generated that could not be kept, and what was kept stays."""
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(40)]))
    if is_begun:
        settings.MILLM_MAX_BATCH_SIZE = 2  # one line after the other
        fill = partial(setattr, settings, "MILLM_MIN_FREE_BYTES", 2**62)
        script = api.engine.script
        api.engine.script = lambda *arguments: (fill() if len(api.engine.requests) == 34 else None, script(*arguments))[
            1
        ]
    else:
        settings.MILLM_MIN_FREE_BYTES = 2**62
    await run(batch)
    row = await Job.objects.aget()
    assert (row.state, row.claim, row.error) == (Job.State.QUEUED, None, "")
    assert row.not_before is not None
    assert timezone.now() < row.not_before <= timezone.now() + timedelta(minutes=2)
    assert "disk" in row.message
    assert (await get(api, batch)).status in {"validating", "in_progress"}
    assert bool(api.engine.requests) == is_begun

    settings.MILLM_MIN_FREE_BYTES = 0
    await Job.objects.aupdate(not_before=timezone.now())
    if is_begun:
        api.engine.script = script
    await run(batch)
    done = await get(api, batch)
    assert done.status == "completed"
    found = await lines_of(api, done.output_file_id)
    assert [each["custom_id"] for each in found] == [f"r{n}" for n in range(40)]


async def test_a_disk_that_is_still_full_when_the_batch_is_over_fails_it(api: Api, settings: Any):
    batch = await create(api, await send(api, line("a")))
    await BatchRow.objects.aupdate(expires_at=timezone.now() - timedelta(seconds=1))
    settings.MILLM_MIN_FREE_BYTES = 2**62
    await run(batch)
    done = await get(api, batch)
    assert (done.status, [each.code for each in (done.errors and done.errors.data) or []]) == (
        "failed",
        ["insufficient_storage"],
    )


async def test_a_window_that_closes_within_a_line_expires_the_rest(api: Api):
    """The lines that run then are cancelled, and those that ended are kept."""
    script = api.engine.script
    api.engine.script = lambda request: script(request) if len(api.engine.requests) <= 3 else silent(request)
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(20)]))
    await BatchRow.objects.aupdate(expires_at=timezone.now() + timedelta(seconds=3))
    await run(batch)
    done = await get(api, batch)
    assert done.status == "expired"
    assert [each["custom_id"] for each in await lines_of(api, done.output_file_id)] == ["r0", "r1", "r2"]
    rest = await lines_of(api, done.error_file_id)
    assert [each["custom_id"] for each in rest] == [f"r{n}" for n in range(3, 20)]
    assert {each["error"]["code"] for each in rest} == {"batch_expired"}
    assert all(stream.num_closes for stream in api.engine.streams)
    counts = done.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (20, 3, 17)


async def test_a_window_that_closes_while_others_wait_expires_the_batch(api: Api):
    class Busy(type(api.engine)):  # type: ignore[misc]
        def stats(self) -> EngineStats:
            return EngineStats("running", waiting=1)

    api.engine.__class__ = Busy
    batch = await create(api, await send(api, line("a")))
    await BatchRow.objects.aupdate(expires_at=timezone.now() + timedelta(seconds=2))
    await run(batch)
    assert (await get(api, batch)).status == "expired"
    assert api.engine.requests == []


async def test_a_slow_line_holds_up_no_other(api: Api):
    """Results come in any order; the files have them in the order of the input."""
    loops: list[asyncio.AbstractEventLoop] = []
    script = api.engine.script

    def slow_at_first(request: Any) -> Iterable[Event]:
        loops.append(asyncio.get_running_loop())
        return () if len(loops) == 1 else script(request)

    api.engine.script = slow_at_first
    batch = await create(api, await send(api, *[line(f"r{n}") for n in range(60)]))
    task = asyncio.create_task(run(batch))
    await until(partial(has_streams, api, 60))
    loops[0].call_soon_threadsafe(api.engine.streams[0].push, *answering("late")(api.engine.requests[0]))
    await task
    found = await lines_of(api, (await get(api, batch)).output_file_id)
    assert [each["custom_id"] for each in found] == [f"r{n}" for n in range(60)]


async def test_a_later_batch_gets_the_places_of_lines_that_end(api: Api, settings: Any):
    """A key's two batches fill the window of six lines; another key's batch waits for four lines at most."""
    settings.MILLM_MAX_BATCH_SIZE = 12
    big, small = api.keys.add("big"), api.keys.add("small")
    loops: list[asyncio.AbstractEventLoop] = []

    def stuck_unless_small(request: Any) -> Iterable[Event]:
        loops.append(asyncio.get_running_loop())
        return answering("x")(request) if request.sampling.max_tokens == 7 else ()

    api.engine.script = stuck_unless_small
    batches = [
        await create(api, await send(api, *[line(f"r{n}") for n in range(100)], headers=big), headers=big)
        for _ in range(2)
    ]
    lines = [line(f"r{n}", max_tokens=7) for n in range(5)]
    late = await create(api, await send(api, *lines, headers=small), headers=small)
    assert [job.account async for job in Job.objects.order_by("created_at")] == ["key 1", "key 1", "key 2"]
    tasks = [asyncio.create_task(run(batch)) for batch in batches]
    await until(lambda: has_streams(api, 6) and len(runtime.get(BATCH_WINDOW)) == 2)
    last = asyncio.create_task(run(late))
    await until(lambda: len(runtime.get(BATCH_WINDOW)) == 3)
    for number in range(4):
        loops[number].call_soon_threadsafe(
            api.engine.streams[number].push, *answering("x")(api.engine.requests[number])
        )
    await last
    assert (await get(api, late, small)).status == "completed"
    for batch in batches:
        await api.client.post(f"/v1/batches/{batch.id}/cancel", headers=big)
    await asyncio.gather(*tasks)


async def test_a_lost_job_fails_its_batch(api: Api):
    batch = await create(api, await send(api, line("a")))
    await Job.objects.all().adelete()
    assert (await get(api, batch)).status == "failed"
    assert uuid.UUID(str((await BatchRow.objects.aget()).job_id))


def test_keys_carry_their_owner(django_user_model: Any):
    from openai_api.models import ApiKey

    owner = django_user_model.objects.create(username="o")
    record = ApiKey.objects.create(name="k", prefix="p", digest="d", owner=owner).record()
    assert isinstance(record, KeyRecord)
    assert record.owner_id == owner.pk


def body_of(url: str) -> dict[str, Any]:
    question = {"type": "predicate", "instructions": "Yes?"}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"model": "tiny", "input": "hi", "metadata": {"a": "b"}},
        "/v1/moderations": {"input": "hi"},
        "/v1/decisions": {"model": "tiny", "input": "hi", "questions": [question]},
        "/v1/rerank": {"model": "judge", "query": "hi", "documents": ["a", "b"]},
        "/v1/score": {"model": "judge", "text_1": "hi", "text_2": ["a", "b"]},
    }
    return bodies[url]


@pytest.mark.parametrize("url", ["/v1/responses", "/v1/moderations", "/v1/decisions", "/v1/rerank", "/v1/score"])
async def test_other_endpoints_are_answered_in_the_background(api: Api, url: str):
    api.registry.context = 1000
    api.registry.add(record("judge", kind="classification"))
    api.registry.labels = ("bad", "good", "a", "b") if url == "/v1/moderations" else ("relevant",)
    api.engine.script = scoring({}) if url == "/v1/decisions" else answering(ANSWER)
    lines = [{"custom_id": f"r{n}", "method": "POST", "url": url, "body": body_of(url)} for n in range(3)]
    batch = await create(api, await send(api, *lines), endpoint=url)
    await run(batch)
    done = await get(api, batch)
    assert done.status == "completed", done
    assert done.request_counts is not None
    assert done.request_counts.completed == 3, await lines_of(api, done.error_file_id)
    answers = [each["response"]["body"] for each in await lines_of(api, done.output_file_id)]
    assert answers[0].keys() == answers[2].keys()
    asked: list[Any] = [*api.engine.requests, *api.engine.embedded]
    assert {request.priority for request in asked} == {BACKGROUND_PRIORITY}
    assert done.usage is not None
    if "usage" in answers[0]:
        assert done.usage.total_tokens == sum(each["usage"]["total_tokens"] for each in answers)
    if url == "/v1/responses":
        row = await StoredResponse.objects.aget(pk=answers[1]["id"])
        assert row.status == "completed"
        assert done.usage.output_tokens == 3 * len(ANSWER)


async def test_a_background_response_cannot_be_in_a_batch(api: Api):
    body = {"model": "tiny", "input": "hi", "background": True}
    lines = [{"custom_id": "r", "method": "POST", "url": "/v1/responses", "body": body}]
    batch = await create(api, await send(api, *lines), endpoint="/v1/responses")
    await run(batch)
    done = await get(api, batch)
    assert done.status == "failed"
    assert done.errors is not None
    assert done.errors.data is not None
    assert [(error.line, error.code, error.param) for error in done.errors.data] == [
        (1, "unsupported_parameter", "body.background")
    ]
