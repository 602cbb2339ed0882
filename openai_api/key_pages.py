"""Pages of a key's admin beside the form: the new secret, rotate, revoke."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.views.decorators.cache import never_cache

from openai_api.key_forms import RevokeForm, RotateForm
from openai_api.models import ApiKey
from openai_api.services.api_keys import CreatedKey, revoke_api_keys, rotate_api_key

_TEMPLATES = "admin/openai_api/apikey"


class KeyPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Both pages ask first and say what will happen; a POST does it."""

    def get_urls(self) -> list[Any]:
        acts = (("rotate", self.rotate_view), ("revoke", self.revoke_view))
        own = [
            path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=f"openai_api_apikey_{name}")
            for name, view in acts
        ]
        return [*own, *super().get_urls()]

    def rotate_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = self._key(request, object_id)
        form = RotateForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                created = rotate_api_key(api_key=key, grace=form.grace, user=staff(request))
            except ValidationError as error:
                form.add_error(None, error)
            else:
                self.log_change(request, key, "Rotated.")
                return self.secret_page(request, created, "API key rotated")
        return self._ask(request, key, "rotate", f"Rotate {key}", form)

    def revoke_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = self._key(request, object_id)
        form = RevokeForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            rows = ApiKey.objects.filter(pk=key.pk)
            if revoke_api_keys(keys=rows, reason=form.cleaned_data["reason"], user=staff(request)):
                self.log_change(request, key, "Revoked.")
                self.message_user(request, f"{key} is revoked. Requests with it are refused now.", messages.SUCCESS)
            else:
                self.message_user(request, f"{key} was revoked already.", messages.WARNING)
            return HttpResponseRedirect(reverse("admin:openai_api_apikey_change", args=[key.pk]))
        return self._ask(request, key, "revoke", f"Revoke {key}", form)

    def secret_page(self, request: HttpRequest, created: CreatedKey, title: str) -> HttpResponse:
        """Shows the key in the answer itself: a message would be kept in a cookie or the session until it is read."""
        context = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "created": created}
        context["base_url"] = request.build_absolute_uri("/v1")
        return _render_once(request, context)

    def _key(self, request: HttpRequest, object_id: str) -> ApiKey:
        key = self.get_object(request, unquote(object_id))
        if not isinstance(key, ApiKey):
            raise Http404
        if not self.has_change_permission(request, key):
            raise PermissionDenied
        return key

    def _ask(self, request: HttpRequest, key: ApiKey, name: str, title: str, form: forms.Form) -> HttpResponse:
        context = {**self.admin_site.each_context(request), "title": title, "opts": self.opts}
        return render(request, f"{_TEMPLATES}/{name}.html", {**context, "original": key, "form": form})


@never_cache
def _render_once(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return render(request, f"{_TEMPLATES}/created.html", context)


def staff(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
