"""Saved lists, public pages, users and groups in the admin: of a user, one page for name, password and role.

Users who are not superusers can change only accounts and groups within their own permissions, and grant no others.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.forms import AdminUserCreationForm
from django.contrib.auth.models import Group, User
from django.db.models import Count, QuerySet
from django.db.models.functions import Coalesce
from django.forms import CheckboxSelectMultiple
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.annotations import services
from console.annotations.pages import listed_items, visible_items
from console.models import SavedList, SharedPage, SingleSignOnIdentity
from console.sharing import model_of, page_url, visible_pages
from core.read_only_admin import ReadOnlyAdmin
from inference.permissions import grantable_groups, grantable_permissions, has_rights_of, is_superuser

admin.site.unregister(User)
admin.site.unregister(Group)


class NewUserForm(AdminUserCreationForm[User]):
    """Create a user who can log in to the console by default."""

    class Meta:
        model = User
        fields = ("username", "groups", "is_staff")
        widgets = {"groups": CheckboxSelectMultiple}

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.fields["groups"].help_text = "Their permissions are combined."
        self.fields["is_staff"].initial = True


class LimitedToOwnRights(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """Offers and accepts only groups and permissions that the editing user has."""

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "groups":
            kwargs["queryset"] = grantable_groups(request.user)
        elif db_field.name in {"user_permissions", "permissions"}:
            kwargs["queryset"] = grantable_permissions(request.user)
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and self._is_within_rights(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and self._is_within_rights(request, obj)

    def _is_within_rights(self, request: HttpRequest, obj: Any) -> bool:
        if isinstance(obj, User):
            return has_rights_of(request.user, obj)
        return not isinstance(obj, Group) or grantable_groups(request.user).filter(pk=obj.pk).exists()


@admin.register(User)
class UserPages(LimitedToOwnRights, UserAdmin):  # type: ignore[type-arg]  # not generic at run time
    add_form = NewUserForm
    list_display = ("username", "roles", "is_active", "is_staff", "is_superuser", "last_login")
    add_fieldsets = (
        (None, {"fields": ("username", "usable_password", "password1", "password2")}),
        ("Role", {"fields": ("groups", "is_staff")}),
    )
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Role", {"fields": ("groups", "is_staff", "is_superuser", "is_active")}),
        ("Person", {"fields": ("first_name", "last_name", "email", "identities")}),
        ("Single permissions", {"fields": ("user_permissions",), "classes": ("collapse",)}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return super().get_queryset(request).prefetch_related("groups")

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        own = (*super().get_readonly_fields(request, obj), "identities")
        return own if is_superuser(request.user) else (*own, "is_superuser")

    @admin.display(description="Single sign-on")
    def identities(self, user: User) -> str:
        return ", ".join(map(str, SingleSignOnIdentity.objects.filter(user=user))) or "–"

    @admin.display(description="Roles")
    def roles(self, user: User) -> str:
        return ", ".join(group.name for group in user.groups.all()) or "–"


@admin.register(Group)
class GroupPages(LimitedToOwnRights, GroupAdmin):  # type: ignore[misc]  # both only restrict the choices of the form
    """Admin of groups, offering only permissions that the editing user has."""


@admin.register(SavedList)
class SavedListAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """Lists of features, vectors and requests, with the entries that the user may see."""

    change_form_template = "admin/console/savedlist/change_form.html"
    empty_words = "No lists yet. Save on the page of a feature, a vector or a request starts one."
    list_display = ("name", "num_items", "description", "created_by", "created_at")
    list_select_related = ("created_by",)
    search_fields = ("name", "description")
    fields = ("name", "description")

    def get_queryset(self, request: HttpRequest) -> QuerySet[SavedList]:
        rows: QuerySet[SavedList] = super().get_queryset(request).annotate(item_count=Count("items"))
        return rows

    def has_delete_permission(self, request: HttpRequest, obj: SavedList | None = None) -> bool:
        """Return whether the user may delete a list: who created it, or with the permission for all."""
        is_own = obj is not None and obj.created_by_id is not None and obj.created_by_id == request.user.pk
        return is_own or super().has_delete_permission(request, obj)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {**(extra_context or {})}
        saved_list = self.get_object(request, unquote(object_id))
        if isinstance(saved_list, SavedList) and self.has_view_permission(request, saved_list):
            rows = visible_items(request.user, saved_list)
            context["items"] = listed_items(request.user, list(rows[:MAX_ITEMS]))  # type: ignore[arg-type]  # staff
            context["num_more"] = max(0, rows.count() - MAX_ITEMS)
            if rows.exclude(request=None).exists():
                context["log_query"] = urlencode({"saved": saved_list.name})
        return super().change_view(request, object_id, form_url, context)

    def save_model(self, request: HttpRequest, obj: SavedList, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        user: Any = request.user
        if change:
            services.save_list(saved_list=obj, user=user)
            return
        obj.pk = services.create_list(name=obj.name, description=obj.description, user=user).pk

    def delete_model(self, request: HttpRequest, obj: SavedList) -> None:
        services.delete_list(saved_list=obj, user=request.user)  # type: ignore[arg-type]  # staff

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[SavedList]) -> None:
        for saved_list in queryset:
            self.delete_model(request, saved_list)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return one line per list instead of one per entry. Entries are only references."""
        lines = [f"list {saved_list}" for saved_list in objs]
        refused = not all(self.has_delete_permission(request, saved_list) for saved_list in objs)
        return lines, {"lists": len(lines)}, {self.opts.verbose_name} if refused else set(), []

    @admin.display(description="entries", ordering="item_count")
    def num_items(self, saved_list: SavedList) -> int:
        return int(saved_list.item_count)  # type: ignore[attr-defined]


@admin.register(SharedPage)
class SharedPageAdmin(ReadOnlyAdmin):
    """Features and vectors whose pages are public. The menu of their page shares them, and stops that."""

    empty_words = "No public pages. Share on the page of a feature or vector creates one."
    list_display = ("subject_link", "kind", "model_name", "shared_by", "shared_at")
    list_display_links = None
    list_select_related = ("feature__sae__model", "vector__vector_set__model", "shared_by")
    search_fields = ("feature__label", "feature__sae__name", "vector__vector_set__name")

    def get_queryset(self, request: HttpRequest) -> QuerySet[SharedPage]:
        return visible_pages(request.user, super().get_queryset(request))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Lead to the page of the feature or vector, where sharing is stopped."""
        shared = self.get_object(request, unquote(object_id))
        if not isinstance(shared, SharedPage) or not self.has_view_permission(request, shared):
            return super().change_view(request, object_id, form_url, extra_context)
        return HttpResponseRedirect(page_url(shared.subject))

    @admin.display(description="page")
    def subject_link(self, shared: SharedPage) -> SafeString:
        return format_html('<a href="{}">{}</a>', page_url(shared.subject), shared.subject)

    @admin.display(
        description="model", ordering=Coalesce("feature__sae__model__name", "vector__vector_set__model__name")
    )
    def model_name(self, shared: SharedPage) -> str:
        return model_of(shared.subject).name


MAX_ITEMS = 500  # shown
