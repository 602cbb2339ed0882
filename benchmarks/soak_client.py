"""One client of the soak: sends a request, reads the answer to its end or leaves, and says what was wrong with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from benchmarks.serve import events
from benchmarks.soak_requests import Ask, Requests

ANSWER_S = 180.0  # longer than any queue here
MAX_RETRY_S = 1.0
FINISHES = frozenset({"stop", "length"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status`` 0: left before there was one. ``problem`` is empty when all was as it must be."""

    id: str
    ask: Ask
    status: int
    problem: str = ""
    completion_tokens: int | None = None
    text: str = ""


class Client:
    """Asks one request after the other. ``known`` holds the canaries' answers."""

    def __init__(self, http: httpx2.AsyncClient, name: str, requests: Requests, known: Mapping[str, str]) -> None:
        self.outcomes: list[Outcome] = []
        self._http = http
        self._name = name
        self._requests = requests
        self._known = known
        self._sent = 0

    def longest(self) -> Ask:
        return self._requests.longest()

    async def work_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            outcome = await self.send(self._requests.draw())
            if outcome.status == 503:
                await asyncio.sleep(MAX_RETRY_S)

    async def send(self, ask: Ask) -> Outcome:
        name = f"{self._name}-{self._sent}"
        self._sent += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                outcome = await self._answered(name, ask)
        except TimeoutError:
            outcome = Outcome(name, ask, 0, f"No answer within {ANSWER_S:g} s.")
        except (httpx2.HTTPError, RuntimeError, ValueError, KeyError) as error:
            outcome = Outcome(name, ask, 0, f"{type(error).__name__}: {error}")
        self.outcomes.append(outcome)
        return outcome

    async def _answered(self, name: str, ask: Ask) -> Outcome:
        headers = {"Content-Type": "application/json", **ask.headers, "X-Client-Request-Id": name}
        if ask.leave_after == 0:
            return await self._left_at_once(name, ask, headers)
        async with self._http.stream("POST", ask.path, content=ask.body, headers=headers) as response:
            if response.status_code != 200:
                return _refused(name, ask, response, await response.aread())
            if ask.status != 200:
                return Outcome(name, ask, 200, "Bad input was accepted.")
            if not ask.streams:
                return _whole(name, ask, await _json(response))
            if ask.leave_after is not None:
                return await _left(name, ask, response)
            return self._checked(await _streamed(name, ask, response))

    async def _left_at_once(self, name: str, ask: Ask, headers: Mapping[str, str]) -> Outcome:
        """Gone before the first byte of the answer, most often."""
        task = asyncio.create_task(self._http.post(ask.path, content=ask.body, headers=headers))
        await asyncio.wait([task], timeout=0.05)
        task.cancel()
        try:
            return _refused(name, ask, found := await task, found.content) if task.done() else Outcome(name, ask, 0)
        except asyncio.CancelledError:
            return Outcome(name, ask, 0)

    def _checked(self, outcome: Outcome) -> Outcome:
        known = self._known.get(outcome.ask.canary)
        if known is None or outcome.problem or outcome.text == known:
            return outcome
        problem = f"A wrong answer: {outcome.text!r} instead of {known!r}."
        return Outcome(outcome.id, outcome.ask, outcome.status, problem, outcome.completion_tokens, outcome.text)


def _refused(name: str, ask: Ask, response: httpx2.Response, content: bytes) -> Outcome:
    status = response.status_code
    if status == 200 and ask.leave_after is not None:
        return Outcome(name, ask, 200)  # it was faster than the client could leave
    if status == 503 and ask.status == 200:
        return Outcome(name, ask, 503, "" if "retry-after" in response.headers else "503 without Retry-After.")
    error = response.json().get("error", {}) if content else {}
    if (status, error.get("code")) == (ask.status, ask.code):
        return Outcome(name, ask, status)
    return Outcome(name, ask, status, f"{status} {error} instead of {ask.status} {ask.code}")


async def _json(response: httpx2.Response) -> dict[str, Any]:
    await response.aread()
    found: dict[str, Any] = response.json()
    return found


def _whole(name: str, ask: Ask, body: Mapping[str, Any]) -> Outcome:
    reasons = [choice["finish_reason"] for choice in body["choices"]]
    problem = "" if set(reasons) <= FINISHES else f"finish reasons {reasons}"
    return Outcome(name, ask, 200, problem, body["usage"]["completion_tokens"])


async def _left(name: str, ask: Ask, response: httpx2.Response) -> Outcome:
    seen = 0
    async for _ in events(response):
        seen += 1
        if seen >= (ask.leave_after or 0):
            break
    return Outcome(name, ask, 200)


async def _streamed(name: str, ask: Ask, response: httpx2.Response) -> Outcome:
    """Read to [DONE]: each choice must end exactly once."""
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
    return Outcome(name, ask, 200, problem, usage and usage["completion_tokens"], "".join(text))
