"""API keys and the request log."""

from __future__ import annotations

from dataclasses import replace

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone

from openai_api.keys.record import MANAGE_MODELS, MAX_INTENSITY, MEDIA_UNITS, DayUse, KeyRecord
from openai_api.keys.scopes import Scope
from openai_api.request_log.models import METADATA, LogAccess, LogWords, RequestScore, SavedSearch

__all__ = ("ApiKey", "KeyDay", "LogAccess", "RequestLog", "RequestScore", "SavedSearch")

ANY_HELP = "Separated by commas. Empty: all."


class LogContent(models.TextChoices):
    """What the request log keeps of texts."""

    FULL = "full", "texts"
    HASH = "hash", "SHA-256 of texts"
    NONE = "none", "no texts"


class ApiKey(models.Model):
    """A client's key. Only its HMAC digest is kept; the plain key is shown once."""

    name = models.CharField(max_length=100)
    note = models.TextField(blank=True, help_text="What it is for, where it is stored, who to ask.")
    prefix = models.CharField(max_length=16, help_text="The key's first characters, to identify it.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_keys")
    scopes = ArrayField(
        models.CharField(max_length=20, choices=Scope.choices),
        default=list,
        blank=True,
        help_text="What the key can access. None selected: all of /v1, nothing of /api.",
    )
    default_profile = models.CharField(
        max_length=200, blank=True, help_text="Used by requests that name no profile. Overrides the model's default."
    )
    allowed_models = ArrayField(models.CharField(max_length=200), default=list, blank=True, help_text=ANY_HELP)
    allowed_profiles = ArrayField(models.CharField(max_length=200), default=list, blank=True, help_text=ANY_HELP)
    may_steer_inline = models.BooleanField(
        "custom edits", default=False, help_text='Requests can send their own edits in "steering".'
    )
    shares_examples = models.BooleanField(
        "texts as feature examples",
        default=False,
        help_text="Texts of its requests can become feature examples, visible to users who can view request texts.",
    )
    log_content = models.CharField(
        "stored content",
        max_length=4,
        blank=True,
        choices=LogContent,
        help_text="What the log stores of prompts and answers. The server's setting applies if it stores less.",
    )
    log_retention_days = models.PositiveIntegerField(
        "log retention (days)",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(36_500)],
        help_text="Log rows are deleted after this time. If empty or longer than the server's setting, the "
        "server's setting applies.",
    )
    min_intensity = models.FloatField(
        default=0.0, help_text='Lowest "steering_intensity", from 0 to 1.', validators=[MinValueValidator(0.0)]
    )
    max_intensity = models.FloatField(
        default=MAX_INTENSITY,
        help_text=f'Highest "steering_intensity", from 1 to {MAX_INTENSITY:g}.',
        validators=[MaxValueValidator(MAX_INTENSITY)],
    )
    max_concurrent_requests = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: no limit.")
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: no limit.")
    tokens_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="Prompt and completion tokens. Empty: no limit."
    )
    requests_per_day = models.PositiveIntegerField(null=True, blank=True, help_text="Days in UTC. Empty: no limit.")
    tokens_per_day = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Prompt and completion tokens. Empty: no limit."
    )
    audio_seconds_per_day = models.PositiveIntegerField(
        null=True, blank=True, help_text="Seconds of audio, transcribed or spoken. Empty: no limit."
    )
    characters_per_day = models.PositiveIntegerField(
        null=True, blank=True, help_text="Characters turned into speech. Empty: no limit."
    )
    images_per_day = models.PositiveIntegerField(null=True, blank=True, help_text="Images made. Empty: no limit.")
    video_seconds_per_day = models.PositiveIntegerField(
        null=True, blank=True, help_text="Seconds of video made. Empty: no limit."
    )
    priority = models.SmallIntegerField(
        default=0, help_text="Requests of keys with a higher priority run first if MILLM_SCHEDULER_POLICY is priority."
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_reason = models.CharField(max_length=300, blank=True, editable=False)
    rotated_at = models.DateTimeField(null=True, blank=True, editable=False)
    old_digest = models.CharField(max_length=64, null=True, blank=True, unique=True, editable=False)
    old_prefix = models.CharField(max_length=16, blank=True, editable=False)
    old_valid_until = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)
        verbose_name = "API key"
        permissions = (("see_all_apikeys", "Can see everybody's API keys"),)
        constraints = (
            models.CheckConstraint(  # requests without an intensity run at 1
                condition=models.Q(min_intensity__gte=0, min_intensity__lte=1)
                & models.Q(max_intensity__gte=1, max_intensity__lte=MAX_INTENSITY),
                name="key_intensity_includes_one",
                violation_error_message="The range must include 1, the intensity of requests that name none.",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def is_usable(self) -> bool:
        has_expired = self.expires_at is not None and self.expires_at <= timezone.now()
        return self.revoked_at is None and not has_expired and self.owner.is_active

    @property
    def has_old_secret(self) -> bool:
        """Return whether the secret from before the last rotation is still valid."""
        return (
            self.old_digest is not None and self.old_valid_until is not None and self.old_valid_until > timezone.now()
        )

    def old_record(self, used: DayUse | None = None, *, is_manager: bool | None = None) -> KeyRecord:
        """Return the key's record under its old secret, which expires first."""
        ends = [end for end in (self.expires_at, self.old_valid_until) if end is not None]
        return replace(
            self.record(used, is_manager=is_manager),
            digest=self.old_digest or "",
            prefix=self.old_prefix,
            expires_at=min(ends),
        )

    def record(self, used: DayUse | None = None, *, is_manager: bool | None = None) -> KeyRecord:
        """Return the key as requests see it. ``used`` is today's usage.

        ``is_manager``: whether the owner may change models; None queries the database.
        """
        return KeyRecord(
            pk=self.pk,
            name=self.name,
            digest=self.digest,
            prefix=self.prefix,
            owner_id=self.owner_id,
            default_profile=self.default_profile,
            allowed_models=frozenset(self.allowed_models),
            allowed_profiles=frozenset(self.allowed_profiles),
            may_steer_inline=self.may_steer_inline,
            min_intensity=self.min_intensity,
            max_intensity=self.max_intensity,
            max_concurrent_requests=self.max_concurrent_requests,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            requests_per_day=self.requests_per_day,
            tokens_per_day=self.tokens_per_day,
            media_per_day={
                unit: limit for unit in MEDIA_UNITS if (limit := getattr(self, f"{unit}_per_day")) is not None
            },
            priority=self.priority,
            log_content=self.log_content,
            expires_at=self.expires_at,
            may_manage_models=self._may_manage_models(is_manager),
            scopes=frozenset(self.scopes),
            used=used,
        )

    def _may_manage_models(self, is_manager: bool | None) -> bool:  # noqa: FBT001 - None is an answer too
        is_in_scope = not self.scopes or Scope.MANAGE in self.scopes
        return is_in_scope and (self.owner.has_perm(MANAGE_MODELS) if is_manager is None else is_manager)


class KeyDay(models.Model):
    """Usage of a key on one day in UTC, as far as the request log has been written."""

    api_key = models.ForeignKey(ApiKey, verbose_name="API key", on_delete=models.CASCADE, related_name="days")
    day = models.DateField()
    requests = models.PositiveBigIntegerField(default=0)
    tokens = models.PositiveBigIntegerField(default=0)
    media = models.JSONField(default=dict, blank=True, db_default={}, help_text="Seconds, characters and images.")

    class Meta:
        ordering = ("-day", "api_key")
        verbose_name = "daily usage"
        verbose_name_plural = "daily usage"
        constraints = (models.UniqueConstraint(fields=("api_key", "day"), name="key_day_once"),)

    def __str__(self) -> str:
        return f"{self.api_key} on {self.day}"

    def use(self) -> DayUse:
        return DayUse(self.day, self.requests, self.tokens, self.media)


class RequestLog(models.Model):
    """One row per request to /v1, refused ones included. Names instead of foreign keys: rows outlive their objects."""

    class Source(models.TextChoices):
        CLIENT = "client", "client"
        CONSOLE = "console", "console"
        JOB = "job", "batch"

    id = models.CharField(primary_key=True, max_length=64)
    created_at = models.DateTimeField(db_index=True)
    api_key = models.ForeignKey(
        ApiKey, verbose_name="API key", null=True, blank=True, on_delete=models.SET_NULL, related_name="requests"
    )
    key_prefix = models.CharField(
        max_length=16,
        blank=True,
        db_default="",
        help_text="Prefix of the secret that was sent. Rows remain after the key is rotated or deleted.",
    )
    source = models.CharField(max_length=10, choices=Source, default=Source.CLIENT, db_default=Source.CLIENT)
    endpoint = models.CharField(max_length=60)
    model = models.CharField(max_length=200, blank=True)
    profile = models.CharField(max_length=200, blank=True, help_text="name@version")
    fingerprint = models.CharField(max_length=64, blank=True, help_text="Of the profile, its intensity and policies.")
    policies = models.CharField(max_length=500, blank=True, help_text="Those of the server, as name@version.")
    steering_expected = models.BigIntegerField(default=0)
    steering_applied = models.BigIntegerField(default=0)
    steering_effects = models.JSONField(
        default=list,
        blank=True,
        db_default=[],
        help_text="Measured effect at each site: share of tokens changed, and by how much.",
    )
    stream = models.BooleanField(default=False)
    status = models.PositiveSmallIntegerField(
        help_text="HTTP status; 499 if the client disconnected before the response."
    )
    error_code = models.CharField(max_length=100, blank=True)
    error_message = models.TextField(blank=True)
    finish_reason = models.CharField(max_length=30, blank=True)
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    media = models.JSONField(
        default=dict,
        blank=True,
        db_default={},
        help_text="Seconds of audio, characters, images, steps and seconds of video.",
    )
    queue_ms = models.FloatField(null=True, blank=True)
    ttft_ms = models.FloatField("TTFT ms", null=True, blank=True)
    total_ms = models.FloatField(null=True, blank=True)
    token_ms = ArrayField(
        models.PositiveIntegerField(),
        default=list,
        blank=True,
        db_default=[],
        help_text="Times at which tokens came, in ms after the request was queued; of long answers evenly chosen ones.",
    )
    client_address = models.GenericIPAddressField(null=True, blank=True)
    user = models.CharField(max_length=200, blank=True)
    parameters = models.JSONField(default=dict, blank=True)
    prompt = models.TextField(blank=True)
    completion = models.TextField(blank=True)

    class Meta:
        ordering = ("-created_at",)
        verbose_name = "request"
        verbose_name_plural = "request log"
        permissions = (
            ("view_prompt_text", "Can see texts of requests in the log"),
            ("export_requestlog", "Can export the request log"),
        )
        # Pages go by (created_at, id). Ties in time are few, so id is sorted at the end and lies in no index.
        indexes = (
            models.Index(fields=("model", "-created_at"), name="log_model_time"),
            models.Index(  # for names and name@version alike
                OpClass("profile", "varchar_pattern_ops"), models.F("created_at").desc(), name="log_profile_time"
            ),
            models.Index(fields=("api_key", "-created_at"), name="log_key_time"),
            models.Index(
                fields=("key_prefix", "-created_at"), condition=~models.Q(key_prefix=""), name="log_prefix_time"
            ),
            models.Index(fields=("status", "-created_at"), name="log_status_time"),
            models.Index(fields=("endpoint", "-created_at"), name="log_endpoint_time"),
            models.Index(
                fields=("source", "-created_at"), condition=~models.Q(source="client"), name="log_source_time"
            ),
            models.Index(fields=("total_ms",), name="log_duration"),
            models.Index(fields=("user", "-created_at"), condition=~models.Q(user=""), name="log_user_time"),
            models.Index(
                fields=("error_code", "-created_at"), condition=~models.Q(error_code=""), name="log_error_time"
            ),
            models.Index(  # answers that failed in the stream
                fields=("-created_at",),
                condition=models.Q(status__lt=400) & ~models.Q(error_code=""),
                name="log_failed_time",
            ),
            models.Index(  # rows whose texts are still to be pruned
                fields=("created_at",), condition=~models.Q(prompt="", completion=""), name="log_texts_time"
            ),
            GinIndex(LogWords("prompt", "completion"), name="log_words"),
            GinIndex(  # names and values that clients gave their requests
                OpClass(models.F(f"parameters__{METADATA}"), "jsonb_path_ops"),
                condition=models.Q(parameters__has_key=METADATA),
                name="log_metadata",
            ),
        )

    def __str__(self) -> str:
        return self.id
