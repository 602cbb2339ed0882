"""Webhook endpoints and deliveries. Only the response that creates a secret contains it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.webhooks.models import EventType, WebhookAttempt, WebhookDelivery, WebhookEndpoint
from jobs.webhooks.services import (
    MAX_GRACE,
    CreatedSecret,
    change_endpoint,
    create_endpoint,
    delete_endpoints,
    redeliver,
    rotate_secret,
    send_test_event,
    visible_deliveries,
    visible_endpoints,
)
from management_api.serializers import Choice, Flag, Integer, ReadSerializer, StrictInput, Text, described
from management_api.viewset import Filters, Resource

VIEW = "webhooks.view_webhookendpoint"
CHANGE = "webhooks.change_webhookendpoint"


class WebhookOut(ReadSerializer):
    owner = serializers.CharField(source="owner.username")
    secret_hint = serializers.CharField(help_text="The end of the secret.")

    class Meta:
        model = WebhookEndpoint
        fields: tuple[str, ...] = (
            *("id", "owner", *WebhookEndpoint.SETTABLE, "secret_hint", "rotated_at", "old_valid_until", "created_at"),
        )


class NewWebhookOut(WebhookOut):
    secret = serializers.CharField(help_text="The signing secret. Returned only once.")

    class Meta(WebhookOut.Meta):
        fields: tuple[str, ...] = (*WebhookOut.Meta.fields, "secret")


class AttemptOut(ReadSerializer):
    class Meta:
        model = WebhookAttempt
        fields: tuple[str, ...] = ("at", "status", "error", "took_ms")


class DeliveryOut(ReadSerializer):
    endpoint = serializers.IntegerField(source="endpoint_id")

    class Meta:
        model = WebhookDelivery
        fields: tuple[str, ...] = (
            *("id", "endpoint", "event_id", "event_type", "data", "created_at", "state", "error", "num_attempts"),
            *("next_attempt_at", "give_up_at", "ended_at"),
        )


class DeliveryDetail(DeliveryOut):
    attempts = AttemptOut(many=True)

    class Meta(DeliveryOut.Meta):
        fields: tuple[str, ...] = (*DeliveryOut.Meta.fields, "attempts")


class WebhookInput(StrictInput):
    name = Text(max_length=100)
    url = Text(max_length=2_000, help_text="http or https, on a public address.")
    event_types = serializers.ListField(child=Choice(choices=EventType.choices), min_length=1, max_length=100)
    is_enabled = Flag(default=True)
    receives_all = Flag(
        default=False, help_text="Events of everybody's objects. Needs the permission to manage all webhooks."
    )


class RotateSecretInput(StrictInput):
    grace_s = Integer(
        min_value=0,
        max_value=int(MAX_GRACE.total_seconds()),
        default=0,
        help_text="Seconds for which events are signed with the old secret too; 0: not at all.",
    )


class WebhookFilters(Filters):
    name = serializers.CharField(max_length=100, required=False)


class DeliveryFilters(Filters):
    endpoint = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    state = serializers.ChoiceField(choices=WebhookDelivery.State.choices, required=False)
    event_type = serializers.CharField(max_length=40, required=False)
    event_id = serializers.CharField(max_length=64, required=False)


@described(tags=["Webhooks"])
class Webhooks(Resource):
    queryset = WebhookEndpoint.objects.none()
    serializer_class = WebhookOut
    filters = WebhookFilters
    ordering = ("name", "pk")
    permissions = {
        "list": VIEW,
        "retrieve": VIEW,
        "create": "webhooks.add_webhookendpoint",
        "partial_update": CHANGE,
        "rotate": CHANGE,
        "test": CHANGE,
        "destroy": "webhooks.delete_webhookendpoint",
    }

    def rows(self, user: User) -> QuerySet[WebhookEndpoint]:
        return visible_endpoints(user)

    @described(parameters=[WebhookFilters])
    def list(self, request: Request) -> Response:
        """List webhook endpoints by name."""
        return super().list(request)

    @described(request=WebhookInput, responses={201: NewWebhookOut})
    def create(self, request: Request) -> Response:
        """Create a webhook endpoint. The response contains its signing secret, which is not shown again."""
        endpoint = WebhookEndpoint(owner=self.user, **self.read(WebhookInput))
        return _uncached(create_endpoint(endpoint=endpoint, user=self.user), status=201)

    @described(request=WebhookInput)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change a webhook endpoint."""
        endpoint = self.get_object()
        for name, value in self.read(WebhookInput, partial=True).items():
            setattr(endpoint, name, value)
        change_endpoint(endpoint=endpoint, user=self.user)
        return self.answer(self.get_queryset().get(pk=endpoint.pk))

    @described(request=RotateSecretInput, responses=NewWebhookOut)
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, pk: str) -> Response:
        """Replace the signing secret. For ``grace_s`` seconds, events are signed with the old secret too."""
        grace = timedelta(seconds=self.read(RotateSecretInput)["grace_s"])
        return _uncached(rotate_secret(endpoint=self.get_object(), grace=grace, user=self.user))

    @described(request=None, responses={202: DeliveryOut})
    @action(detail=True, methods=["post"])
    def test(self, request: Request, pk: str) -> Response:
        """Send the endpoint an event of the type ``webhook.test``. Poll its delivery for the outcome."""
        return Response(DeliveryOut(send_test_event(endpoint=self.get_object())).data, status=202)

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a webhook endpoint with its deliveries."""
        delete_endpoints(endpoints=WebhookEndpoint.objects.filter(pk=self.get_object().pk), user=self.user)
        return Response(status=204)


@described(tags=["Webhooks"])
class WebhookDeliveries(Resource):
    queryset = WebhookDelivery.objects.none()
    serializer_class = DeliveryOut
    filters = DeliveryFilters
    permissions = {
        "list": "webhooks.view_webhookdelivery",
        "retrieve": "webhooks.view_webhookdelivery",
        "redeliver": CHANGE,
    }

    def rows(self, user: User) -> QuerySet[WebhookDelivery]:
        return visible_deliveries(user)

    @described(parameters=[DeliveryFilters])
    def list(self, request: Request) -> Response:
        """List webhook deliveries, newest first."""
        return super().list(request)

    @described(responses=DeliveryDetail)
    def retrieve(self, request: Request, pk: str) -> Response:
        """Return a delivery with its attempts."""
        return Response(DeliveryDetail(self.get_object()).data)

    @described(request=None, responses={202: DeliveryOut})
    @action(detail=True, methods=["post"])
    def redeliver(self, request: Request, pk: str) -> Response:
        """Send an event again, or at once if it is pending."""
        return Response(DeliveryOut(redeliver(delivery=self.get_object())).data, status=202)


def _uncached(created: CreatedSecret, status: int = 200) -> Response:
    """Return a response that must not be cached."""
    data: dict[str, Any] = {**WebhookOut(created.endpoint).data, "secret": created.secret}
    return Response(data, status=status, headers={"Cache-Control": "no-store"})
