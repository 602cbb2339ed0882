"""SAEs in the admin: what they are, how well they fit, where they lie."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from steering import services
from steering.candidate_wording import estimated_bytes
from steering.errors import SteeringError
from steering.health import judge, summary
from steering.label_pages import LabelPages
from steering.models import SAE
from steering.profiles.resolver import get_resolver
from steering.sae_add_pages import AddPages
from steering.sae_pages import SAEPages

_SHOWN = ("place", "features", "verdict", "l0_text", "fvu_text", "dead_text", "norm_text", "weights")


@admin.register(SAE)
class SAEAdmin(AddPages, SAEPages, LabelPages, admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Everything but the name is what the files say, or was measured."""

    empty_words = "No SAE yet. Add one from a directory of the server or from the Hub; its features come with it."
    list_display = ("name", "model", "place", "architecture", "d_sae", "l0_text", "fvu_text", "state", "memory")
    list_filter = ("model", "architecture", "layer")
    list_select_related = ("model",)
    search_fields = ("name", "source")
    fieldsets = (
        (None, {"fields": ("name", "model", "place", "features", "weights")}),
        ("Health", {"fields": ("verdict", "l0_text", "fvu_text", "dead_text", "norm_text")}),
        ("Files", {"fields": ("source", "revision", "subfolder", "format", "checksum", "created_at")}),
        ("Shape", {"fields": ("architecture", "normalization", "d_in", "d_sae")}),
    )

    class Media:
        css = {"all": ("steering/admin.css", "steering/feature.css")}

    def get_readonly_fields(self, request: HttpRequest, obj: SAE | None = None) -> tuple[str, ...]:
        stored = (field.name for field in SAE._meta.fields if field.name not in ("id", "name"))
        return (*_SHOWN, *stored)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """In place of a list of all features: one line per SAE, and what stands against deleting it."""
        lines, protected = [], []
        for sae in objs:
            lines.append(f"SAE {sae} with {sae.d_sae} features")
            try:
                services.check_sae_is_unused(sae=sae)
            except SteeringError as error:
                protected.append(error.message)
        counts = {"SAEs": len(lines), "features": sum(sae.d_sae for sae in objs)}
        needed = set() if self.has_delete_permission(request) else {self.opts.verbose_name}
        return lines, counts, needed, protected

    def save_model(self, request: HttpRequest, obj: SAE, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        services.rename_sae(sae=obj)

    def delete_model(self, request: HttpRequest, obj: SAE) -> None:
        services.delete_sae(sae=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[SAE]) -> None:
        for sae in queryset:
            services.delete_sae(sae=sae)

    @admin.display(description="L0", ordering="l0")
    def l0_text(self, sae: SAE) -> str:
        return "–" if sae.l0 is None else f"{sae.l0:.3g}"

    @admin.display(description="FVU", ordering="fvu")
    def fvu_text(self, sae: SAE) -> str:
        return "–" if sae.fvu is None else f"{sae.fvu:.3f}"

    @admin.display(description="never fired", ordering="dead_share")
    def dead_text(self, sae: SAE) -> str:
        return "–" if sae.dead_share is None else f"{sae.dead_share:.1%} of features"

    @admin.display(description="mean residual norm")
    def norm_text(self, sae: SAE) -> str:
        return "–" if sae.mean_resid_norm is None else f"{sae.mean_resid_norm:.4g}"

    @admin.display(description="weights")
    def weights(self, sae: SAE) -> str:
        """Of this process; another one on the same database keeps its own."""
        loaded = get_resolver().loaded_bytes(sae.checksum)
        if loaded is not None:
            return f"loaded, {filesizeformat(loaded)}"
        return f"not loaded, {filesizeformat(estimated_bytes(sae.d_in, sae.d_sae))} when they are"

    @admin.display(description="in memory")
    def memory(self, sae: SAE) -> str:
        loaded = get_resolver().loaded_bytes(sae.checksum)
        return "–" if loaded is None else filesizeformat(loaded)

    @admin.display(description="health")
    def state(self, sae: SAE) -> SafeString:
        verdict = summary(sae)
        return format_html('<span class="{}">{}</span>', "steering-warning" if verdict.is_warning else "", verdict.text)

    @admin.display(description="in words")
    def verdict(self, sae: SAE) -> SafeString:
        rows = (("steering-warning" if verdict.is_warning else "", verdict.text) for verdict in judge(sae))
        return format_html_join("", '<div class="{}">{}</div>', rows)

    @admin.display(description="features")
    def features(self, sae: SAE) -> SafeString:
        url = f"../../../feature/?sae__id__exact={sae.pk}"
        return format_html('<a href="{}">{} features</a>', url, sae.d_sae)
