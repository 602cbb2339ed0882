"""Users in the admin: one page for name, password and role."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import AdminUserCreationForm
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.forms import CheckboxSelectMultiple
from django.http import HttpRequest

admin.site.unregister(User)


class NewUserForm(AdminUserCreationForm[User]):
    """A new user may log in here unless the tick is taken away."""

    class Meta:
        model = User
        fields = ("username", "groups", "is_staff")
        widgets = {"groups": CheckboxSelectMultiple}

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.fields["groups"].help_text = "What the user may do; several add up."
        self.fields["is_staff"].initial = True


@admin.register(User)
class UserPages(UserAdmin):  # type: ignore[type-arg]  # it takes none at run time
    add_form = NewUserForm
    list_display = ("username", "roles", "is_active", "is_staff", "is_superuser", "last_login")
    add_fieldsets = (
        (None, {"fields": ("username", "usable_password", "password1", "password2")}),
        ("Role", {"fields": ("groups", "is_staff")}),
    )
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Role", {"fields": ("groups", "is_staff", "is_superuser", "is_active")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        ("Single permissions", {"fields": ("user_permissions",), "classes": ("collapse",)}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return super().get_queryset(request).prefetch_related("groups")

    @admin.display(description="Roles")
    def roles(self, user: User) -> str:
        return ", ".join(group.name for group in user.groups.all()) or "–"
