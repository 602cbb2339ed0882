"""Features in the admin: the table that is searched as one types, and the page of one feature."""

from __future__ import annotations

from typing import Any, Literal

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.contrib.admin.widgets import AdminTextareaWidget
from django.core.paginator import Paginator
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from steering.feature_pages import FeaturePages
from steering.feature_search import IN_ORDER, FeatureQuerySet
from steering.feature_services import label_feature
from steering.filters import DensityFilter, LabelledFilter, SAEFilter
from steering.models import Feature

MAX_LISTED = 100_000


_MAX_DIGITS = 9


class BoundedPaginator(Paginator[Feature]):
    """Counts no further than anybody turns pages: whoever wants a feature beyond them searches for it."""

    @cached_property
    def count(self) -> int:
        assert isinstance(self.object_list, QuerySet)  # the admin gives no list
        return self.object_list.order_by().values("pk")[:MAX_LISTED].count()


class RankedChangeList(ChangeList):
    """Shows no sorted column while search results are in the order of their rank."""

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        is_ranked = bool(self.query) and ORDER_VAR not in self.params
        return {} if is_ranked else super().get_ordering_field_columns()

    def url_for_result(self, result: models.Model) -> str:
        assert isinstance(result, Feature)
        return reverse("admin:steering_feature_change", args=[quote(result.reference)])


@admin.register(Feature)
class FeatureAdmin(FeaturePages, admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Searched by the words of label and description; the autocomplete of profiles comes here too."""

    empty_words = "No features yet. They come with an SAE."
    list_display = ("index", "label_text", "sae_name", "max_activation_text", "density_text", "tokens")
    list_display_links = ("index", "label_text")
    list_filter = (LabelledFilter, DensityFilter, ("sae", SAEFilter))
    list_select_related = ("sae",)
    list_per_page = 50
    ordering = IN_ORDER
    paginator = BoundedPaginator
    search_fields = ("label",)
    search_help_text = "Words or their beginnings, “a phrase”, or, -not; or the feature's number. The best come first."
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
        return super().get_queryset(request).select_related("sae")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Feature | None:
        """By the SAE's name and the index, as in links; a row's number, as in the links of older versions, too."""
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
        found = queryset.search(search_term)
        return found.order_by(*queryset.query.order_by) if "o" in request.GET else found, False

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
