"""The console's models."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Literal

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from console.load.load import Load
from openai_api.models import RequestLog
from steering.models import Feature, PlainVector, VectorSet

MINUTE_S = 60
HOUR_S = 3_600
COUNTED = (
    "requests",
    "errors",
    "prompt_tokens",
    "generation_tokens",
    "first_tokens",
    "gaps",
    "steps",
    "sequences",
    "running",
    "waiting",
    "kv",
    "profiles",
    "keys",
)


class LoadSample(models.Model):
    """The load of a serving process in a minute or hour, stored so that pages need not count the request log."""

    process = models.UUIDField(help_text="Of one start of one process.")
    begins_at = models.DateTimeField()
    span_s = models.PositiveIntegerField()
    requests = models.PositiveBigIntegerField()
    errors = models.JSONField(help_text="Requests that ended with an error, by its code.")
    prompt_tokens = models.PositiveBigIntegerField()
    generation_tokens = models.PositiveBigIntegerField()
    first_tokens = ArrayField(models.PositiveBigIntegerField(), help_text="Times to the first token, by bucket.")
    gaps = ArrayField(models.PositiveBigIntegerField(), help_text="Times between tokens, by bucket.")
    steps = models.PositiveBigIntegerField()
    sequences = models.PositiveBigIntegerField(help_text="Of all steps together.")
    running = models.PositiveIntegerField(help_text="The most at once.")
    waiting = models.PositiveIntegerField(help_text="The most at once.")
    kv = models.FloatField(help_text="The largest share in use, 0 to 1.")
    profiles = models.JSONField(help_text="Requests by published version.")
    keys = models.JSONField(help_text="Requests by key.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("span_s", "begins_at", "process"), name="load_sample_once"),)

    def __str__(self) -> str:
        return f"{self.begins_at:%Y-%m-%d %H:%M}, {self.span_s} s"

    def load(self) -> Load:
        values = {name: getattr(self, name) for name in COUNTED}
        return Load(**{**values, "first_tokens": tuple(self.first_tokens), "gaps": tuple(self.gaps)})


class Playground(models.Model):
    """Defines the permission to use the playground. Has no table."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = (("use_playground", "Can use the playground"),)

    def __str__(self) -> str:
        return "Playground"


class ServerSettings(models.Model):
    """Defines the permission to view the server's settings. Has no table."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = (("view_settings", "Can view the server's settings"),)

    def __str__(self) -> str:
        return "Server settings"


class SingleSignOnIdentity(models.Model):
    """A person at an OpenID Connect provider, and the user that signs in as that person."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="single_sign_on")
    issuer = models.CharField(max_length=500)
    subject = models.CharField(max_length=255, help_text="The provider's `sub`, which never changes.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "single sign-on"
        verbose_name_plural = "single sign-on"
        constraints = (models.UniqueConstraint(fields=["issuer", "subject"], name="single_sign_on_is_unique"),)

    def __str__(self) -> str:
        return f"{self.subject} at {self.issuer}"


class UserPreferences(models.Model):
    """What a user chose for their own console."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="preferences")
    hides_first_steps = models.BooleanField(default=False)

    class Meta:
        verbose_name_plural = "user preferences"
        default_permissions = ()

    def __str__(self) -> str:
        return f"preferences of {self.user}"


SUBJECTS = ("feature", "vector_set", "request")
Subject = Feature | VectorSet | RequestLog


def _one_subject(name: str, subjects: tuple[str, ...] = SUBJECTS) -> models.CheckConstraint:
    only = [Q(**{f"{each}__isnull": each != subject for each in subjects}) for subject in subjects]
    return models.CheckConstraint(condition=reduce(or_, only), name=name)


class SubjectRow(models.Model):
    """A row about a feature, a vector set or a logged request, deleted with it."""

    feature = models.ForeignKey(Feature, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    vector_set = models.ForeignKey(VectorSet, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    request = models.ForeignKey(RequestLog, null=True, blank=True, on_delete=models.CASCADE, related_name="%(class)ss")

    class Meta:
        abstract = True

    @property
    def subject(self) -> Subject:
        found = self.feature or self.vector_set or self.request
        assert found is not None, "the database checks it"
        return found


class SavedList(models.Model):
    """A named list of features, vectors and requests, shared by all staff with access to them."""

    name = models.CharField(max_length=100, unique=True)
    description = models.TextField(max_length=2000, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class SavedItem(SubjectRow):
    """An entry of a list."""

    saved_list = models.ForeignKey(SavedList, on_delete=models.CASCADE, related_name="items")
    note = models.CharField(max_length=500, blank=True)
    added_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    added_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-added_at", "-pk")
        default_permissions = ()
        constraints = (
            _one_subject("saved_item_has_one_subject"),
            *(
                models.UniqueConstraint(fields=("saved_list", subject), name=f"saved_{subject}_once")
                for subject in SUBJECTS
            ),
        )

    def __str__(self) -> str:
        return f"{self.subject} in {self.saved_list}"


class Comment(SubjectRow):
    """A remark of a user. ``username`` outlives the account."""

    author = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    username = models.CharField(max_length=150)
    text = models.TextField(max_length=4000)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("created_at", "pk")
        default_permissions = ("view", "add", "delete")
        constraints = (_one_subject("comment_has_one_subject"),)

    def __str__(self) -> str:
        return f"comment on {self.subject}"


SharedSubject = Feature | PlainVector


class SharedPage(models.Model):
    """A feature or vector whose page is public to all who know its link. ``token`` is the secret part of the link."""

    feature = models.OneToOneField(Feature, null=True, on_delete=models.CASCADE, related_name="+")
    vector = models.OneToOneField(PlainVector, null=True, on_delete=models.CASCADE, related_name="+")
    token = models.CharField(max_length=43, unique=True, editable=False)
    lens = models.JSONField(null=True, editable=False, help_text="Promoted and suppressed tokens, with their logits.")
    shared_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    shared_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-shared_at", "-pk")
        default_permissions = ("view", "add")
        verbose_name = "public page"
        constraints = (_one_subject("shared_page_has_one_subject", ("feature", "vector")),)

    def __str__(self) -> str:
        return f"public page of {self.subject}"

    @property
    def kind(self) -> Literal["feature", "vector"]:
        return "feature" if self.feature_id is not None else "vector"

    @property
    def subject(self) -> SharedSubject:
        found = self.feature or self.vector
        assert found is not None, "the database checks it"
        return found
