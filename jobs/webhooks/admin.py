"""Webhook endpoints and deliveries in the admin: register, rotate, test, see attempts, deliver again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache

from core.read_only_admin import ReadOnlyAdmin
from jobs.errors import JobStateError
from jobs.webhooks import services
from jobs.webhooks.models import MANAGE_ALL, EventType, WebhookDelivery, WebhookEndpoint

_TEMPLATES = "admin/webhooks/webhookendpoint"
CHANGE = "webhooks.change_webhookendpoint"
GRACES = ((0, "no (the secret may have leaked)"), (3_600, "for an hour"), (86_400, "for a day"))


class EndpointForm(forms.ModelForm[WebhookEndpoint]):
    event_types = forms.MultipleChoiceField(
        choices=EventType.choices,
        widget=forms.CheckboxSelectMultiple,
        help_text="Each event has the id of the object that it is about; read that over the API.",
    )

    def clean_receives_all(self) -> bool:
        receives_all: bool = self.cleaned_data["receives_all"]
        if receives_all and self.instance.pk is not None and not self.instance.owner.has_perm(MANAGE_ALL):
            raise ValidationError(f"{self.instance.owner} may not receive everybody's events.")
        return receives_all


class RotateForm(forms.Form):
    grace_s = forms.TypedChoiceField(
        label="Events are signed with the old secret too",
        choices=GRACES,
        coerce=int,
        initial=86_400,
        widget=forms.RadioSelect,
    )


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """The secret is shown only in the response that creates or rotates it."""

    form = EndpointForm
    empty_words = (
        "No webhooks yet. An endpoint is a URL that gets a request when a job, a batch or a background response ends, "
        "or a watch rule matches."
    )
    list_display = ("name", "url", "is_enabled", "receives_all", "owner", "last_delivery")
    list_filter = ("is_enabled", "receives_all")
    search_fields = ("name", "url", "owner__username")
    readonly_fields = ("owner", "secret_hint", "rotated_at", "created_at")

    class Media:
        css = {"all": ("jobs/jobs.css",)}

    def get_urls(self) -> list[Any]:
        acts = (("rotate", self.rotate_view), ("test", self.test_view))
        own = [
            path(
                f"<path:object_id>/{name}/",
                self.admin_site.admin_view(view),
                name=f"webhooks_webhookendpoint_{name}",
            )
            for name, view in acts
        ]
        return [*own, *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookEndpoint]:
        return services.visible_endpoints(request.user)

    def get_fields(self, request: HttpRequest, obj: WebhookEndpoint | None = None) -> tuple[str, ...]:
        """Offer everybody's events only to users who may receive them."""
        may_receive_all = request.user.has_perm(MANAGE_ALL) or (obj is not None and obj.receives_all)
        settable = WebhookEndpoint.SETTABLE
        fields = settable if may_receive_all else tuple(name for name in settable if name != "receives_all")
        return fields if obj is None else (*fields, *self.readonly_fields)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the secret after saving, whichever button was pressed."""
        only_save = {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().add_view(request, form_url, {**(extra_context or {}), **only_save})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        endpoint = self.get_object(request, unquote(object_id))
        can_act = endpoint is not None and self.has_change_permission(request, endpoint)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), "can_act": can_act})

    def save_model(self, request: HttpRequest, obj: WebhookEndpoint, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        if change:
            services.change_endpoint(endpoint=obj, user=_user(request))
        else:
            obj.owner = _user(request)
            request.created_secret = services.create_endpoint(endpoint=obj, user=obj.owner)  # type: ignore[attr-defined]  # for response_add

    def response_add(
        self, request: HttpRequest, obj: WebhookEndpoint, post_url_continue: str | None = None
    ) -> HttpResponse:
        return self._secret_page(request, request.created_secret, "Webhook endpoint created")  # type: ignore[attr-defined]  # just set

    def delete_model(self, request: HttpRequest, obj: WebhookEndpoint) -> None:
        services.delete_endpoints(endpoints=WebhookEndpoint.objects.filter(pk=obj.pk), user=_user(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint]) -> None:
        rows = WebhookEndpoint.objects.filter(pk__in=queryset.values("pk"))
        services.delete_endpoints(endpoints=rows, user=_user(request))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Leave out the deliveries, which nobody may delete by themselves and which go with their endpoint."""
        links = [format_html('Webhook endpoint: <a href="{}">{}</a>', _url(each), each) for each in objs]
        return links, {"webhook endpoints": len(links)}, set(), []

    def rotate_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        endpoint = self._endpoint(request, object_id)
        form = RotateForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            grace = timedelta(seconds=form.cleaned_data["grace_s"])
            created = services.rotate_secret(endpoint=endpoint, grace=grace, user=_user(request))
            self.log_change(request, endpoint, "Rotated.")
            return self._secret_page(request, created, "Webhook secret rotated")
        context = {**self.admin_site.each_context(request), "title": f"Rotate the secret of {endpoint}"}
        context |= {"opts": self.opts, "original": endpoint, "form": form}
        return render(request, f"{_TEMPLATES}/rotate.html", context)

    def test_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        endpoint = self._endpoint(request, object_id)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        return _send(self, request, lambda: services.send_test_event(endpoint=endpoint), _url(endpoint))

    @admin.display(description="last delivery")
    def last_delivery(self, endpoint: WebhookEndpoint) -> str:
        delivery = endpoint.deliveries.first()
        return "–" if delivery is None else f"{delivery.event_type}: {delivery.get_state_display().lower()}"

    @admin.display(description="secret")
    def secret_hint(self, endpoint: WebhookEndpoint) -> str:
        if endpoint.has_old_secret and endpoint.old_valid_until is not None:
            return f"{endpoint.secret_hint}; the old one signs until {endpoint.old_valid_until:%Y-%m-%d %H:%M} UTC"
        return endpoint.secret_hint

    def _endpoint(self, request: HttpRequest, object_id: str) -> WebhookEndpoint:
        endpoint = self.get_object(request, unquote(object_id))
        if not isinstance(endpoint, WebhookEndpoint):
            raise Http404
        if not self.has_change_permission(request, endpoint):
            raise PermissionDenied
        return endpoint

    def _secret_page(self, request: HttpRequest, created: services.CreatedSecret, title: str) -> HttpResponse:
        """Show the secret in the response itself: a message would be stored in a cookie or the session."""
        context = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "created": created}
        return _render_once(request, context)


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(ReadOnlyAdmin):
    """Deliveries, read-only but for sending them again."""

    empty_words = "No deliveries yet. Each event that is sent to a webhook endpoint has one, with all its attempts."
    list_display = ("created_at", "endpoint", "event_type", "state", "last_attempt", "num_attempts", "next_attempt_at")
    list_filter = ("state", "event_type", ("endpoint", admin.RelatedOnlyFieldListFilter))
    search_fields = ("event_id__startswith", "endpoint__name")
    date_hierarchy = "created_at"
    list_per_page = 50
    show_full_result_count = False

    class Media:
        css = {"all": ("jobs/jobs.css",)}

    fields = (
        *("endpoint", "event_id", "event_type", "body", "created_at", "state", "error", "attempt_list"),
        *("next_attempt_at", "give_up_at", "ended_at"),
    )

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.redeliver_view)
        name = "webhooks_webhookdelivery_redeliver"
        return [path("<path:object_id>/redeliver/", view, name=name), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookDelivery]:
        return services.visible_deliveries(request.user).prefetch_related("attempts")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"can_redeliver": request.user.has_perm(CHANGE)}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def redeliver_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        delivery = self.get_object(request, unquote(object_id))
        if not isinstance(delivery, WebhookDelivery):
            raise Http404
        if not request.user.has_perm(CHANGE):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        return _send(self, request, lambda: services.redeliver(delivery=delivery), _url(delivery))

    @admin.display(description="last attempt")
    def last_attempt(self, delivery: WebhookDelivery) -> str:
        attempts = list(delivery.attempts.all())  # prefetched
        return str(attempts[-1]) if attempts else "–"

    @admin.display(description="data")
    def body(self, delivery: WebhookDelivery) -> str:
        return ", ".join(f"{name}: {value}" for name, value in delivery.data.items())

    @admin.display(description="attempts")
    def attempt_list(self, delivery: WebhookDelivery) -> SafeString | str:
        rows = [
            (f"{timezone.localtime(each.at):%Y-%m-%d %H:%M:%S}", str(each), f"{each.took_ms:,}")
            for each in delivery.attempts.all()
        ]
        items = format_html_join("", "<li>{}: {} ({} ms)</li>", rows)
        return format_html("<ol>{}</ol>", items) if rows else "–"


def _send(
    model_admin: admin.ModelAdmin[Any], request: HttpRequest, act: Callable[[], WebhookDelivery], back: str
) -> HttpResponse:
    """Queue a delivery and open its page, or show why that is not possible."""
    try:
        delivery = act()
    except JobStateError as error:
        model_admin.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(back)
    model_admin.message_user(request, "Sending. Reload the page to see the outcome.", messages.SUCCESS)
    return HttpResponseRedirect(_url(delivery))


def _url(row: WebhookEndpoint | WebhookDelivery) -> str:
    return reverse(f"admin:webhooks_{row._meta.model_name}_change", args=[row.pk])


@never_cache
def _render_once(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return render(request, f"{_TEMPLATES}/created.html", context)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
