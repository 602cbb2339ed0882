"""Features in the admin: the list with search as you type, and the page of one feature."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.contrib.admin.widgets import AdminTextareaWidget
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from core.errors import MillmError
from steering.errors import MeaningUnavailableError, SteeringError
from steering.features.drawing import example_rows, histogram_picture, visible_token
from steering.features.explanations import change_explanations, explanations_of
from steering.features.forms import MAX_TESTED, SteerForm, TextForm
from steering.features.logit_lens import (
    AnyLensTarget,
    LensBusyError,
    LensTarget,
    LensToken,
    LensUnavailableError,
    get_lens_worker,
)
from steering.features.neighbours import find_cofiring, find_neighbours
from steering.features.ranked_search import FeatureSearch, MeaningMatches, match_meaning
from steering.features.search import IN_ORDER, FeatureQuerySet
from steering.features.services import label_feature, steer_with_feature
from steering.features.tested_text import activations_on, features_on
from steering.models import SAE, Feature, FeatureEffect
from steering.profiles.edit_preview import edit_choices
from steering.profiles.snapshot import source_of

_TEMPLATES = "admin/steering/feature"
_LENS_TIMEOUT_S = 60.0


def _neighbour(feature: Feature, step: int) -> Feature | None:
    found = Feature.objects.filter(sae_id=feature.sae_id, index=feature.index + step).only("sae_id", "index").first()
    if found is not None:
        found.sae = feature.sae
    return found


def feature_url(feature: Feature) -> str:
    """Return the URL of the page of a feature."""
    return reverse("admin:steering_feature_change", args=[quote(feature.reference)])


def _with_shares(tokens: Sequence[LensToken]) -> list[tuple[LensToken, float]]:
    """Return the tokens with their logits as a share of the most extreme one."""
    largest = max((abs(token.logit) for token in tokens), default=0.0) or 1.0
    return [(replace(token, text=visible_token(token.text)), round(abs(token.logit) / largest, 3)) for token in tokens]


def _trial(feature: Feature, steer: SteerForm) -> dict[str, Any]:
    """Return what the panel needs that steers with the feature: the edit that it begins with, and what it offers."""
    edit = {
        "sae": feature.sae.name,
        "index": feature.index,
        "operation": "add",
        "strength": steer.fields["strength"].initial,
        "unit": steer.fields["unit"].initial,
        "phase": "both",
    }
    return {**edit_choices(), "model": feature.sae.model.name, "edit": edit}


def _cofiring(feature: Feature) -> dict[str, Any] | None:
    """Return the features that fire with one, with links, and the number of tokens; None if it was not measured."""
    found = find_cofiring(feature)
    if found is None:
        return None
    places = [quote(f"{feature.sae.name}.{row.index}") for row in found.features[:NUM_NEIGHBOURS]]
    urls = [reverse("admin:steering_feature_change", args=[place]) for place in places]
    rows = list(zip(found.features, urls, strict=False))
    return {"num_tokens": found.num_tokens, "rows": rows}


def lens_target(feature: Feature) -> LensTarget:
    return LensTarget(
        feature.sae.model.model_source,
        source_of(feature.sae),
        feature.index,
        feature.sae.site not in SAE.OUTSIDE_RESIDUAL,
    )


def lens_context(target: AnyLensTarget) -> dict[str, Any]:
    """Return what lens.html shows: tables of tokens with the sizes of their bars, or the problem."""
    try:
        lens = get_lens_worker().compute_blocking(target, _LENS_TIMEOUT_S)
    except LensUnavailableError as error:
        return {"problem": str(error)}
    except (LensBusyError, TimeoutError):
        return {"problem": "The server is busy. Try again in a moment."}
    return {"lens": lens, "lens_tables": lens_tables(lens.promoted, lens.suppressed)}


def lens_tables(
    promoted: Sequence[LensToken], suppressed: Sequence[LensToken]
) -> list[tuple[str, list[tuple[LensToken, float]]]]:
    """Return the tables of lens.html, each with its caption."""
    return [("Promoted", _with_shares(promoted)), ("Suppressed", _with_shares(suppressed))]


def statistics(feature: Feature) -> dict[str, Any]:
    """Return what statistics.html and the lists of examples show. None of it comes from requests."""
    return {
        "share": None if feature.density is None else f"{feature.density:.3%}",
        "histogram": histogram_picture(feature.histogram),
        "quantiles": feature.quantiles,
        "examples": example_rows(feature.examples),
        "bands": [
            {**band, "range": f"{band['low']:.0%} to {band['high']:.0%}", "rows": example_rows(band["examples"])}
            for band in feature.example_bands
        ],
    }


def effect_context(feature: Feature) -> dict[str, Any]:
    """Return what effect.html shows. The prompts of its samples are the probe's, never those of requests."""
    effect = FeatureEffect.objects.filter(feature=feature).first()
    if effect is None:
        return {"effect": None, "score": ""}
    effect.feature = feature
    return {"effect": effect, "score": f"{effect.steers_well:.4f}"}


