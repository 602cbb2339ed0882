"""API keys: made, changed, rotated, revoked. The key itself is in the answer that makes it, and nowhere else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from core.errors import MillmError
from management_api.serializers import Integer, Shown, StrictInput, StrictModelInput, Text, described
from management_api.viewset import Filters, Resource
from openai_api.http.errors import forbidden
from openai_api.keys.services import (
    MAX_GRACE,
    SEE_ALL_KEYS,
    change_api_key,
    delete_api_keys,
    revoke_api_keys,
    rotate_api_key,
    save_new_api_key,
    visible_keys,
)
from openai_api.models import ApiKey

CHANGE = "openai_api.change_apikey"
SETTABLE = (
    *("name", "default_profile", "allowed_models", "allowed_profiles", "may_steer_inline", "scopes"),
    *("shares_examples", "min_intensity", "max_intensity", "max_concurrent_requests", "requests_per_minute"),
    *("tokens_per_minute", "requests_per_day", "tokens_per_day", "priority", "expires_at"),
)


class KeyShown(Shown):
    owner = serializers.CharField(source="owner.username")

    class Meta:
        model = ApiKey
        fields: tuple[str, ...] = (
            *("id", "prefix", "owner", *SETTABLE, "rotated_at", "old_prefix", "old_valid_until"),
            *("revoked_at", "revoked_reason", "last_used_at", "created_at"),
        )


class NewKeyShown(KeyShown):
    key = serializers.CharField(help_text="Shown once.")

    class Meta(KeyShown.Meta):
        fields: tuple[str, ...] = (*KeyShown.Meta.fields, "key")


class KeyChange(StrictModelInput):
    class Meta:
        model = ApiKey
        fields: tuple[str, ...] = SETTABLE


class KeyInput(KeyChange):
    owner = Text(max_length=150, required=False, help_text="A user's name. Default: the user who creates the key.")

    class Meta(KeyChange.Meta):
        fields: tuple[str, ...] = (*SETTABLE, "owner")


class RotateInput(StrictInput):
    grace_s = Integer(
        min_value=0,
        max_value=int(MAX_GRACE.total_seconds()),
        default=0,
        help_text="Seconds for which the old secret stays valid; 0: not at all.",
    )


class RevokeInput(StrictInput):
    reason = Text(default="", allow_blank=True, max_length=300, help_text="Kept with the key and in the trail.")


class KeyFilters(Filters):
    name = serializers.CharField(max_length=100, required=False)
    owner = serializers.CharField(max_length=150, required=False)
    revoked = serializers.BooleanField(required=False, allow_null=True, default=None)


@described(tags=["Keys"])
class Keys(Resource):
    queryset = ApiKey.objects.none()
    serializer_class = KeyShown
    filters = KeyFilters
    ordering = ("name", "pk")
    permissions = {
        "list": "openai_api.view_apikey",
        "retrieve": "openai_api.view_apikey",
        "create": "openai_api.add_apikey",
        "partial_update": CHANGE,
        "rotate": CHANGE,
        "revoke": CHANGE,
        "destroy": "openai_api.delete_apikey",
    }

    def rows(self, user: User) -> QuerySet[ApiKey]:
        return visible_keys(user).select_related("owner")

    def narrowed(self, rows: QuerySet[Any], query: Any) -> QuerySet[Any]:
        if query["revoked"] is not None:
            rows = rows.filter(revoked_at__isnull=not query["revoked"])
        if "owner" in query:
            rows = rows.filter(owner__username=query["owner"])
        return rows.filter(name=query["name"]) if "name" in query else rows

    @described(parameters=[KeyFilters])
    def list(self, request: Request) -> Response:
        return super().list(request)

    @described(request=KeyInput, responses={201: NewKeyShown})
    def create(self, request: Request) -> Response:
        data = self.read(KeyInput)
        owner = self._owner(data.pop("owner", self.user.get_username()))
        created = save_new_api_key(api_key=ApiKey(owner=owner, **data), user=self.user)
        return _once(created.api_key, created.plain, status=201)

    @described(request=KeyChange)
    def partial_update(self, request: Request, pk: str) -> Response:
        key = self.get_object()
        for name, value in self.read(KeyChange, instance=key, partial=True).items():
            setattr(key, name, value)
        key.full_clean()
        change_api_key(api_key=key, user=self.user)
        return self.answer(key)

    @described(request=RotateInput, responses=NewKeyShown)
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, pk: str) -> Response:
        """Create a new secret with the same rights. The old one may stay valid until clients have switched."""
        key = self.get_object()
        grace = timedelta(seconds=self.read(RotateInput)["grace_s"])
        created = rotate_api_key(api_key=key, grace=grace, user=self.user)
        return _once(created.api_key, created.plain)

    @described(request=RevokeInput)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: str) -> Response:
        """Requests with it are refused from now on, for good; with its old secret too."""
        key = self.get_object()
        reason = self.read(RevokeInput)["reason"]
        revoke_api_keys(keys=ApiKey.objects.filter(pk=key.pk), reason=reason, user=self.user)
        return self.answer(self.get_queryset().get(pk=key.pk))

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a key. Its log rows stay, without the key."""
        delete_api_keys(keys=ApiKey.objects.filter(pk=self.get_object().pk), user=self.user)
        return Response(status=204)

    def _owner(self, name: str) -> User:
        if name == self.user.get_username():
            return self.user
        if not self.user.has_perm(SEE_ALL_KEYS):
            raise forbidden("You may make keys of your own only.", code="permission_denied", param="owner")
        owner = User.objects.filter(username=name).first()
        if owner is None:
            raise MillmError(f"There is no user {name[:100]!r}.", status=404, code="not_found", param="owner")
        return owner


def _once(api_key: ApiKey, plain: str, status: int = 200) -> Response:
    """Return a response that must not be cached."""
    data = {**KeyShown(api_key).data, "key": plain}
    return Response(data, status=status, headers={"Cache-Control": "no-store"})
