"""The asynchronous client: it has the methods of the other one, and gets the same from a live server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from millm import AnswerStream, AsyncAnswerStream, AsyncMillm, Millm, Progress
from millm.features import AsyncFeatures, FeatureOperations, Features
from millm.operations import Operations
from millm.steps import Pause, Steps, Together, api_get, get
from tests.conftest import LiveSite
from tests.python_client.test_client import PAIRS, RAIN, STORY, TEXTS
from tests.python_client.test_management import NO_CONTROLS, SHORT, send, write_small_sae

TWINS = [(Millm, AsyncMillm), (Features, AsyncFeatures), (AnswerStream, AsyncAnswerStream)]


@pytest.fixture
async def a(site: LiveSite, key: str) -> AsyncIterator[AsyncMillm]:
    async with AsyncMillm(site.url, key, "demo", max_retries=0) as client:
        yield client


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def signature(function: Any) -> str:
    return str(inspect.signature(function)).replace("Async", "")


class TestTwins:
    @pytest.mark.parametrize(("kind", "twin"), TWINS)
    def test_methods_and_signatures_are_the_same(self, kind: type, twin: type) -> None:
        ours, theirs = public(kind), public(twin)
        assert ours.keys() == theirs.keys()
        assert signature(kind) == signature(twin)
        for name, method in ours.items():
            assert isinstance(method, property) == isinstance(theirs[name], property), name
            if not isinstance(method, property):
                assert signature(method) == signature(theirs[name]), name
                assert not inspect.iscoroutinefunction(method), name
                assert inspect.iscoroutinefunction(theirs[name]), name
                assert method.__doc__, name
                assert theirs[name].__doc__, name

    @pytest.mark.parametrize(("kind", "operations"), [(Millm, Operations), (Features, FeatureOperations)])
    def test_every_operation_is_a_method(self, kind: type, operations: type) -> None:
        assert public(operations).keys() - {"model_name", "chat_chunks"} <= public(kind).keys()

    def test_a_signature_names_the_result_and_not_the_steps(self) -> None:
        assert inspect.signature(Millm.tokens).return_annotation == "list[str]"
        assert inspect.signature(AsyncMillm.tokens).return_annotation == "list[str]"


class TestAnswers:
    async def test_chats_and_streams(self, m: Millm, a: AsyncMillm) -> None:
        options: dict[str, Any] = {"profile": "gloomy", "seed": 3, "max_tokens": 16}
        expected = m.chat(STORY, **options)
        whole = await a.chat(STORY, **options)
        assert (whole.text, whole.receipt) == (expected.text, expected.receipt)
        async with await a.chat(STORY, stream=True, **options) as stream:
            pieces = [piece async for piece in stream]
        assert len(pieces) > 1
        assert "".join(pieces) == stream.text == expected.text
        assert (stream.receipt, stream.finish_reason) == (expected.receipt, expected.finish_reason)

    async def test_many_answers_come_in_the_order_of_their_prompts(self, m: Millm, a: AsyncMillm) -> None:
        prompts = [f"Tell me a story about a {animal}." for animal in ("fox", "bear", "cat")]
        options: dict[str, Any] = {"profile": None, "seed": [1, 2, 3], "max_tokens": 12, "at_once": 2}
        found = await a.chat_many(prompts, **options)
        assert [one.text for one in found] == [one.text for one in m.chat_many(prompts, **options)]

    async def test_errors_are_those_of_openai(self, a: AsyncMillm) -> None:
        with pytest.raises(openai.NotFoundError, match="nothing-like-it"):
            await a.chat(STORY, profile="nothing-like-it")
        with pytest.raises(openai.NotFoundError, match="nothing-like-it"):
            await a.chat_many([STORY] * 3, profile="nothing-like-it")
        with pytest.raises(ValueError, match="`profile` and `edits` cannot be combined"):
            await a.chat(STORY, profile="sea", edits=[{"index": 1}])
        async with AsyncMillm("http://127.0.0.1:9", model="demo", max_retries=0) as alone:
            with pytest.raises(openai.APIConnectionError):
                await alone.chat(STORY)

    async def test_the_default_model_is_found(self, site: LiveSite) -> None:
        async with AsyncMillm(f"{site.url}/v1") as client:
            assert (await client.model, await client.num_layers) == ("demo", 5)


class TestInside:
    async def test_activations_and_residuals(self, m: Millm, a: AsyncMillm) -> None:
        found, expected = await a.activations(TEXTS, features="all"), m.activations(TEXTS, features="all")
        assert found.features.tolist() == expected.features.tolist()
        assert np.allclose(found[1].values, expected[1].values, atol=1e-3)
        rows, expected_rows = (await a.residuals(TEXTS, [1, 2], chat=True), m.residuals(TEXTS, [1, 2], chat=True))
        assert np.allclose(rows[2][1], expected_rows[2][1], atol=1e-3)

    async def test_steps_see_the_errors_of_their_requests(self, a: AsyncMillm) -> None:
        def steps() -> Steps[str]:
            try:
                return str((yield get("models/nothing")))
            except openai.NotFoundError:
                return str((yield get("models/demo"))["id"])

        assert await a._transport.run(steps()) == "demo"

    async def test_explanations_and_vectors(self, m: Millm, a: AsyncMillm) -> None:
        text = "The rain fell and the fox was"
        assert str(await a.logit_lens(text)) == str(m.logit_lens(text))
        found, expected = await a.attribution(text, token=" sad"), m.attribution(text, token=" sad")
        assert found.total == pytest.approx(expected.total, rel=1e-3)
        fit = await a.vector_from(PAIRS, layers=[2])
        assert np.allclose(fit[2].values, m.vector_from(PAIRS, layers=[2])[2].values, atol=1e-2)

    async def test_features(self, m: Millm, a: AsyncMillm) -> None:
        assert await a.features.search("rain") == m.features.search("rain")
        assert await a.features.get("demo-sae", RAIN) == m.features.get("demo-sae", RAIN)
        assert await a.features.neighbours("demo-sae", RAIN) == m.features.neighbours("demo-sae", RAIN)


class TestManagement:
    async def test_publish_and_sweep(self, a: AsyncMillm) -> None:
        version = await a.publish("async-rainy", edits=[{"index": RAIN, "strength": 0.4}])
        seen: list[Progress] = []
        settings = {**SHORT, "strengths": [1.0]} | NO_CONTROLS
        sweep = await a.steer_sweep(profile=version.name, **settings, progress=seen.append)
        assert [row.strength for row in sweep] == [0.0, 1.0]
        assert seen[-1].state == "succeeded"

    async def test_an_upload(self, a: AsyncMillm, tmp_path: Path) -> None:
        path = tmp_path / "hills.txt"
        path.write_text("A walk in the hills.\n")
        assert (await a.upload_corpus(path)).name in {corpus.name for corpus in await a.corpora()}
        folder = write_small_sae(tmp_path / "async-sae")
        with pytest.raises(openai.BadRequestError):
            await a.upload_sae(folder, layer=99)

    async def test_a_cancelled_task_cancels_its_job(self, m: Millm, a: AsyncMillm) -> None:
        started = asyncio.Event()
        long = {**SHORT, "prompts": [STORY] * 64, "max_tokens": 256} | NO_CONTROLS
        task = asyncio.create_task(a.steer_sweep(profile="gloomy", **long, progress=lambda _: started.set()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert self._newest(m)["cancel_requested"] or self._newest(m)["state"] == "cancelled"

    def test_an_interrupt_cancels_the_job_too(self, m: Millm) -> None:
        def interrupt(_: Progress) -> None:
            raise KeyboardInterrupt

        long = {**SHORT, "prompts": [STORY] * 64, "max_tokens": 256} | NO_CONTROLS
        with pytest.raises(KeyboardInterrupt):
            m.steer_sweep(profile="gloomy", **long, progress=interrupt)
        assert self._newest(m)["cancel_requested"] or self._newest(m)["state"] == "cancelled"

    @staticmethod
    def _newest(m: Millm) -> dict[str, Any]:
        newest: dict[str, Any] = send(m, api_get("jobs"))["data"][0]
        return newest


class TestTogether:
    """Steps side by side: no more than allowed at once, and none goes on after one has failed."""

    async def test_the_others_end_when_one_fails(self, a: AsyncMillm) -> None:
        running, most, ended = 0, 0, 0

        def part(number: int) -> Steps[int]:
            nonlocal running, most, ended
            running += 1
            most = max(most, running)
            try:
                yield Pause(0.01 if number < 3 else 600)
            finally:
                running -= 1
            ended += 1
            if number == 2:
                raise ValueError("two")
            return number

        def all_parts(count: int) -> Steps[list[int]]:
            found: list[int] = yield Together([part(number) for number in range(count)], 2)
            return found

        assert await a._transport.run(all_parts(2)) == [0, 1]
        with pytest.raises(ValueError, match="two"):
            await a._transport.run(all_parts(9))
        assert (running, most, ended) == (0, 2, 5)
