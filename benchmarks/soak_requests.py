"""Requests of the soak test: valid requests of random size, some of which are cancelled, and invalid ones."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["chat", "whole", "canary", "cancel", "bad"]
CHAT, TEXT = "/chat/completions", "/completions"
KINDS: tuple[Kind, ...] = ("chat", "whole", "canary", "cancel", "bad")
WEIGHTS = (50, 20, 10, 12, 8)
WORDS = ("Tell", "me", "a", "story", "about", "the", "sea", "and", "an", "old", "fox", "who", "was", "very", "happy")
CANARIES = ("Tell me a story about a dog.", "Write about the rain.", "Who lives in the forest?")


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One request. The response must have ``status`` and ``code``; valid requests may also get 503.

    A request is cancelled after ``leave_after`` chunks, 0: before the first one, None: never.
    """

    kind: Kind
    path: str
    body: bytes
    status: int = 200
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    leave_after: int | None = None
    canary: str = ""

    @property
    def streams(self) -> bool:
        return self.kind != "whole" and self.status == 200


class Requests:
    """Draws requests to ``model`` with one of ``profiles`` or none. Seeded, so that a run can be repeated."""

    def __init__(self, model: str, profiles: tuple[str, ...], context: int, seed: int) -> None:
        self._model = model
        self._profiles = profiles
        self._context = context
        self._random = random.Random(seed)  # noqa: S311 - not for secrets

    def draw(self) -> SoakRequest:
        kind = self._random.choices(KINDS, WEIGHTS)[0]
        match kind:
            case "bad":
                return self._random.choice(self._bad())
            case "canary":
                return self.canary(self._random.choice(CANARIES), self._profile())
            case "whole":
                return SoakRequest(kind, TEXT, self._encoded(prompt=self._text(200), **self._sampling(), stream=False))
            case "cancel":
                return SoakRequest(kind, CHAT, self._chat(), leave_after=self._random.choice((0, 1, 3, 10)))
            case _:
                return SoakRequest(kind, CHAT, self._chat())

    def canary(self, prompt: str, profile: str | None) -> SoakRequest:
        """Return a greedy request whose answer is compared with the one generated before the load."""
        body = self._encoded(
            messages=[{"role": "user", "content": prompt}],
            profile=profile,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
        return SoakRequest("canary", CHAT, body, canary=f"{prompt} / {profile}")

    def canaries(self) -> list[SoakRequest]:
        return [self.canary(prompt, profile) for prompt in CANARIES for profile in (None, *self._profiles)]

    def longest(self) -> SoakRequest:
        """Return a request that uses the whole context."""
        body = self._encoded(prompt="Once", max_tokens=self._context - 8, ignore_eos=True, stream=True)
        return SoakRequest("cancel", TEXT, body)

    def _chat(self) -> bytes:
        messages = [{"role": "user", "content": self._text(120)}]
        usage = {"include_usage": True}
        return self._encoded(messages=messages, **self._sampling(), stream=True, stream_options=usage)

    def _sampling(self) -> dict[str, Any]:
        draw = self._random
        fields: dict[str, Any] = {
            "max_tokens": draw.randint(1, 96),
            "temperature": draw.choice((0, 0.7, 1.0, 1.5)),
            "profile": self._profile(),
            "n": draw.choice((1, 1, 1, 1, 2, 3)),
        }
        if draw.random() < 0.3:
            fields |= {"top_p": 0.9, "seed": draw.randint(0, 10**6)}
        if draw.random() < 0.2:
            fields |= {"stop": ["."]}
        if draw.random() < 0.2:
            fields |= {"frequency_penalty": 0.5, "presence_penalty": 0.5}
        return fields

    def _bad(self) -> list[SoakRequest]:
        hello = [{"role": "user", "content": "hi"}]

        def bad(status: int, code: str, path: str = CHAT, **fields: Any) -> SoakRequest:
            return SoakRequest("bad", path, self._encoded(**fields), status, code)

        text_plain = SoakRequest("bad", CHAT, b"hi", 415, "unsupported_media_type", {"Content-Type": "text/plain"})
        return [
            SoakRequest("bad", CHAT, b"{", 400, "invalid_json"),
            SoakRequest("bad", CHAT, b"[" * 10_000, 400, "invalid_json"),
            text_plain,
            bad(400, "invalid_value", messages=[]),
            bad(400, "invalid_value", messages=hello, temperature=-1),
            bad(400, "invalid_value", messages=hello, n=10**9),
            bad(400, "invalid_value", messages=hello, max_tokens=-1),
            bad(400, "invalid_type", messages=hello, seed=0.5),
            bad(400, "context_length_exceeded", messages=hello, max_tokens=10 * self._context),
            bad(400, "invalid_prompt", TEXT, prompt=[10**6]),
            bad(404, "model_not_found", messages=hello, model="../../etc/passwd"),
            bad(404, "profile_not_found", messages=hello, profile="no-such-profile"),
        ]

    def _text(self, most: int) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randint(1, most)))

    def _profile(self) -> str | None:
        return self._random.choice((None, *self._profiles))

    def _encoded(self, **fields: Any) -> bytes:
        return json.dumps({"model": self._model, **fields}).encode()
