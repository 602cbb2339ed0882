"""Users and groups in the admin: one page for name, password and role.

Users who are not superusers can change only accounts and groups within their own permissions, and grant no others.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.forms import AdminUserCreationForm
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.forms import CheckboxSelectMultiple
from django.http import HttpRequest

from console.models import SingleSignOnIdentity
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
