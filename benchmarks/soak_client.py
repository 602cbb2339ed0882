"""A client of the soak test: sends requests, reads or cancels the answers, and reports problems."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from benchmarks.serve import events
from benchmarks.soak_requests import Requests, SoakRequest

ANSWER_S = 180.0  # longer than any request waits in the queue
MAX_RETRY_S = 1.0
FINISHES = frozenset({"stop", "length"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a request. ``status`` is 0 if it was cancelled early; ``problem`` is "" if there is none."""

    id: str
    request: SoakRequest
    status: int
    problem: str = ""
    completion_tokens: int | None = None
    text: str = ""


class Client:
    """Sends one request after the other. ``known`` contains the expected answers of the canary requests."""

    def __init__(self, http: httpx2.AsyncClient, name: str, requests: Requests, known: Mapping[str, str]) -> None:
        self.outcomes: list[Outcome] = []
        self._http = http
        self._name = name
        self._requests = requests
        self._known = known
        self._sent = 0

    def longest(self) -> SoakRequest:
        return self._requests.longest()

    async def run_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            outcome = await self.send(self._requests.draw())
            if outcome.status == 503:
                await asyncio.sleep(MAX_RETRY_S)

    async def send(self, request: SoakRequest) -> Outcome:
        name = f"{self._name}-{self._sent}"
        self._sent += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                outcome = await self._answered(name, request)
        except TimeoutError:
            outcome = Outcome(name, request, 0, f"No response within {ANSWER_S:g} s.")
        except (httpx2.HTTPError, RuntimeError, ValueError, KeyError) as error:
            outcome = Outcome(name, request, 0, f"{type(error).__name__}: {error}")
        self.outcomes.append(outcome)
        return outcome

    async def _answered(self, name: str, request: SoakRequest) -> Outcome:
        headers = {"Content-Type": "application/json", **request.headers, "X-Client-Request-Id": name}
        if request.leave_after == 0:
            return await self._cancel_at_once(name, request, headers)
        async with self._http.stream("POST", request.path, content=request.body, headers=headers) as response:
            if response.status_code != 200:
                return _refused(name, request, response, await response.aread())
            if request.status != 200:
                return Outcome(name, request, 200, "Bad input was accepted.")
            if not request.streams:
                return _whole(name, request, await _json(response))
            if request.leave_after is not None:
                return await _cancel_stream(name, request, response)
            return self._checked(await _streamed(name, request, response))

    async def _cancel_at_once(self, name: str, request: SoakRequest, headers: Mapping[str, str]) -> Outcome:
        """Cancel the request, usually before the first byte of the response."""
        task = asyncio.create_task(self._http.post(request.path, content=request.body, headers=headers))
        await asyncio.wait([task], timeout=0.05)
        task.cancel()
        try:
            return (
                _refused(name, request, found := await task, found.content)
                if task.done()
                else Outcome(name, request, 0)
            )
        except asyncio.CancelledError:
            return Outcome(name, request, 0)

    def _checked(self, outcome: Outcome) -> Outcome:
        known = self._known.get(outcome.request.canary)
        if known is None or outcome.problem or outcome.text == known:
            return outcome
        problem = f"Wrong answer: expected {known!r}, got {outcome.text!r}."
        return Outcome(outcome.id, outcome.request, outcome.status, problem, outcome.completion_tokens, outcome.text)


def _refused(name: str, request: SoakRequest, response: httpx2.Response, content: bytes) -> Outcome:
    status = response.status_code
    if status == 200 and request.leave_after is not None:
        return Outcome(name, request, 200)  # the response arrived before the request was cancelled
    if status == 503 and request.status == 200:
        return Outcome(name, request, 503, "" if "retry-after" in response.headers else "503 without Retry-After.")
    error = response.json().get("error", {}) if content else {}
    if (status, error.get("code")) == (request.status, request.code):
        return Outcome(name, request, status)
    return Outcome(name, request, status, f"expected {request.status} {request.code}, got {status} {error}")


async def _json(response: httpx2.Response) -> dict[str, Any]:
    await response.aread()
    found: dict[str, Any] = response.json()
    return found


def _whole(name: str, request: SoakRequest, body: Mapping[str, Any]) -> Outcome:
    reasons = [choice["finish_reason"] for choice in body["choices"]]
    problem = "" if set(reasons) <= FINISHES else f"finish reasons {reasons}"
    return Outcome(name, request, 200, problem, body["usage"]["completion_tokens"])


async def _cancel_stream(name: str, request: SoakRequest, response: httpx2.Response) -> Outcome:
    seen = 0
    async for _ in events(response):
        seen += 1
        if seen >= (request.leave_after or 0):
            break
    return Outcome(name, request, 200)


async def _streamed(name: str, request: SoakRequest, response: httpx2.Response) -> Outcome:
    """Read the stream up to [DONE]. Each choice must end exactly once."""
    endings: dict[int, list[str]] = {}
    text, usage = [], None
    async for event in events(response):
        for choice in event["choices"]:
            ended = endings.setdefault(choice["index"], [])
            if choice["finish_reason"] is not None:
                ended.append(choice["finish_reason"])
            text.append(choice.get("delta", {}).get("content") or "")
        usage = event.get("usage") or usage
    problem = ""
    if usage is None or any(len(ended) != 1 or ended[0] not in FINISHES for ended in endings.values()):
        problem = f"endings {endings}, usage {usage}"
    return Outcome(name, request, 200, problem, usage and usage["completion_tokens"], "".join(text))
