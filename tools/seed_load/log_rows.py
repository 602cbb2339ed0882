"""Generated rows of the request log, the same for the same arguments."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

COLUMNS = (
    "id",
    "created_at",
    "api_key_id",
    "endpoint",
    "model",
    "profile",
    "fingerprint",
    "policies",
    "steering_expected",
    "steering_applied",
    "stream",
    "status",
    "error_code",
    "error_message",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "queue_ms",
    "ttft_ms",
    "total_ms",
    "client_address",
    "user",
    "parameters",
    "prompt",
    "completion",
)
ID_START = "seed_"
PERIOD = timedelta(days=30)
ENDPOINTS = ("/v1/chat/completions",) * 16 + ("/v1/completions",) * 2 + ("/v1/embeddings", "/v1/models")
ERRORS = ((401, "invalid_api_key"), (429, "rate_limit_exceeded"), (400, "context_length_exceeded"), (503, "queue_full"))
PROFILES = ("", "", "", *(f"seed-{name}@{number}" for name in range(12) for number in (1, 2, 3)))
NUM_WORDS, NUM_TEXTS = 6_000, 3_000
NAMED = 10  # every tenth request has metadata: the name of a program, and a session of 20 such requests
PROGRAMS = ("chat-page", "summaries", "nightly-job")


@dataclass(frozen=True, slots=True)
class Texts:
    """Prompts and completions that rows share; each row adds a word."""

    prompts: Sequence[str]
    completions: Sequence[str]

    @classmethod
    def made(cls, draw: random.Random) -> Texts:
        words = ["".join(draw.choices("abdeghiklmnoprstuvz", k=draw.randint(3, 9))) for _ in range(NUM_WORDS)]
        weights = [1 / rank for rank in range(1, NUM_WORDS + 1)]  # as words of a language are spread

        def text(shortest: int, longest: int) -> str:
            return " ".join(draw.choices(words, weights, k=draw.randint(shortest, longest)))

        prompts = [text(20, 120) for _ in range(NUM_TEXTS)]
        return cls(prompts, [text(10, 100) for _ in range(NUM_TEXTS)])


def log_rows(
    *, first: int, count: int, until: datetime, key_ids: Sequence[int], model: str
) -> Iterator[tuple[object, ...]]:
    """Yield rows, the oldest first, over the 30 days before ``until``."""
    draw = random.Random(first)  # noqa: S311 - made-up rows, no secrets
    texts = Texts.made(draw)
    models = (model,) * 3 + tuple(f"seed-model-{number}" for number in range(4))
    for number in range(first, first + count):
        at = until - PERIOD * (1 - (number - first) / count)
        yield _row(number, at, draw, texts, models, key_ids)


def _row(
    number: int,
    at: datetime,
    draw: random.Random,
    texts: Texts,
    models: Sequence[str],
    key_ids: Sequence[int],
) -> tuple[object, ...]:
    chance = draw.random()
    status, code = draw.choice(ERRORS) if chance < 0.04 else (200, "client_disconnected" if chance < 0.05 else "")
    profile = draw.choice(PROFILES)
    ttft = draw.expovariate(1 / 120)
    num_tokens = draw.randint(1, 256) if status == 200 else 0
    prompt = f"{draw.choice(texts.prompts)} w{number:x}"
    return (
        f"{ID_START}{number}",
        at,
        draw.choice(key_ids) if key_ids else None,
        draw.choice(ENDPOINTS),
        draw.choice(models),
        profile,
        "seed" if profile else "",
        "",
        num_tokens if profile else 0,
        num_tokens if profile else 0,
        chance * 1000 % 1 < 0.5,
        status,
        code,
        f"A made-up refusal: {code}." if status != 200 else "",
        "stop" if status == 200 else "",
        draw.randint(5, 900),
        0,
        num_tokens,
        ttft / 4,
        ttft,
        ttft + num_tokens * 12 + draw.expovariate(1 / 40),
        "127.0.0.1",
        f"user-{int(draw.paretovariate(1.2)) % 500}",
        json.dumps(_parameters(number)),
        json.dumps([{"role": "user", "content": prompt}]),
        draw.choice(texts.completions) if status == 200 else "",
    )


def _parameters(number: int) -> dict[str, object]:
    given: dict[str, object] = {"max_tokens": 256, "temperature": 0.7, "stop": ["\n\n"]}
    if number % NAMED:
        return given
    program = PROGRAMS[number // NAMED % len(PROGRAMS)]
    return {**given, "metadata": {"program": program, "session_id": session_of(number)}}


def session_of(number: int) -> str:
    """Return the session of a request that has metadata."""
    return f"session-{number // (20 * NAMED)}"
