"""Profiles and their versions in the admin; SAEs, features and policies have files of their own."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.widgets import AdminTextareaWidget
from django.db import models
from django.db.models import Count, Max, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from audit.read_only_admin import ReadOnlyAdmin
from steering import services
from steering.draft_pages import DraftPages
from steering.draft_trail import draft_words, record_draft
from steering.evaluation_admin import EvaluationAdmin
from steering.evaluation_pages import EvaluationPages
from steering.exchange_pages import ExchangePages
from steering.feature_admin import FeatureAdmin
from steering.governance_pages import GovernancePages
from steering.inlines import FeatureEditInline, VectorEditInline
from steering.models import ProfileVersion, SteeringProfile
from steering.policy_admin import GovernedModelAdmin, SteeringPolicyAdmin
from steering.review_pages import ReviewPages
from steering.sae_admin import SAEAdmin
from steering.sharing_admin import SharingAdmin
from steering.standing import profile_problem, version_problem
from steering.vector_admin import PlainVectorAdmin, VectorSetAdmin
from steering.version_pages import changes_since_previous, edits_table, problem_text, requests_link, restore
from steering.visibility import SEE_ALL_PROFILES, visible_profiles, visible_versions
from steering.watch_admin import WatchEventAdmin, WatchRuleAdmin

__all__ = [
    "EvaluationAdmin",
    "FeatureAdmin",
    "GovernedModelAdmin",
    "PlainVectorAdmin",
    "SAEAdmin",
    "SteeringPolicyAdmin",
    "VectorSetAdmin",
    "WatchEventAdmin",
    "WatchRuleAdmin",
]  # registered there


@admin.register(SteeringProfile)
class SteeringProfileAdmin(SharingAdmin, DraftPages, GovernancePages, ExchangePages, ReviewPages, admin.ModelAdmin):  # type: ignore[type-arg]
    """The draft with its edits; its other pages are those of the base classes."""

    owner_field = "owner"
    see_all = SEE_ALL_PROFILES

    empty_words = "No profile yet. Add one; or open a feature, and “Steer with this” begins one with it."
    list_display = ("name", "model", "published", "num_edits", "owner", "is_in_use", "problem", "updated_at")
    list_filter = ("model", ("owner", admin.RelatedOnlyFieldListFilter), ("archived_at", admin.EmptyFieldListFilter))
    list_select_related = ("model", "owner")
    search_fields = ("name", "description")
    autocomplete_fields = ("model",)
    inlines = (FeatureEditInline, VectorEditInline)
    actions = ("publish_selected", "duplicate_selected")
    fields = ("name", "model", "description", "shared_with")
    formfield_overrides = {models.TextField: {"widget": AdminTextareaWidget(attrs={"rows": 2})}}

    class Media:
        css = {"all": ("steering/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[SteeringProfile]:
        rows: QuerySet[SteeringProfile] = visible_profiles(request.user, super().get_queryset(request))
        return rows.annotate(newest=Max("versions__number"), edit_count=Count("edits", distinct=True))

    def get_inlines(self, request: HttpRequest, obj: SteeringProfile | None) -> Any:
        return self.inlines if obj else ()

    def get_readonly_fields(self, request: HttpRequest, obj: SteeringProfile | None = None) -> tuple[str, ...]:
        """Clients and logs refer to a published name; edits refer to features of the model."""
        if obj is None:
            return ()
        fixed = ("name", "model") if obj.versions.exists() else ("model",)
        return fixed if self.may_share(request, obj) else (*fixed, "shared_with")

    def save_model(self, request: HttpRequest, obj: SteeringProfile, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        if not change:
            obj.owner = request.user  # type: ignore[assignment]
        services.save_profile(profile=obj, user=request.user)  # type: ignore[arg-type]  # staff

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        profile = form.instance
        before = draft_words(profile)
        super().save_related(request, form, formsets, change)
        record_draft(profile=profile, before=before, user=request.user)  # type: ignore[arg-type]  # staff

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """In place of a list of all edits and versions: a line per profile, and what stands against deleting it.

        Nobody has a permission to delete versions, so Django would say that the permission is what is missing.
        """
        lines, protected = [], []
        for profile in objs:
            lines.append(f"steering profile {profile}")
            if latest := profile.latest_version:
                protected.append(
                    f"{latest}: a published profile is kept, because requests and the request log name it. Archive it"
                    " instead; requests cannot use it then."
                )
        needed = set() if self.has_delete_permission(request) else {self.opts.verbose_name}
        return lines, {"steering profiles": len(lines)}, needed, protected

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        profile = self.get_object(request, unquote(object_id))
        can_archive = isinstance(profile, SteeringProfile) and profile.archived_at is None
        context = {**(extra_context or {}), "can_archive": can_archive and self.has_archive_permission(request)}
        return super().delete_view(request, object_id, context)

    def delete_model(self, request: HttpRequest, obj: SteeringProfile) -> None:
        services.delete_profile(profile=obj, user=request.user)  # type: ignore[arg-type]  # staff

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[SteeringProfile]) -> None:
        for profile in queryset.select_related("model"):
            services.delete_profile(profile=profile, user=request.user)  # type: ignore[arg-type]  # staff

    @admin.display(description="published", ordering="newest", empty_value="not yet")
    def published(self, profile: SteeringProfile) -> str | None:
        newest: int | None = profile.newest  # type: ignore[attr-defined]
        return None if newest is None else f"{profile.name}@{newest}"

    @admin.display(description="in use", ordering="archived_at", boolean=True)
    def is_in_use(self, profile: SteeringProfile) -> bool:
        return profile.archived_at is None

    @admin.display(description="problem")
    def problem(self, profile: SteeringProfile) -> SafeString | str:
        return problem_text(profile_problem(profile))

    @admin.display(description="edits", ordering="edit_count")
    def num_edits(self, profile: SteeringProfile) -> int:
        return int(profile.edit_count)  # type: ignore[attr-defined]


@admin.register(ProfileVersion)
class ProfileVersionAdmin(EvaluationPages, ReadOnlyAdmin):
    """Read-only, whoever looks."""

    has_history = True
    empty_words = "Nothing is published yet. A profile's page publishes its draft as a version that requests can name."
    list_display = ("__str__", "of_model", "note", "published_by", "published_at", "short_fingerprint")
    list_filter = (
        "profile__model",
        ("profile", admin.RelatedOnlyFieldListFilter),
        ("published_by", admin.RelatedOnlyFieldListFilter),
    )
    list_select_related = ("profile__model", "published_by")
    search_fields = ("profile__name", "note", "fingerprint__startswith")
    date_hierarchy = "published_at"
    ordering = ("-published_at",)
    actions = ("make_draft",)
    fields = (
        "profile",
        "number",
        "note",
        "published_by",
        "published_at",
        "problem",
        "edits_shown",
        "changed",
        "fingerprint",
        "used",
    )

    class Media:
        css = {"all": ("steering/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[ProfileVersion]:
        return visible_versions(request.user, super().get_queryset(request))

    def has_restore_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("steering.change_steeringprofile")

    @admin.action(description="Make it the draft of its profile", permissions=["restore"])
    def make_draft(self, request: HttpRequest, queryset: QuerySet[ProfileVersion]) -> None:
        versions = list(queryset.select_related("profile"))
        if len({version.profile_id for version in versions}) < len(versions):
            self.message_user(request, "Choose one version per profile.", messages.ERROR)
            return
        for version in versions:
            restore(request, version)

    @admin.display(description="model", ordering="profile__model")
    def of_model(self, version: ProfileVersion) -> str:
        return str(version.profile.model)

    @admin.display(description="problem")
    def problem(self, version: ProfileVersion) -> SafeString | str:
        return problem_text(version_problem(version))

    @admin.display(description="fingerprint")
    def short_fingerprint(self, version: ProfileVersion) -> str:
        return version.fingerprint[:12]

    @admin.display(description="edits")
    def edits_shown(self, version: ProfileVersion) -> SafeString:
        return edits_table(version)

    @admin.display(description="changes")
    def changed(self, version: ProfileVersion) -> SafeString | str:
        return changes_since_previous(version)

    @admin.display(description="used by")
    def used(self, version: ProfileVersion) -> SafeString | str:
        return requests_link(version)
