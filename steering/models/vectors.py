"""Steering vectors of a model, from a file or computed from pairs of prompts."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, cast

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models.functions import Now

from inference.interventions import Site, SiteKind
from inference.models import LanguageModel

if TYPE_CHECKING:
    from collections.abc import Sequence

_SITES = (
    ("resid_pre", "residual before the layer"),
    ("resid_post", "residual after the layer"),
    ("mlp_in", "input of the MLP, behind the norm before it"),
    ("mlp_raw", "output of the MLP, before any norm behind it"),
    ("mlp_out", "output of the MLP, as it joins the residual"),
    ("attn_out", "attention heads, before their projection"),
)


class VectorSet(models.Model):
    """A set of vectors, at most one for each site, from one file or one extraction."""

    name = models.SlugField(max_length=100, unique=True)
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="vector_sets")
    description = models.TextField(blank=True)
    origin = models.CharField(max_length=300, editable=False, help_text="File or method that the vectors come from.")
    checksum = models.CharField(max_length=64, editable=False, help_text="SHA-256 of the file's content.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    shared_with = models.ManyToManyField(Group, blank=True, related_name="+")

    class Meta:
        ordering = ("name",)
        verbose_name = "vector set"
        permissions = (("see_all_vectorsets", "Can see everybody's vector sets"),)

    def __str__(self) -> str:
        return self.name


class PlainVector(models.Model):
    """A steering vector. ``data`` is float32, little-endian, and not normalised."""

    vector_set = models.ForeignKey(VectorSet, on_delete=models.CASCADE, related_name="vectors")
    layer = models.PositiveIntegerField()
    site = models.CharField(max_length=20, choices=_SITES, default="resid_post")
    data = models.BinaryField()
    norm = models.FloatField(help_text="L2 norm.")
    reference_norm = models.FloatField(
        null=True, blank=True, help_text="Mean norm of the residual at the site, if measured."
    )

    class Meta:
        ordering = ("vector_set", "layer", "site")
        constraints = (models.UniqueConstraint(fields=("vector_set", "layer", "site"), name="vector_unique_per_site"),)

    def __str__(self) -> str:
        return f"{self.vector_set.name} at {self.place.label}"

    @property
    def place(self) -> Site:
        return Site(self.layer, cast("SiteKind", self.site))

    @property
    def values(self) -> tuple[float, ...]:
        return struct.unpack(f"<{len(self.data) // 4}f", bytes(self.data))

    @staticmethod
    def pack(values: Sequence[float]) -> bytes:
        return struct.pack(f"<{len(values)}f", *values)


class VersionVector(models.Model):
    """A vector that a version needs, which therefore cannot be deleted."""

    version = models.ForeignKey("steering.ProfileVersion", on_delete=models.PROTECT, related_name="vector_links")
    vector = models.ForeignKey(PlainVector, on_delete=models.PROTECT, related_name="version_links")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("version", "vector"), name="version_vector_unique"),)

    def __str__(self) -> str:
        return f"{self.version} needs {self.vector}"
