"""Statistics of a generation: texts, counts, finish reasons, times and the steering receipts."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from inference.client import Event, FailedEvent, FinishedEvent, SiteEffect, SteeringReceipt, TokensEvent, Usage
from openai_api.request_log.entry import Outcome
from openai_api.schemas.bodies import MillmBody, SiteEffectBody, SteeringBody, UsageBody
from steering.profiles.resolver import ResolvedProfile


def steering_body(receipts: Sequence[SteeringReceipt]) -> SteeringBody:
    """Build the steering summary of all sequences of a request, which share one profile."""
    body: SteeringBody = {
        "expected": sum(receipt.expected for receipt in receipts),
        "applied": sum(receipt.applied for receipt in receipts),
        "sites": site_bodies(receipts),
    }
    joint = receipts[0].removals if receipts else ()
    if joint:
        body["removed_together"] = [
            {"site": str(one.site), "directions": one.num_directions, "dimensions": one.rank} for one in joint
        ]
    inert = receipts[0].inert if receipts else ()
    if inert:
        body["without_effect"] = [{"edit": one.number, "reason": one.reason} for one in inert]
    return body


def millm_body(profile: ResolvedProfile, receipts: Sequence[SteeringReceipt]) -> MillmBody:
    """Build the report of what steered a request, for the end of its response."""
    body: MillmBody = {
        "profile": profile.label or None,
        "fingerprint": profile.fingerprint,
        "policies": list(profile.policies),
        "intensity": profile.intensity,
        "steering": steering_body(receipts),
    }
    if profile.auto:
        body["auto_strengths"] = [
            {"edit": one.edit, "strength": one.strength, "unit": one.unit} for one in profile.auto
        ]
    return body


def site_bodies(receipts: Sequence[SteeringReceipt]) -> list[SiteEffectBody]:
    by_site: dict[str, list[SiteEffect]] = {}
    for effect in (effect for receipt in receipts for effect in receipt.effects):
        by_site.setdefault(str(effect.site), []).append(effect)
    return [_site_body(site, effects) for site, effects in by_site.items()]


def _site_body(site: str, effects: Sequence[SiteEffect]) -> SiteEffectBody:
    num_tokens = sum(effect.num_tokens for effect in effects)
    mean = sum(effect.change for effect in effects) / num_tokens
    return {
        "site": site,
        "tokens": num_tokens,
        "changed_share": round(sum(effect.num_changed for effect in effects) / num_tokens, 4),
        "mean_change": float(f"{mean:.4g}") if math.isfinite(mean) else None,
    }


@dataclass(slots=True)
class SequenceStats:
    """Statistics of one sequence; ``end`` is its terminal event."""

    prompt: int  # index of its prompt
    texts: list[str] = field(default_factory=list)
    num_tokens: int = 0
    end: FinishedEvent | FailedEvent | None = None

    def note(self, event: Event) -> None:
        if isinstance(event, TokensEvent):
            self.texts.append(event.text)
            self.num_tokens += len(event.token_ids)
        elif isinstance(event, FinishedEvent | FailedEvent):
            self.end = event
            self.num_tokens = max(self.num_tokens, event.usage.completion_tokens)

    @property
    def reason(self) -> str:
        return self.end.reason if isinstance(self.end, FinishedEvent) else ""

    @property
    def receipt(self) -> SteeringReceipt | None:
        return self.end.receipt if isinstance(self.end, FinishedEvent) else None


class TokenTimes:
    """Times at which tokens came: of few tokens all, of many every 2nd, 4th, 8th and so on."""

    MAX = 64

    def __init__(self) -> None:
        self._times: list[float] = []
        self._stride = 1
        self._count = 0

    def note(self, seconds: float) -> None:
        if self._count % self._stride == 0:
            self._times.append(seconds)
            if len(self._times) > self.MAX:
                self._times = self._times[::2]
                self._stride *= 2
        self._count += 1

    @property
    def milliseconds(self) -> tuple[int, ...]:
        return tuple(round(1000 * seconds) for seconds in self._times)


class GenerationStats:
    """Statistics of all sequences. ``prompt_lengths`` are in tokens; ``prompts`` gives each sequence's prompt."""

    def __init__(self, prompt_lengths: Sequence[int], prompts: Sequence[int]) -> None:
        self._prompt_lengths = prompt_lengths
        self._sequences = [SequenceStats(prompt) for prompt in prompts]
        self._began_at = time.monotonic()
        self._first_token_s: float | None = None
        self._token_times = TokenTimes()

    def note(self, event: Event) -> None:
        self._sequences[event.index].note(event)
        if isinstance(event, TokensEvent):
            elapsed_s = time.monotonic() - self._began_at
            if self._first_token_s is None:
                self._first_token_s = elapsed_s
            if event.index == 0:  # those of several answers would lie on one another
                self._token_times.note(elapsed_s)

    @property
    def prompt_of_sequence(self) -> list[int]:
        return [sequence.prompt for sequence in self._sequences]

    @property
    def is_complete(self) -> bool:
        return all(sequence.end is not None for sequence in self._sequences)

    @property
    def usage(self) -> Usage:
        """Return the usage. A prompt counts once, however many sequences continue it."""
        cached: dict[int, int] = {}
        for sequence in self._sequences:
            if sequence.end is not None:
                cached.setdefault(sequence.prompt, sequence.end.usage.cached_tokens)
        return Usage(
            prompt_tokens=sum(self._prompt_lengths),
            cached_tokens=sum(cached.values()),
            completion_tokens=sum(sequence.num_tokens for sequence in self._sequences),
        )

    @property
    def receipts(self) -> list[SteeringReceipt]:
        """Return the receipts of the sequences that have ended."""
        return [sequence.receipt for sequence in self._sequences if sequence.receipt is not None]

    def outcome(self) -> Outcome:
        timings = [sequence.end.timings for sequence in self._sequences if sequence.end is not None]
        first_token_ms = _milliseconds(one.first_token_s for one in timings)
        if first_token_ms is None:  # the client left before the engine reported its own time
            first_token_ms = _milliseconds([self._first_token_s])
        receipts = self.receipts
        reasons = dict.fromkeys(sequence.reason for sequence in self._sequences if sequence.reason)
        texts = ["".join(sequence.texts) for sequence in self._sequences]
        return Outcome(
            usage=self.usage,
            completion=texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False),
            finish_reason=",".join(reasons),
            steering_expected=sum(receipt.expected for receipt in receipts),
            steering_applied=sum(receipt.applied for receipt in receipts),
            steering_effects=tuple(site_bodies(receipts)),
            queue_ms=_milliseconds(one.queue_s for one in timings),
            ttft_ms=first_token_ms,
            submitted_at=self._began_at,
            token_ms=self._token_times.milliseconds,
        )


def total_outcome(outcomes: Sequence[Outcome], receipts: Sequence[SteeringReceipt], *, completion: str) -> Outcome:
    """Return the outcome of all generations of a request, which share one log row."""
    return Outcome(
        usage=sum((one.usage for one in outcomes), Usage()),
        completion=completion,
        finish_reason=outcomes[-1].finish_reason,
        steering_expected=sum(one.steering_expected for one in outcomes),
        steering_applied=sum(one.steering_applied for one in outcomes),
        steering_effects=tuple(site_bodies(receipts)),
        queue_ms=outcomes[0].queue_ms,
        ttft_ms=outcomes[0].ttft_ms,
        submitted_at=outcomes[0].submitted_at,
        token_ms=outcomes[0].token_ms,
        findings=tuple(finding for one in outcomes for finding in one.findings),
        tokens=tuple(record for one in outcomes for record in one.tokens),
    )


def _milliseconds(seconds: Iterable[float | None]) -> float | None:
    """Return the smallest of ``seconds`` in milliseconds."""
    known = [value for value in seconds if value is not None]
    return min(known) * 1000 if known else None


def usage_body(usage: Usage, *, reasoning_tokens: int = 0) -> UsageBody:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }
