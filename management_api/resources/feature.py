"""Features: search, retrieve, label and explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from django.contrib.auth.models import User
from django.db.models import F, QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from core.ids import key_in
from management_api.errors import not_found
from management_api.paging import read_limit
from management_api.serializers import Integer, Number, ReadSerializer, StrictInput, Text, described
from management_api.viewset import Filters, Resource
from steering.effects.store import not_measured
from steering.errors import EffectNotMeasuredError
from steering.features.explanations import (
    ShownExplanation,
    add_explanation,
    delete_explanation,
    explanations_of,
    use_as_label,
    vote,
)
from steering.features.neighbours import find_cofiring
from steering.features.ranked_search import FeatureSearch, search_features
from steering.features.search import FeatureQuerySet
from steering.features.services import label_feature
from steering.models import Feature, FeatureEffect, FeatureExplanation

NOT_LISTED = ("traffic_examples", "examples", "example_bands", "cofiring", "histogram")  # some kilobytes per row


class FeatureOut(ReadSerializer):
    steers_well = serializers.FloatField(
        source="steering_score",
        allow_null=True,
        help_text="How well it steers, 0 to 1; null where the effect was not measured.",
    )

    output_tokens = serializers.ListField(
        child=serializers.ListField(),
        help_text="Tokens that steering with it makes likely, each with its part of the divergence in nats.",
    )

    class Meta:
        model = Feature
        fields: tuple[str, ...] = (
            *("id", "sae", "index", "label", "label_source", "label_score", "description", "max_activation"),
            *("max_activation_source", "density", "decoder_norm", "top_tokens", "output_tokens", "steers_well"),
        )


class FoundFeatureOut(FeatureOut):
    relevance = serializers.FloatField(
        allow_null=True,
        help_text="With `meaning`: cosine similarity of query and label, 0 to 1. By words: 1 for the best match.",
    )

    class Meta(FeatureOut.Meta):
        fields: tuple[str, ...] = (*FeatureOut.Meta.fields, "relevance")


class Quantiles(TypedDict):
    """p99 and p99.9 of the feature's activations above 0, their number, and the corpus."""

    p99: float
    p999: float
    n: int
    corpus: str


class CofiringOut(TypedDict):
    """A feature active on the same tokens: phi, the correlation of "active" of both, and on how many tokens."""

    index: int
    label: str
    phi: float
    tokens: int


class CofiringsOut(TypedDict):
    num_tokens: int
    features: list[CofiringOut]


class BandExample(TypedDict):
    tokens: list[str]
    values: list[float]


class ExampleBandOut(TypedDict):
    """Examples with a largest activation above ``low`` and at most ``high`` times that of the feature."""

    low: float
    high: float
    num_texts: int
    examples: list[BandExample]


class FeatureDetail(FeatureOut):
    cofiring = serializers.SerializerMethodField(
        help_text="The features active on the same tokens; null if the SAE was not measured since this figure exists."
    )
    example_bands = serializers.SerializerMethodField(
        help_text="Examples by activation; empty if the SAE was not measured, or the feature never active."
    )
    activation_quantiles = serializers.SerializerMethodField(
        help_text="Computed from the histogram; null if the SAE was not measured, or the feature never active."
    )

    # Without the examples from traffic: they are texts of requests, which only the console shows.
    class Meta(FeatureOut.Meta):
        fields: tuple[str, ...] = (
            *FeatureOut.Meta.fields,
            *("examples", "examples_source", "example_bands", "cofiring", "histogram", "activation_quantiles"),
        )

    def get_cofiring(self, feature: Feature) -> CofiringsOut | None:
        found = find_cofiring(feature)
        if found is None:
            return None
        rows = [CofiringOut(index=one.index, label=one.label, phi=one.phi, tokens=one.tokens) for one in found.features]
        return CofiringsOut(num_tokens=found.num_tokens, features=rows)

    def get_example_bands(self, feature: Feature) -> list[ExampleBandOut]:
        bands: list[ExampleBandOut] = feature.example_bands
        return bands

    def get_activation_quantiles(self, feature: Feature) -> Quantiles | None:
        found = feature.quantiles
        if found is None:
            return None
        return Quantiles(p99=found.p99, p999=found.p999, n=found.n, corpus=feature.sae.corpus)


