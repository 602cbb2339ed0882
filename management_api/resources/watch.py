"""Watch rules, which monitor every request of a model, and their events."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from inference.interventions import SITE_KINDS
from management_api.serializers import (
    Choice,
    Flag,
    Integer,
    Number,
    ReadSerializer,
    StrictInput,
    Text,
    VisibleRowField,
    described,
)
from management_api.viewset import Filters, Resource
from openai_api.http.errors import invalid
from steering.models import Feature, PlainVector, WatchEvent, WatchRule
from steering.visibility import visible_vectors
from steering.watch import services as watch_services

MAX_LAYER = 10_000


class VectorPlace(serializers.Serializer[Any]):
    set = serializers.CharField(source="vector_set.name")
    layer = serializers.IntegerField()
    site = serializers.CharField()


class RuleOut(ReadSerializer):
    model = serializers.IntegerField(source="model.pk")
    vector = VectorPlace(allow_null=True)
    subject = serializers.CharField(help_text="The feature or vector in words.")
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)

    class Meta:
        model = WatchRule
        fields: tuple[str, ...] = (
            *("id", "name", "model", "feature", "vector", "bias", "sigmoid", "subject", "threshold", "unit"),
            *("raw_threshold", "action", "is_active", "problem", "reason", "created_by", "created_at"),
        )


class EventOut(ReadSerializer):
    feature = serializers.IntegerField(allow_null=True, help_text="The feature's index in the SAE.")

    class Meta:
        model = WatchEvent
        fields: tuple[str, ...] = (
            *("id", "at", "rule", "action", "model", "sae", "feature", "label", "vector", "threshold", "value"),
            *("num_tokens", "place", "in_prompt", "profile", "request_id"),
        )


class RuleFilters(Filters):
    model = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    name = serializers.CharField(max_length=100, required=False)
    action = serializers.ChoiceField(choices=WatchRule.Action.choices, required=False)


class EventFilters(Filters):
    rule = serializers.CharField(max_length=100, required=False)
    model = serializers.CharField(max_length=200, required=False, help_text="The model's name.")
    request_id = serializers.CharField(max_length=100, required=False)


class VectorRef(StrictInput):
    set = Text(max_length=100, help_text="The name of a vector set.")
    layer = Integer(min_value=0, max_value=MAX_LAYER, required=False, help_text="Of a set with several vectors.")
    site = Choice(choices=SITE_KINDS, required=False, help_text="Of a set with several vectors of the layer.")


class RuleChange(StrictInput):
    bias = Number(default=0.0, help_text="Of a linear probe: the value is the product `h v` plus the bias.")
    sigmoid = Flag(default=False, help_text="Of a logistic probe: the value is a probability.")
    threshold = Number(default=1.0, help_text="The rule matches above this value.")
    unit = Choice(
        choices=WatchRule.Unit.choices,
        required=False,
        help_text="Default: `max_act` for a feature. A vector's threshold is `raw`.",
    )
    action = Choice(choices=WatchRule.Action.choices, default=WatchRule.Action.ALERT)
    is_active = Flag(default=True)
    reason = Text(help_text="Why every request is monitored. Shown in the audit trail.")


class RuleInput(RuleChange):
    name = Text(max_length=100, help_text="Shown in responses and events.")
    feature = VisibleRowField(
        find=lambda user: Feature.objects.select_related("sae__model"), required=False, help_text="A feature's id."
    )
    vector = VectorRef(required=False, help_text="Instead of a feature.")


@described(tags=["Watch rules"])
class WatchRules(Resource):
    queryset = WatchRule.objects.none()
    serializer_class = RuleOut
    filters = RuleFilters
    ordering = ("name",)
    permissions = {
        "list": "steering.view_watchrule",
        "retrieve": "steering.view_watchrule",
        "create": "steering.add_watchrule",
        "partial_update": "steering.change_watchrule",
        "destroy": "steering.delete_watchrule",
    }

    def rows(self, user: User) -> QuerySet[WatchRule]:
        rows = WatchRule.objects.select_related("feature__sae__model", "vector__vector_set__model", "created_by")
        return rows.defer("vector__data")

    def filter_rows(self, rows: QuerySet[WatchRule], query: Any) -> QuerySet[WatchRule]:
        rest = {name: value for name, value in query.items() if name != "model"}
        found = rows.filter(**rest)
        return watch_services.rules_of(query["model"], found) if "model" in query else found

    @described(parameters=[RuleFilters])
    def list(self, request: Request) -> Response:
        """List watch rules by name."""
        return super().list(request)

    @described(request=RuleInput, responses={201: RuleOut})
    def create(self, request: Request) -> Response:
        """Create a watch rule on a feature, or on a vector of a registered set."""
        data = self.read(RuleInput)
        place = data.pop("vector", None)
        rule = WatchRule(**data, vector=None if place is None else self._vector(place))
        if "unit" not in data:
            rule.unit = watch_services.default_unit(rule)
        return self._saved(rule, status=201)

    @described(request=RuleChange)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change a watch rule. To monitor something else, create another rule."""
        rule = self.get_object()
        for name, value in self.read(RuleChange, partial=True).items():
            setattr(rule, name, value)
        return self._saved(rule)

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a watch rule. Its events remain."""
        watch_services.remove_rule(rule=self.get_object(), user=self.user)
        return Response(status=204)

    def _vector(self, place: dict[str, Any]) -> PlainVector:
        """Return the vector, if the user may see it. The name of its set is unique among all models."""
        found = visible_vectors(self.user).filter(vector_set__name=place["set"]).select_related("vector_set__model")
        if not found.exists():
            message = f"There is no vector set `{place['set']}`, or you do not have access to it."
            raise invalid(message, param="vector.set", code="vector_set_not_found")
        rows = list(found.filter(**{name: place[name] for name in ("layer", "site") if name in place})[:2])
        if len(rows) != 1:
            places = ", ".join(one.place.label for one in found.defer("data")[:10])
            message = f"Expected `layer` and `site` of one vector of `{place['set']}`. Available: {places}."
            raise invalid(message, param="vector.layer")
        return rows[0]

    def _saved(self, rule: WatchRule, status: int = 200) -> Response:
        watch_services.check_rule(rule=rule)
        rule.full_clean(exclude=["created_by", "feature", "vector"])
        saved = watch_services.save_rule(rule=rule, user=self.user)
        return self.answer(self.get_queryset().get(pk=saved.pk), status)


@described(tags=["Watch rules"])
class WatchEvents(Resource):
    queryset = WatchEvent.objects.none()
    serializer_class = EventOut
    filters = EventFilters
    ordering = ("-at", "-pk")
    permissions = {"list": "steering.view_watchevent", "retrieve": "steering.view_watchevent"}

    def rows(self, user: User) -> QuerySet[WatchEvent]:
        return WatchEvent.objects.all()

    @described(parameters=[EventFilters])
    def list(self, request: Request) -> Response:
        """List watch events, newest first."""
        return super().list(request)
