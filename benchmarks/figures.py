"""Traces of requests, and the figures computed from them. Times are seconds of ``time.perf_counter()``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class Trace:
    """Times at which a request was sent and at which its token events arrived.

    Late jobs are excluded from the ITL and the latency.
    """

    sent_at: float
    event_times: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int
    is_late: bool = False

    @property
    def ttft_s(self) -> float:
        return self.event_times[0] - self.sent_at

    @property
    def latency_s(self) -> float:
        """Seconds from sending the request to its last token."""
        return self.event_times[-1] - self.sent_at

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.event_times, self.event_times[1:], strict=False)]

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second after the first event. Events may contain several tokens."""
        span = self.event_times[-1] - self.event_times[0]
        share = (len(self.event_times) - 1) / len(self.event_times)
        return self.completion_tokens * share / span if span > 0 else None


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run. ``decode_tok_s`` is the speed of the median stream after its first token.

    ``ttft_*`` and ``itl_*`` are None if the subject only reports the end of a request. Figures that an older record
    does not have are None too. The memory is the peak of the process.
    """

    requests: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    output_tok_s: float
    total_tok_s: float
    decode_tok_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    itl_p99_s: float | None = None
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    peak_memory_mb: float | None = None

    def as_json(self) -> dict[str, float | None]:
        return asdict(self)


def figures(traces: Sequence[Trace], *, peak_memory_mb: float | None = None) -> Figures:
    """Compute the figures of completed requests. Every trace must have at least one event."""
    seconds = max(t.event_times[-1] for t in traces) - min(t.sent_at for t in traces)
    prompt, made = sum(t.prompt_tokens for t in traces), sum(t.completion_tokens for t in traces)
    gaps = [gap for t in traces if not t.is_late for gap in t.gaps_s]
    ttfts = [t.ttft_s for t in traces]
    latencies = [t.latency_s for t in traces if not t.is_late]
    speeds = [speed for t in traces if not t.is_late and (speed := t.decode_tok_s) is not None]
    return Figures(
        requests=len(traces),
        prompt_tokens=prompt,
        completion_tokens=made,
        seconds=seconds,
        output_tok_s=made / seconds,
        total_tok_s=(prompt + made) / seconds,
        decode_tok_s=statistics.median(speeds) if speeds else None,
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p95_s=percentile(ttfts, 95),
        ttft_p99_s=percentile(ttfts, 99),
        itl_p50_s=percentile(gaps, 50),
        itl_p95_s=percentile(gaps, 95),
        itl_p99_s=percentile(gaps, 99),
        latency_p50_s=percentile(latencies, 50),
        latency_p95_s=percentile(latencies, 95),
        latency_p99_s=percentile(latencies, 99),
        peak_memory_mb=peak_memory_mb,
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the percentile, interpolated linearly between the nearest ranks; None if there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_figures(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure; None if a round lacks it."""
    middle: dict[str, float | None] = {}
    for field in fields(Figures):
        values = [getattr(figure, field.name) for figure in rounds]
        middle[field.name] = None if None in values else statistics.median(values)
    return Figures(**middle)  # type: ignore[arg-type]
