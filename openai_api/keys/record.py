"""The key of a request as an immutable record, and how keys are made and hashed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from django.utils.crypto import salted_hmac

KEY_START = "sk-millm-"
MAX_KEY_LENGTH = 200
PREFIX_LENGTH = len(KEY_START) + 4  # shown in the admin
STATIC_PREFIX = "static-"  # before the first characters of the static key
STATIC_PREFIX_LENGTH = len(STATIC_PREFIX) + 4


MEDIA_UNITS = ("audio_seconds", "characters", "images", "video_seconds")
MANAGE_MODELS = "inference.change_languagemodel"


MAX_INTENSITY = 2.0  # times what a profile was published with


@dataclass(frozen=True, slots=True)
class DayUse:
    """What a key used on a day in UTC."""

    day: date
    requests: int
    tokens: int
    media: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An active key as requests see it."""

    pk: int
    name: str
    digest: str
    prefix: str = ""  # prefix of the secret in use; a rotated key has two for a while
    owner_id: int | None = None  # whose objects requests see
    default_profile: str = ""
    allowed_models: frozenset[str] = frozenset()
    allowed_profiles: frozenset[str] = frozenset()
    may_steer_inline: bool = False
    min_intensity: float = 0.0
    max_intensity: float = MAX_INTENSITY
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_day: int | None = None
    media_per_day: Mapping[str, int] = field(default_factory=dict)  # by unit
    priority: int = 0
    log_content: str = ""  # what the log keeps of texts; "" for the server's setting
    expires_at: datetime | None = None
    may_manage_models: bool = False
    scopes: frozenset[str] = frozenset()  # empty: all of /v1
    used: DayUse | None = None  # at the time this record was read

    @property
    def may_manage(self) -> bool:
        """Return whether the key may use /api, with its owner's permissions."""
        return "manage" in self.scopes


def new_key() -> str:
    return KEY_START + secrets.token_urlsafe(32)


def digest_of(key: str) -> str:
    """Return the HMAC-SHA256 under a key derived from SECRET_KEY, so that a copy of the table cannot check guesses."""
    return salted_hmac("openai_api.ApiKey", key, algorithm="sha256").hexdigest()