_DENSITIES = {
    "dead": ("never", Q(density=0)),
    "rare": ("below 0.1 %", Q(density__gt=0, density__lt=0.001)),
    "usual": ("0.1 % to 5 %", Q(density__gte=0.001, density__lt=0.05)),
    "dense": ("5 % or more", Q(density__gte=0.05)),
    "unknown": ("not measured", Q(density__isnull=True)),
}


class DensityFilter(admin.SimpleListFilter):
    title = "activation density"
    parameter_name = "fires"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(key, label) for key, (label, _) in _DENSITIES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Feature]) -> QuerySet[Feature]:
        choice = _DENSITIES.get(self.value() or "")
        return queryset if choice is None else queryset.filter(choice[1])


class SAEFilter(admin.RelatedFieldListFilter):
    """A filter titled "SAE"; Django would write "sae"."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.title = "SAE"


class MatchFilter(admin.SimpleListFilter):
    """Whether a search also finds labels of similar meaning. It narrows nothing without a search."""

    title = "search"
    parameter_name = "match"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return (("words", "by words only"),)

    def choices(self, changelist: Any) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": "by words and meaning"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Feature]) -> QuerySet[Feature]:
        return queryset


class SteersFilter(admin.SimpleListFilter):
    title = "effect"
    parameter_name = "steers"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return (("well", "steers well (0.05 or more)"), ("measured", "measured"), ("unknown", "not measured"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Feature]) -> QuerySet[Feature]:
        match self.value():
            case "well":
                return queryset.filter(effect__steers_well__gte=STEERS_WELL)
            case "measured":
                return queryset.filter(effect__isnull=False)
            case "unknown":
                return queryset.filter(effect__isnull=True)
            case _:
                return queryset


class LabelledFilter(admin.SimpleListFilter):
    title = "label"
    parameter_name = "labelled"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return (("yes", "labelled"), ("no", "unlabelled"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Feature]) -> QuerySet[Feature]:
        match self.value():
            case "yes":
                return queryset.exclude(label="")
            case "no":
                return queryset.filter(label="")
            case _:
                return queryset


STEERS_WELL = 0.05
NUM_NEIGHBOURS = 10
NUM_OF_TEXT = 20
TEST_PERMISSION = "console.use_playground"
MAX_LISTED = 100_000
_MAX_BY_MEANING = 200
_PLAIN = re.compile(r"(?!\s*#?\d+\s*$)[^\W_](?:[\w\s',]*)")  # words without operators, and not an index


def _matches(rows: FeatureQuerySet, text: str, *, by_words: bool) -> FeatureQuerySet:
    """Return what a search finds by words, and unless ``by_words`` by the meaning of labels, the best first.

    Queries with operators or quotes, and indices, are searched by words alone; so is everything if the embeddings of
    the model cannot be read. Results have ``relevance``.
    """
    if not by_words and _PLAIN.fullmatch(text.strip()):
        with suppress(MeaningUnavailableError):
            matches = match_meaning(rows, FeatureSearch(text, _MAX_BY_MEANING, by_tokens=True))
            if matches.scores:
                return _ranked(rows, matches)
    found: FeatureQuerySet = rows.search(text)
    return found.annotate(relevance=F("rank")) if "rank" in found.query.annotations else found


def _ranked(rows: FeatureQuerySet, matches: MeaningMatches) -> FeatureQuerySet:
    """Return the best matches in their order, with ``relevance``."""
    best = list(matches.scores)[:_MAX_BY_MEANING]
    places = [When(pk=pk, then=Value(place)) for place, pk in enumerate(best)]
    cosines = [When(pk=pk, then=Value(matches.relevance(pk))) for pk in best]
    ranked: FeatureQuerySet = rows.filter(pk__in=best).annotate(
        relevance=Case(*cosines, output_field=models.FloatField()),
        place=Case(*places, output_field=models.IntegerField()),
    )
    return ranked.order_by("place", *IN_ORDER)


_MAX_DIGITS = 9


class BoundedPaginator(Paginator[Feature]):
    """A paginator that stops counting at MAX_LISTED, because counting millions of rows is slow."""

    @cached_property
    def count(self) -> int:
        assert isinstance(self.object_list, QuerySet)  # the admin gives no list
        return self.object_list.order_by().values("pk")[:MAX_LISTED].count()


class RankedChangeList(ChangeList):
    """A change list that marks no column as sorted while search results are ordered by rank."""

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        is_ranked = bool(self.query) and ORDER_VAR not in self.params
        return {} if is_ranked else super().get_ordering_field_columns()

    def url_for_result(self, result: models.Model) -> str:
        assert isinstance(result, Feature)
        return reverse("admin:steering_feature_change", args=[quote(result.reference)])


@admin.register(Feature)
class FeatureAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """The list of features with its search, and the page of one feature with its histogram, logit lens and steer form.

    The autocomplete field of profiles uses this search too.
    """

    change_form_template = f"{_TEMPLATES}/change_form.html"

    empty_words = "No features yet. Add an SAE first."
    list_display = ("index", "label_text", "sae_name", "steers_text", "max_activation_text", "density_text", "tokens")
    list_display_links = ("index", "label_text")
    list_filter = (MatchFilter, SteersFilter, LabelledFilter, DensityFilter, ("sae", SAEFilter))
    list_select_related = ("sae",)
    list_per_page = 50
    ordering = IN_ORDER
    paginator = BoundedPaginator
    search_fields = ("label",)
    search_help_text = (
        'Words or prefixes, "a phrase", or, -exclude; or a feature\'s index. Plain words also find labels of similar '
        "meaning. Best matches first."
    )
    show_full_result_count = False
    fields = ("sae_link", "index", "label", "description", "label_source")
    readonly_fields = ("sae_link", "index", "label_source")
    formfield_overrides = {models.TextField: {"widget": AdminTextareaWidget(attrs={"rows": 2})}}

    class Media:
        css = {"all": ("steering/admin.css", "steering/feature.css")}
        js = ("steering/search_as_you_type.js", "steering/load_later.js")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RankedChangeList

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Feature | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Feature]:
        rows = super().get_queryset(request).select_related("sae")
        found: QuerySet[Feature] = rows.annotate(steers_well=F("effect__steers_well"))
        return found

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Feature | None:
        """Return the feature by SAE name and index, as in links, or by primary key, as in links of older versions."""
        name, dot, index = object_id.replace("\0", "").rpartition(".")
        if not dot:
            return super().get_object(request, object_id, from_field)
        if not (index.isascii() and index.isdecimal()) or len(index) > _MAX_DIGITS:
            return None
        return self.get_queryset(request).filter(sae__name=name, index=int(index)).first()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Feature], search_term: str
    ) -> tuple[QuerySet[Feature], bool]:
        assert isinstance(queryset, FeatureQuerySet)
        model = request.GET.get("language_model", "")
        if model.isdecimal():
            queryset = queryset.filter(sae__model_id=int(model))
        found = _matches(queryset, search_term, by_words=request.GET.get(MatchFilter.parameter_name) == "words")
        return found.order_by(*queryset.query.order_by) if "o" in request.GET else found, False

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        return (*self.list_display, "relevance_text") if request.GET.get("q", "").strip() else self.list_display

    def save_model(self, request: HttpRequest, obj: Feature, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        if "label" in form.changed_data:
            obj.label_source = f"{request.user.get_username()}, in the admin"
        label_feature(feature=obj, user=request.user)  # type: ignore[arg-type]  # staff

    @admin.display(description="SAE", ordering="sae__name")
    def sae_name(self, feature: Feature) -> str:
        return str(feature.sae)

    @admin.display(description="SAE")
    def sae_link(self, feature: Feature) -> SafeString:
        url = reverse("admin:steering_sae_change", args=[feature.sae_id])
        return format_html('<a href="{}">{}</a>', url, feature.sae)

    @admin.display(description="label", ordering="label")
    def label_text(self, feature: Feature) -> str:
        return feature.label or "(no label)"

    @admin.display(description="steers well", ordering=F("effect__steers_well").desc(nulls_last=True))
    def steers_text(self, feature: Feature) -> SafeString | str:
        score = getattr(feature, "steers_well", None)
        if score is None:
            return "–"
        return format_html('<meter min="0" max="0.5" value="{}" title="{}"></meter>', f"{score:.3f}", f"{score:.3f}")

    @admin.display(description="relevance")
    def relevance_text(self, feature: Feature) -> str:
        relevance = getattr(feature, "relevance", None)
        return "–" if relevance is None else f"{relevance:.2f}"

    @admin.display(description="max activation", ordering="max_activation")
    def max_activation_text(self, feature: Feature) -> str:
        return "–" if feature.max_activation is None else f"{feature.max_activation:.4g}"

    @admin.display(description="density", ordering="density")
    def density_text(self, feature: Feature) -> str:
        return "–" if feature.density is None else f"{feature.density:.3%}"

    @admin.display(description="top tokens")
    def tokens(self, feature: Feature) -> SafeString | str:
        rows = ((str(token),) for token in feature.top_tokens)
        return format_html_join(" ", '<code class="steering-token">{}</code>', rows) or "–"

    def get_urls(self) -> list[Any]:
        pages: Sequence[tuple[str, Callable[..., HttpResponse]]] = (
            ("lens", self.lens_view),
            ("steer", self.steer_view),
            ("neighbours", self.neighbours_view),
            ("test", self.test_view),
            ("explanations", self.explanations_view),
        )
        own = [
            path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=f"steering_feature_{name}")
            for name, view in pages
        ]
        text = path("text/", self.admin_site.admin_view(self.text_view), name="steering_feature_text")
        return [text, *own, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        may_test = request.user.has_perm(TEST_PERMISSION)
        return super().changelist_view(request, {"may_test": may_test, **(extra_context or {})})

    def text_view(self, request: HttpRequest) -> HttpResponse:
        """Show the features that distinguish a text, computed in the engine."""
        if not (self.has_view_permission(request) and request.user.has_perm(TEST_PERMISSION)):
            raise PermissionDenied
        form = TextForm(request.GET if "text" in request.GET else None)
        context: dict[str, Any] = {**self.admin_site.each_context(request), "opts": self.opts, "form": form}
        if form.is_bound and form.is_valid():
            try:
                found = features_on(form.cleaned_data["sae"], form.cleaned_data["text"], NUM_OF_TEXT)
            except MillmError as error:
                context["problem"] = error.message
            else:
                context["rows"] = [
                    {
                        "found": one,
                        "url": feature_url(one.feature),
                        "density": self.density_text(one.feature),
                        "examples": example_rows([{"tokens": one.tokens, "values": one.values}]),
                    }
                    for one in found
                ]
        return TemplateResponse(request, f"{_TEMPLATES}/text.html", context | {"title": "Features of a text"})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        feature = self.get_object(request, unquote(object_id))
        context = {**(extra_context or {})}
        if isinstance(feature, Feature):
            context |= self._facts(request, feature)
        return super().change_view(request, object_id, form_url, context)

    def lens_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the logit lens. The page loads it separately, because the first one of a model takes seconds."""
        feature = self._seen(request, object_id)
        context = {"original": feature, "opts": self.opts, **lens_context(lens_target(feature))}
        return TemplateResponse(request, f"{_TEMPLATES}/lens.html", context)

    def neighbours_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the features with similar decoder rows. Loaded separately, because it may load the SAE."""
        feature = self._seen(request, object_id)
        context: dict[str, Any] = {"original": feature, "opts": self.opts}
        try:
            near = find_neighbours(feature.sae_id, source_of(feature.sae), feature.index, NUM_NEIGHBOURS)
        except SteeringError as error:
            context["problem"] = error.message
        else:
            name = feature.sae.name
            context["neighbours"] = [
                (row, reverse("admin:steering_feature_change", args=[quote(f"{name}.{row.index}")])) for row in near
            ]
        return TemplateResponse(request, f"{_TEMPLATES}/neighbours.html", context)

    def test_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the feature's activation on each token of a text, computed in the engine."""
        feature = self._seen(request, object_id)
        if not request.user.has_perm(TEST_PERMISSION):
            raise PermissionDenied
        text = request.GET.get("text", "")[:MAX_TESTED]
        context: dict[str, Any] = {"original": feature, "opts": self.opts}
        try:
            example = activations_on(feature, text)
        except MillmError as error:
            context["problem"] = error.message
        else:
            context |= {"tested": example_rows([example]), "is_active": any(example["values"])}
        return TemplateResponse(request, f"{_TEMPLATES}/tested.html", context)

    def steer_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Add the feature to a draft, or create a profile with it, and redirect there."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        feature = self._seen(request, object_id)
        form = SteerForm(feature, request.user, request.POST)
        if not form.may_steer:
            raise PermissionDenied
        if not form.is_valid():
            context = {"original": feature, "opts": self.opts, "steer": form, "title": f"Steer with {feature}"}
            return TemplateResponse(
                request, f"{_TEMPLATES}/steer.html", context | self.admin_site.each_context(request)
            )
        return self._steer(request, feature, form)

    def explanations_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Add an explanation, or vote for one, make it the label or delete it."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        feature = self._seen(request, object_id)
        if not self.has_change_permission(request, feature):
            raise PermissionDenied
        try:
            change_explanations(feature, request.POST, request.user)  # type: ignore[arg-type]  # staff
        except ValidationError as error:
            self.message_user(request, f"Not saved. {' '.join(error.messages)}", messages.ERROR)
        return HttpResponseRedirect(f"{feature_url(feature)}#explanations")

    def _steer(self, request: HttpRequest, feature: Feature, form: SteerForm) -> HttpResponse:
        try:
            profile = steer_with_feature(
                feature=feature,
                profile=form.cleaned_data["profile"],
                new_name=form.cleaned_data["new_name"],
                operation=form.cleaned_data["operation"],
                strength=form.cleaned_data["strength"],
                unit=form.cleaned_data["unit"],
                owner=request.user,  # type: ignore[arg-type]
            )
        except (SteeringError, ValidationError) as error:
            text = error.message if isinstance(error, SteeringError) else " ".join(error.messages)
            self.message_user(request, f"The feature was not added. {text}", messages.ERROR)
            return HttpResponseRedirect(feature_url(feature))
        self.message_user(request, f'Added {feature} to draft "{profile}". Publish to use it.', messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:steering_steeringprofile_change", args=[profile.pk]))

    def _facts(self, request: HttpRequest, feature: Feature) -> dict[str, Any]:
        sees_traffic = request.user.has_perm("openai_api.view_prompt_text")
        steer = SteerForm(feature, request.user)
        return {
            "sae": feature.sae,
            **statistics(feature),
            "cofiring": _cofiring(feature),
            "traffic_examples": example_rows(feature.traffic_examples) if sees_traffic else (),
            **effect_context(feature),
            "may_test": request.user.has_perm(TEST_PERMISSION),
            "test_text": request.GET.get("text", "").strip()[:MAX_TESTED],
            "steer": steer if steer.may_steer else None,
            "may_measure": request.user.has_perm("steering.change_sae"),
            "explanations": explanations_of(feature, request.user),
            "try_json": json.dumps(_trial(feature, steer)),
            "before": _neighbour(feature, -1),
            "after": _neighbour(feature, 1),
        }

    def _seen(self, request: HttpRequest, object_id: str) -> Feature:
        feature = self.get_object(request, unquote(object_id))
        if not isinstance(feature, Feature):
            raise Http404
        if not self.has_view_permission(request, feature):
            raise PermissionDenied
        return feature
