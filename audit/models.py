"""The table of audit events."""

from __future__ import annotations

from typing import Any, NoReturn

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Now

EVENT_IS_IMMUTABLE = "Events of the audit trail are never changed or deleted."
MAX_SUBJECT = 300


class AuditEventQuerySet(models.QuerySet["AuditEvent"]):
    """Events can only be added and read."""

    def update(self, **values: Any) -> NoReturn:
        raise ValidationError(EVENT_IS_IMMUTABLE)

    def delete(self) -> NoReturn:
        raise ValidationError(EVENT_IS_IMMUTABLE)


class AuditEvent(models.Model):
    """Who changed what, and when. Uses names instead of foreign keys, because events outlive the objects."""

    class Action(models.TextChoices):
        ADD = "add", "added"
        CHANGE = "change", "changed"
        DELETE = "delete", "deleted"
        LOAD = "load", "loaded"
        UNLOAD = "unload", "unloaded"
        PUBLISH = "publish", "published"
        ROLL_BACK = "roll_back", "rolled back"
        ARCHIVE = "archive", "archived"
        UNARCHIVE = "unarchive", "unarchived"
        DEFAULT = "default", "default changed"
        POLICY = "policy", "policy changed"
        REVIEW = "review", "review"
        IMPORT = "import", "imported"
        EXPORT = "export", "exported"
        READ = "read", "text read"
        VECTORS = "vectors", "vectors changed"
        WATCH = "watch", "watch rule changed"
        KEY = "key", "key permissions changed"
        ROTATE = "rotate", "rotated"
        REVOKE = "revoke", "revoked"
        CANCEL = "cancel", "cancelled"
        RETRY = "retry", "retried"

    at = models.DateTimeField(db_default=Now(), db_index=True)
    user = models.CharField(max_length=150, blank=True, help_text="Empty: not logged in.")
    action = models.CharField(max_length=20, choices=Action)
    kind = models.CharField("object", max_length=100, blank=True, help_text="For example inference.languagemodel.")
    object_id = models.CharField(max_length=64, blank=True)
    subject = models.CharField(max_length=MAX_SUBJECT, help_text="The object's name at the time.")
    model = models.CharField(max_length=200, blank=True, help_text="The language model, if any.")
    detail = models.TextField(blank=True)
    changes = models.JSONField(default=dict, blank=True, help_text="Fields with their values before and after.")
    key = models.CharField("API key", max_length=120, blank=True, help_text="The request's key, if any.")
    command = models.CharField(max_length=120, blank=True, help_text="The command or job that did it.")
    request_id = models.CharField(max_length=64, blank=True)

    objects = AuditEventQuerySet.as_manager()

    class Meta:
        ordering = ("-pk",)
        indexes = (
            models.Index(fields=("user", "-id"), name="audit_user"),
            models.Index(fields=("action", "-id"), name="audit_action"),
            models.Index(fields=("kind", "object_id", "-id"), name="audit_object"),
        )

    def __str__(self) -> str:
        return f"{self.subject}: {self.get_action_display()}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise ValidationError(EVENT_IS_IMMUTABLE)
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValidationError(EVENT_IS_IMMUTABLE)
