"""Policies: profile versions that are applied to every request of their model."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from management_api.serializers import Flag, Integer, ReadSerializer, StrictInput, Text, VisibleRowField, described
from management_api.viewset import Resource
from steering.models import SteeringPolicy
from steering.profiles import lifecycle
from steering.visibility import visible_policies, visible_versions


class PolicyOut(ReadSerializer):
    name = serializers.CharField(source="version.__str__")
    model = serializers.IntegerField(source="version.profile.model_id")
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)

    class Meta:
        model = SteeringPolicy
        fields: tuple[str, ...] = (
            "id",
            "version",
            "name",
            "model",
            "position",
            "is_active",
            "reason",
            "created_by",
            "created_at",
        )


class PolicyChange(StrictInput):
    position = Integer(min_value=0, max_value=2**31 - 1, default=0)
    is_active = Flag(default=True)
    reason = Text()


class PolicyInput(PolicyChange):
    version = VisibleRowField(find=lambda user: visible_versions(user).select_related("profile__model"))


@described(tags=["Policies"])
class Policies(Resource):
    queryset = SteeringPolicy.objects.none()
    serializer_class = PolicyOut
    ordering = ("position", "pk")
    permissions = {
        "list": "steering.view_steeringpolicy",
        "retrieve": "steering.view_steeringpolicy",
        "create": "steering.add_steeringpolicy",
        "partial_update": "steering.change_steeringpolicy",
        "destroy": "steering.delete_steeringpolicy",
    }

    def rows(self, user: User) -> QuerySet[SteeringPolicy]:
        return visible_policies(user).select_related("version__profile__model", "created_by")

    @described(request=PolicyInput, responses={201: PolicyOut})
    def create(self, request: Request) -> Response:
        """Create a policy."""
        policy = SteeringPolicy(**self.read(PolicyInput))
        policy.full_clean(exclude=["created_by"])
        return self._saved(policy, status=201)

    @described(request=PolicyChange)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change a policy. To apply another version, create another policy."""
        policy = self.get_object()
        for name, value in self.read(PolicyChange, partial=True).items():
            setattr(policy, name, value)
        return self._saved(policy)

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a policy."""
        lifecycle.remove_policy(policy=self.get_object(), user=self.user)
        return Response(status=204)

    def _saved(self, policy: SteeringPolicy, status: int = 200) -> Response:
        saved = lifecycle.save_policy(policy=policy, user=self.user)
        return self.answer(self.get_queryset().get(pk=saved.pk), status)
