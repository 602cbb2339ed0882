"""Steering vector sets: list, share and delete."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from management_api.authentication import SharingInput, groups_named
from management_api.serializers import ReadSerializer, described
from management_api.viewset import Filters, Resource
from steering.models import PlainVector, VectorSet
from steering.sharing import share_with_groups
from steering.vectors.services import delete_vectors
from steering.visibility import SEE_ALL_VECTORS, visible_vector_sets

VIEW = "steering.view_vectorset"


class VectorOut(ReadSerializer):
    class Meta:
        model = PlainVector
        fields: tuple[str, ...] = ("layer", "site", "norm", "reference_norm")


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


@described(tags=["Vectors"])
class VectorSets(Resource):
    queryset = VectorSet.objects.none()
    serializer_class = VectorSetOut
    filters = VectorFilters
    ordering = ("name",)
    permissions = {
        "list": VIEW,
        "retrieve": VIEW,
        "destroy": "steering.delete_vectorset",
        "share": "steering.change_vectorset",
    }

    def rows(self, user: User) -> QuerySet[VectorSet]:
        return visible_vector_sets(user).select_related("created_by").prefetch_related("vectors", "shared_with")

    @described(parameters=[VectorFilters])
    def list(self, request: Request) -> Response:
        """List steering vector sets by name."""
        return super().list(request)

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a steering vector set. Fails while a version or a draft uses one of its vectors."""
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
