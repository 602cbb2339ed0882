"""Steering vector sets: upload, extract, read, share and delete."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from core.errors import MillmError
from inference.interventions import SITE_KINDS, Site
from inference.models import LanguageModel
from management_api.authentication import SharingInput, groups_named
from management_api.resources.job import JobOut, job_started
from management_api.resources.sae import RecipeInput, take_recipe
from management_api.serializers import (
    MAX_TEXT,
    Choice,
    Flag,
    FormRowField,
    Integer,
    ReadSerializer,
    StrictInput,
    Text,
    VisibleRowField,
    described,
)
from management_api.uploads import SentFile, UploadResource, form
from management_api.viewset import Filters
from openai_api.http.errors import invalid
from steering.effects.job import request_vector_effects
from steering.models import PlainVector, VectorEffect, VectorSet
from steering.saes.files import file_sha256
from steering.sharing import share_with_groups
from steering.vectors.directions import METHODS
from steering.vectors.extraction import (
    MAX_PAIRS,
    MAX_SITES,
    POSITIONS,
    ExtractionParams,
    parse_pairs,
    request_extraction,
)
from steering.vectors.services import check_vectors, delete_vectors, read_vector_file, save_vectors
from steering.visibility import SEE_ALL_VECTORS, visible_vector_sets

VIEW = "steering.view_vectorset"
ADD = "steering.add_vectorset"
CHANGE = "steering.change_vectorset"
MAX_LAYER = 10_000
ENDINGS = (".safetensors", ".npz", ".gguf")


class VectorEffectOut(serializers.ModelSerializer[VectorEffect]):
    class Meta:
        model = VectorEffect
        fields: tuple[str, ...] = (
            *("strength", "kl", "push", "is_capped", "fluency", "curve", "samples", "output_tokens"),
            *("recipe", "measured_at"),
        )


class VectorOut(ReadSerializer):
    effect = VectorEffectOut(
        default=None, allow_null=True, help_text="Of adding the vector at its calibrated strength; null: not measured."
    )

    class Meta:
        model = PlainVector
        fields: tuple[str, ...] = ("layer", "site", "norm", "reference_norm", "effect")


class VectorSetOut(ReadSerializer):
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)
    shared_with: Any = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)
    vectors = VectorOut(many=True)

    class Meta:
        model = VectorSet
        fields: tuple[str, ...] = (
            *("id", "name", "model", "description", "origin", "checksum", "vectors"),
            *("shared_with", "created_by", "created_at"),
        )


class VectorFilters(Filters):
    model = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    name = serializers.CharField(max_length=100, required=False)


class VectorsForm(StrictInput):
    file = SentFile(help_text="safetensors, npz or GGUF.")
    name = serializers.CharField(max_length=100)
    model = FormRowField(find=lambda user: LanguageModel.objects.all())
    description = serializers.CharField(max_length=MAX_TEXT, default="", allow_blank=True)
    layer = serializers.IntegerField(
        min_value=0,
        max_value=MAX_LAYER,
        default=None,
        help_text="Read only this layer. Required if the file names none.",
    )


class ExtractionInput(StrictInput):
    name = Text(max_length=100)
    model = VisibleRowField(find=lambda user: LanguageModel.objects.all())
    pairs = serializers.ListField(child=serializers.JSONField(), max_length=MAX_PAIRS)
    layers = serializers.ListField(child=Integer(min_value=0, max_value=MAX_LAYER), min_length=1, max_length=MAX_SITES)
    site = Choice(choices=SITE_KINDS, default="resid_post")
    method = Choice(choices=METHODS, default="mean_difference")
    position = Choice(choices=POSITIONS, default="last")
    chat = Flag(default=True, help_text="Apply the chat template.")
    description = Text(default="", allow_blank=True)


class VectorEffectsInput(RecipeInput):
    replaces = Flag(default=False, help_text="Measure vectors again that have an effect of the same recipe.")


class ValuesOut(serializers.ModelSerializer[PlainVector]):
    values = serializers.SerializerMethodField(help_text="Little-endian float32 values as base64.")

    class Meta:
        model = PlainVector
        fields: tuple[str, ...] = ("layer", "site", "values", "norm", "reference_norm")

    def get_values(self, vector: PlainVector) -> str:
        return base64.b64encode(bytes(vector.data)).decode()


@described(tags=["Vectors"])
class VectorSets(UploadResource):
    queryset = VectorSet.objects.none()
    serializer_class = VectorSetOut
    filters = VectorFilters
    uploads = frozenset({"create"})
    ordering = ("name",)
    permissions = {
        "list": VIEW,
        "retrieve": VIEW,
        "values": VIEW,
        "create": ADD,
        "extract": ADD,
        "effects": CHANGE,
        "destroy": "steering.delete_vectorset",
        "share": CHANGE,
    }

    def rows(self, user: User) -> QuerySet[VectorSet]:
        return visible_vector_sets(user).select_related("created_by").prefetch_related("vectors__effect", "shared_with")

    @described(parameters=[VectorFilters])
    def list(self, request: Request) -> Response:
        """List steering vector sets by name."""
        return super().list(request)

    @described(request=form(VectorsForm), responses={201: VectorSetOut})
    def create(self, request: Request) -> Response:
        """Upload a file of steering vectors."""
        data = self.read(VectorsForm)
        sent = data["file"]
        if not sent.name.lower().endswith(ENDINGS):
            message = f"the file's name must end with one of {', '.join(ENDINGS)}."
            raise serializers.ValidationError({"file": message})
        try:
            path = Path(sent.file.name)
            found, checksum = read_vector_file(path, layer=data["layer"]), file_sha256(path)
            check_vectors(data["model"], found)
        except MillmError as error:
            raise invalid(error.message, param="file", code=error.code) from error
        rows = save_vectors(
            name=data["name"],
            model=data["model"],
            vectors=found,
            origin=sent.name,
            checksum=checksum,
            description=data["description"],
            user=self.user,
        )
        return self.answer(self.get_queryset().get(pk=rows.pk), status=201)

    @described(request=ExtractionInput, responses={202: JobOut})
    @action(detail=False, methods=["post"])
    def extract(self, request: Request) -> Response:
        """Start a job that computes a vector for each layer from pairs of prompts."""
        data = self.read(ExtractionInput)
        pairs = parse_pairs(data.pop("pairs"))
        layers, site = data.pop("layers"), data.pop("site")
        params = ExtractionParams(pairs=pairs, sites=tuple(Site(layer, site) for layer in layers), **data)
        return job_started(request_extraction(params=params, user=self.user))

    @described(responses=ValuesOut(many=True))
    @action(detail=True, methods=["get"])
    def values(self, request: Request, pk: str) -> Response:
        """Return the numbers of all vectors of the set."""
        rows = ValuesOut(self.get_object().vectors.all(), many=True).data
        return Response({"object": "list", "data": rows, "next": None})

    @described(request=VectorEffectsInput, responses={202: JobOut})
    @action(detail=True, methods=["post"])
    def effects(self, request: Request, pk: str) -> Response:
        """Start a job that measures the effects of the set's vectors on the model's output: the strength that moves it
        by the target, fluency and samples. They are in each vector's `effect`."""
        vector_set, data = self.get_object(), self.read(VectorEffectsInput)
        recipe = take_recipe(data)
        return job_started(request_vector_effects(vector_set=vector_set, recipe=recipe, owner=self.user, **data))

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a steering vector set. Fails while a version, a draft or a watch rule uses one of its vectors."""
        delete_vectors(vector_set=self.get_object(), user=self.user)
        return Response(status=204)

    @described(request=SharingInput)
    @action(detail=True, methods=["post"])
    def share(self, request: Request, pk: str) -> Response:
        """Replace the groups with access to the set. Only for its creator and users who may see all vectors."""
        vectors, names = self.get_object(), self.read(SharingInput)["groups"]
        groups = groups_named(self.user, vectors.created_by, names, see_all=SEE_ALL_VECTORS)
        share_with_groups(subject=vectors, groups=groups, user=self.user)
        return self.answer(self.get_queryset().get(pk=vectors.pk))
