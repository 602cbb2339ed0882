"""Run a request's sequences on the engine: submit, read events under the deadline, cancel when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from django.utils import timezone

from inference.captures import CaptureSpec
from inference.client import (
    CaptureEvent,
    Event,
    GenerationRequest,
    Request,
    SamplingParams,
    Usage,
)
from inference.runs import Run, SequenceFailedError, batch_size
from inference.segments import ANSWER_ONLY, SegmentRules
from openai_api.backend import get_backend
from openai_api.generation.stats import GenerationStats, millm_body
from openai_api.generation.target import Target
from openai_api.generation.token_record import TokenRecord
from openai_api.http.call import Call
from openai_api.http.errors import timed_out
from openai_api.request_log.entry import Outcome
from openai_api.schemas.bodies import MillmBody
from steering.watch.watcher import WatchMatches


@dataclass(frozen=True, slots=True)
class Plan:
    """Prompts as token ids, each continued ``per_prompt`` times. A sequence's index is prompt * per_prompt + choice."""

    prompts: Sequence[Sequence[int]]
    params: Sequence[SamplingParams]  # one for each prompt
    per_prompt: int
    captures: Sequence[tuple[CaptureSpec, ...]] = ()  # one for each sequence, or empty
    sae: str = ""  # name of the SAE
    segment_rules: Sequence[SegmentRules] = ()  # likewise for each prompt
    cache_salt: str = ""  # the request's own salt

    @property
    def prompt_of_sequence(self) -> list[int]:
        return [prompt for prompt in range(len(self.prompts)) for _ in range(self.per_prompt)]

    def requests(self, call: Call, target: Target) -> list[GenerationRequest]:
        return [
            GenerationRequest(
                request_id=f"{call.id}/{number}",
                model=target.model.record.name,
                prompt_token_ids=tuple(self.prompts[prompt]),
                sampling=self.params[prompt],
                steering=target.profile.steering if target.profile else None,
                index=number,
                priority=call.priority,
                captures=(*self.captures_of(number), *target.watch.captures),
                segment_rules=self.segment_rules_of(prompt),
                cache_salt=call.cache_salt(target.model.record, self.cache_salt),
            )
            for number, prompt in enumerate(self.prompt_of_sequence)
        ]

    def captures_of(self, number: int) -> tuple[CaptureSpec, ...]:
        """Return the request's own captures of a sequence; those of watch rules follow them."""
        return self.captures[number] if self.captures else ()

    def segment_rules_of(self, prompt: int) -> SegmentRules:
        return self.segment_rules[prompt] if self.segment_rules else ANSWER_ONLY

    @property
    def num_tokens(self) -> int:
        """Return the maximum number of tokens that the plan can use."""
        completions = sum(params.max_tokens for params in self.params) * self.per_prompt
        return completions + sum(len(prompt) for prompt in self.prompts)


class Sequences(Protocol):
    """The interface of a plan; see :class:`Plan`."""

    @property
    def prompts(self) -> Sequence[Sequence[int]]: ...

    @property
    def prompt_of_sequence(self) -> list[int]: ...

    @property
    def sae(self) -> str: ...

    @property
    def num_tokens(self) -> int: ...

    def requests(self, call: Call, target: Target) -> list[GenerationRequest]: ...

    def captures_of(self, number: int) -> tuple[CaptureSpec, ...]: ...


class Generation:
    """Read events until all sequences have ended. :meth:`close` may be called at any time, from any thread."""

    @classmethod
    async def start(cls, call: Call, target: Target, plan: Sequences) -> Self:
        """Submit the sequences. Raises MillmError 429, or EngineError when the engine cannot accept them."""
        await call.reserve_tokens(plan.num_tokens)
        generation = cls(call, target, plan)
        await generation._run.start()
        return generation

    def __init__(self, call: Call, target: Target, plan: Sequences) -> None:
        """Prepare the requests. Nothing is submitted; see :meth:`start`."""
        self.call = call
        self.target = target
        self.stats = GenerationStats([len(prompt) for prompt in plan.prompts], plan.prompt_of_sequence)
        self._plan = plan
        self._sightings = WatchMatches(target.watch)
        self._pending: Event | None = None
        self.outcome = Outcome()  # set by :meth:`close`
        requests = plan.requests(call, target)
        self._record = TokenRecord.of(requests, plan.captures_of, text=target.model.text, sae=plan.sae)
        client = get_backend().client()
        self._run = Run(client, requests, group_size=batch_size(client), observe=self._note)

    async def peek(self) -> None:
        """Wait briefly for the first event. Raises MillmError when it is a failure."""
        self._pending = await self.next_event(get_backend().first_event_s)

    async def next_event(self, patience_s: float) -> Event | None:
        """Return the next event, or None after ``patience_s`` without one. Raises MillmError on failure and at the
        deadline.
        """
        if self._pending is not None:
            event, self._pending = self._pending, None
            return event
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(self.call.deadline, loop.time() + patience_s)):
                return await anext(self._run)
        except TimeoutError:
            if loop.time() >= self.call.deadline:
                raise timed_out(self.call.timeout_s, self.call.timeout_setting) from None
            return None
        except StopAsyncIteration:  # closed meanwhile
            raise SequenceFailedError("engine_shutdown", "The engine ended the request early.") from None

    def cancel(self) -> None:
        """Cancel running sequences."""
        self._run.close()

    def close(self) -> None:
        """Cancel running sequences and record the outcome."""
        self.cancel()
        record, self._record = self._record, None  # from now on the log's thread owns it
        tokens = self.outcome.tokens if record is None else (record,)
        self.outcome = replace(self.stats.outcome(), findings=self._sightings.findings, tokens=tokens)
        self.call.outcome = self.outcome

    @property
    def usage(self) -> Usage:
        return self.stats.usage

    @property
    def is_complete(self) -> bool:
        """Return whether all events have been read, the peeked one included."""
        return self.stats.is_complete and self._pending is None

    @property
    def millm(self) -> MillmBody | None:
        """Return which profile was applied, for the end of the response."""
        if self.target.profile is None:
            return None
        return millm_body(self.target.profile, self.stats.receipts)

    def _note(self, event: Event) -> None:
        self.stats.note(event)
        if self._record is not None:
            self._record.note(event)
        if isinstance(event, CaptureEvent):
            self._note_reading(event)

    def _note_reading(self, event: CaptureEvent) -> None:
        own = len(self._plan.captures_of(event.index))
        num_prompt = len(self._plan.prompts[self._plan.prompt_of_sequence[event.index]])
        for reading in event.captures:
            if reading.number >= own:
                self._sightings.note(reading.number - own, reading, num_prompt=num_prompt, now=timezone.now())


async def collect_events(
    call: Call,
    requests: Sequence[Request],
    *,
    group_size: int | None = None,
    observe: Callable[[Event], None],
) -> list[list[Event]]:
    """Return the events of each request, in order. Raises MillmError; the engine stops however this ends.

    ``observe`` gets every event as it arrives.
    """
    run = Run(get_backend().client(), requests, group_size=group_size, observe=observe)
    try:
        async with asyncio.timeout_at(call.deadline):
            return await run.collect()
    except TimeoutError:
        raise timed_out(call.timeout_s, call.timeout_setting) from None