class EffectOut(ReadSerializer):
    strength_in_max_act = serializers.FloatField(
        source="in_max_act",
        allow_null=True,
        help_text="The calibrated strength in max activations; null without a max activation.",
    )

    class Meta:
        model = FeatureEffect
        fields: tuple[str, ...] = (
            *("strength", "strength_in_max_act", "kl", "push", "is_capped", "output_score", "base_output_score"),
            *("steered_activation", "base_activation"),
            *("fluency", "steers_well", "curve", "samples", "recipe", "is_imported", "measured_at"),
        )


class FeatureFilters(Filters):
    sae = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    index = serializers.IntegerField(min_value=0, max_value=2**31 - 1, required=False)
    search = serializers.CharField(
        max_length=500, required=False, help_text="Search words; the best matches of labels come first."
    )
    meaning = serializers.BooleanField(
        required=False,
        default=False,
        help_text="With `search`: find labels of similar meaning too, by the token embeddings of the SAE's model.",
    )
    sort = serializers.ChoiceField(
        choices=("relevance", "steers_well"), required=False, help_text="Order of a search. Default: relevance."
    )
    labelled = serializers.BooleanField(required=False, allow_null=True, default=None)


class LabelInput(StrictInput):
    label = Text(max_length=500, allow_blank=True, required=False)  # type: ignore[assignment]  # the stubs have a field's attribute `label`
    description = Text(max_length=4000, allow_blank=True, required=False)


class ExplanationOut(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="row.pk")
    text = serializers.CharField(source="row.text")
    source = serializers.CharField(source="row.source", help_text="Who or what wrote it.")  # type: ignore[assignment]  # the stubs have a field's attribute `source`
    score = serializers.FloatField(
        source="row.score", allow_null=True, help_text="The score that its method gave it, 0 to 1."
    )
    votes = serializers.IntegerField(source="num_votes", help_text="The sum of all votes.")
    own_vote = serializers.IntegerField(help_text="The account's vote: 1, -1, or 0 for none.")
    created_at = serializers.DateTimeField(source="row.created_at")


class ExplanationList(serializers.Serializer[Any]):
    object = serializers.CharField()
    data = ExplanationOut(many=True)  # type: ignore[assignment]  # the stubs have an attribute `data`


class ExplanationInput(StrictInput):
    text = Text(max_length=500)
    source = Text(  # type: ignore[assignment]  # the stubs have a field's attribute `source`
        max_length=300,
        required=False,
        default="",
        allow_blank=True,
        help_text="The method that wrote it. Default: the account, which then also votes for it.",
    )
    score = Number(
        min_value=0,
        max_value=1,
        required=False,
        allow_null=True,
        default=None,
        help_text="The method's score, such as the accuracy of detection.",
    )


class VoteInput(StrictInput):
    value = Integer(min_value=-1, max_value=1, help_text="1 for, -1 against, 0 for no vote.")


_ONE = r"explanations/(?P<explanation>[0-9]+)"


