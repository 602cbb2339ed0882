"""API keys: create, change, rotate, revoke and delete. Only the response that creates a secret contains it."""

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
from management_api.serializers import Integer, ReadSerializer, StrictInput, StrictModelInput, Text, described
from management_api.viewset import Filters, Resource
from openai_api.http.errors import forbidden
from openai_api.keys.record import MEDIA_UNITS
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
    *(f"{unit}_per_day" for unit in MEDIA_UNITS),
)


class KeyOut(ReadSerializer):
    owner = serializers.CharField(source="owner.username")

    class Meta:
        model = ApiKey
        fields: tuple[str, ...] = (
            *("id", "prefix", "owner", *SETTABLE, "rotated_at", "old_prefix", "old_valid_until"),
            *("revoked_at", "revoked_reason", "last_used_at", "created_at"),
        )


class NewKeyOut(KeyOut):
    key = serializers.CharField(help_text="The secret. ReadSerializer only once.")

    class Meta(KeyOut.Meta):
        fields: tuple[str, ...] = (*KeyOut.Meta.fields, "key")


class KeyChange(StrictModelInput):
    class Meta:
        model = ApiKey
        fields: tuple[str, ...] = SETTABLE


class KeyInput(KeyChange):
    owner = Text(max_length=150, required=False, help_text="Name of a user. Default: the user who creates the key.")

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
    reason = Text(default="", allow_blank=True, max_length=300, help_text="Stored with the key and in the audit trail.")


class KeyFilters(Filters):
    name = serializers.CharField(max_length=100, required=False)
    owner = serializers.CharField(max_length=150, required=False)
    revoked = serializers.BooleanField(required=False, allow_null=True, default=None)


@described(tags=["Keys"])
class Keys(Resource):
    queryset = ApiKey.objects.none()
    serializer_class = KeyOut
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

    def filter_rows(self, rows: QuerySet[Any], query: Any) -> QuerySet[Any]:
        if query["revoked"] is not None:
            rows = rows.filter(revoked_at__isnull=not query["revoked"])
        if "owner" in query:
            rows = rows.filter(owner__username=query["owner"])
        return rows.filter(name=query["name"]) if "name" in query else rows

    @described(parameters=[KeyFilters])
    def list(self, request: Request) -> Response:
        """List API keys by name."""
        return super().list(request)

    @described(request=KeyInput, responses={201: NewKeyOut})
    def create(self, request: Request) -> Response:
        """Create an API key. The response contains its secret, which is not shown again."""
        data = self.read(KeyInput)
        owner = self._owner(data.pop("owner", self.user.get_username()))
        created = save_new_api_key(api_key=ApiKey(owner=owner, **data), user=self.user)
        return _uncached(created.api_key, created.plain, status=201)

    @described(request=KeyChange)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change the permissions and limits of a key."""
        key = self.get_object()
        for name, value in self.read(KeyChange, instance=key, partial=True).items():
            setattr(key, name, value)
        key.full_clean()
        change_api_key(api_key=key, user=self.user)
        return self.answer(key)

    @described(request=RotateInput, responses=NewKeyOut)
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, pk: str) -> Response:
        """Replace the secret of a key. The old secret stays valid for ``grace_s`` seconds."""
        key = self.get_object()
        grace = timedelta(seconds=self.read(RotateInput)["grace_s"])
        created = rotate_api_key(api_key=key, grace=grace, user=self.user)
        return _uncached(created.api_key, created.plain)

    @described(request=RevokeInput)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: str) -> Response:
        """Revoke a key permanently. Its old secret stops working too."""
        key = self.get_object()
        reason = self.read(RevokeInput)["reason"]
        revoke_api_keys(keys=ApiKey.objects.filter(pk=key.pk), reason=reason, user=self.user)
        return self.answer(self.get_queryset().get(pk=key.pk))

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a key. Its rows in the request log are kept."""
        delete_api_keys(keys=ApiKey.objects.filter(pk=self.get_object().pk), user=self.user)
        return Response(status=204)

    def _owner(self, name: str) -> User:
        if name == self.user.get_username():
            return self.user
        if not self.user.has_perm(SEE_ALL_KEYS):
            raise forbidden("You can only create keys for yourself.", code="permission_denied", param="owner")
        owner = User.objects.filter(username=name).first()
        if owner is None:
            raise MillmError(f"The user `{name[:100]}` does not exist.", status=404, code="not_found", param="owner")
        return owner


def _uncached(api_key: ApiKey, plain: str, status: int = 200) -> Response:
    """Return a response that must not be cached."""
    data = {**KeyOut(api_key).data, "key": plain}
    return Response(data, status=status, headers={"Cache-Control": "no-store"})