@described(tags=["Features"])
class Features(Resource):
    queryset = Feature.objects.none()
    serializer_class = FeatureOut
    filters = FeatureFilters
    ordering = ("pk",)
    permissions = {
        "list": "steering.view_feature",
        "retrieve": "steering.view_feature",
        "effect": "steering.view_feature",
        "partial_update": "steering.change_feature",
        "explanations": "steering.view_feature",
        "add_explanation": "steering.change_feature",
        "delete_explanation": "steering.change_feature",
        "vote_explanation": "steering.change_feature",
        "use_explanation": "steering.change_feature",
    }

    def rows(self, user: User) -> QuerySet[Feature]:
        rows = Feature.objects.select_related("sae__model").annotate(steering_score=F("effect__steers_well"))
        found: QuerySet[Feature] = rows.defer("traffic_examples")  # texts of requests
        return found

    def filter_rows(self, rows: QuerySet[Any], query: Mapping[str, Any]) -> QuerySet[Any]:
        rows = rows.filter(**{name: query[name] for name in ("sae", "index") if name in query}).defer(*NOT_LISTED)
        match query["labelled"]:
            case True:
                return rows.exclude(label="")
            case False:
                return rows.filter(label="")
        return rows

    @described(parameters=[FeatureFilters])
    def list(self, request: Request) -> Response:
        """List features. A search returns one page with its best ``limit`` results."""
        query = self.query()
        if "search" not in query:
            return super().list(request)
        rows = self.filter_rows(self.rows(self.user), query)
        assert isinstance(rows, FeatureQuerySet)
        search = FeatureSearch(
            query["search"],
            read_limit(request),
            sort=query.get("sort", "relevance"),
            by_tokens=query["meaning"] and bool(query["search"].strip()),
        )
        data = []
        for one in search_features(rows, search):
            one.feature.relevance = one.relevance  # type: ignore[attr-defined]  # for the serializer
            data.append(FoundFeatureOut(one.feature).data)
        return Response({"object": "list", "data": data, "next": None})

    @described(responses=FeatureDetail)
    def retrieve(self, request: Request, pk: str) -> Response:
        """Return a feature with its examples and activation histogram."""
        return Response(FeatureDetail(self.get_object()).data)

    @described(responses=EffectOut)
    @action(detail=True, methods=["get"])
    def effect(self, request: Request, pk: str) -> Response:
        """Return the measured effect of a feature: calibrated strength, output score, fluency, curve and samples."""
        feature = self.get_object()
        found = FeatureEffect.objects.filter(feature=feature).select_related("feature").first()
        if found is None:
            raise EffectNotMeasuredError(not_measured(feature))
        return Response(EffectOut(found).data)

    @described(request=LabelInput)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change the label and description of a feature."""
        feature, data = self.get_object(), self.read(LabelInput)
        if data.get("label", feature.label) != feature.label:
            feature.label_source = f"{self.user.get_username()}, through /api"
        for name, value in data.items():
            setattr(feature, name, value)
        feature.full_clean(exclude=["sae"], validate_unique=False, validate_constraints=False)
        return self.answer(label_feature(feature=feature, user=self.user))

    @described(responses=ExplanationList)
    @action(detail=True, methods=["get"], pagination_class=None, filter_backends=())
    def explanations(self, request: Request, pk: str) -> Response:
        """List the explanations of a feature beside its label, those with most votes first."""
        rows = ExplanationOut(explanations_of(self.get_object(), self.user), many=True).data
        return Response({"object": "list", "data": rows})

    @described(request=ExplanationInput, responses={201: ExplanationOut})
    @explanations.mapping.post
    def add_explanation(self, request: Request, pk: str) -> Response:
        """Add an explanation. One with the same text is returned as it is."""
        feature, given = self.get_object(), self.read(ExplanationInput)
        added = add_explanation(feature=feature, user=self.user, **given)
        return Response(ExplanationOut(self._shown(feature, added.pk)).data, status=201)

    @described(request=None, responses={204: None})
    @action(detail=True, methods=["delete"], url_path=_ONE)
    def delete_explanation(self, request: Request, pk: str, explanation: str) -> Response:
        """Delete an explanation with its votes."""
        delete_explanation(explanation=self._explanation(self.get_object(), explanation), user=self.user)
        return Response(status=204)

    @described(request=VoteInput, responses=ExplanationOut)
    @action(detail=True, methods=["put"], url_path=f"{_ONE}/vote")
    def vote_explanation(self, request: Request, pk: str, explanation: str) -> Response:
        """Set the account's vote for or against an explanation."""
        feature, given = self.get_object(), self.read(VoteInput)
        row = self._explanation(feature, explanation)
        vote(explanation=row, value=given["value"], user=self.user)
        return Response(ExplanationOut(self._shown(feature, row.pk)).data)

    @described(request=None, responses=FeatureOut)
    @action(detail=True, methods=["post"], url_path=f"{_ONE}/use")
    def use_explanation(self, request: Request, pk: str, explanation: str) -> Response:
        """Make an explanation the label. The label before it becomes an explanation."""
        use_as_label(explanation=self._explanation(self.get_object(), explanation), user=self.user)
        return self.answer(self.get_object())

    def _explanation(self, feature: Feature, key: str) -> FeatureExplanation:
        found: FeatureExplanation | None = feature.explanations.filter(pk=key_in(key)).first()
        if found is None:
            raise not_found()
        return found

    def _shown(self, feature: Feature, pk: int) -> ShownExplanation:
        return next(one for one in explanations_of(feature, self.user) if one.row.pk == pk)
