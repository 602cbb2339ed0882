"""The admin of models: register, load, unload and preview them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import path, reverse, reverse_lazy
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache

from core.errors import MillmError
from inference import services
from inference.client import EngineError, get_client
from inference.files.architectures import MEDIA_KINDS
from inference.files.preview import preview_model
from inference.files.sources import HUB_ID, ModelSource, SourceError, is_local
from inference.job_kinds import WARM
from inference.model_page import own_chat_template, parameter_rows
from inference.models import LanguageModel
from inference.permissions import is_superuser
from inference.registry.availability import memory_need, model_availability
from inference.registry.registry import get_registry
from inference.validation import within_roots
from jobs.services import enqueue_job

_TEMPLATES = "admin/inference/languagemodel"
MAX_LIVE = 100
LIVE_URL = reverse_lazy("admin:inference_languagemodel_live")
TRIED_KINDS = ("generation", "transcription", "speech", "image", "video")  # on their pages


class LanguageModelForm(forms.ModelForm[LanguageModel]):
    """Checks a changed source before the model is validated."""

    def clean_source(self) -> str:
        source = str(self.cleaned_data["source"])
        return within_roots(source) if "source" in self.changed_data else source


class PreviewForm(forms.Form):
    source = forms.CharField(
        max_length=500,
        widget=forms.TextInput(attrs={"size": 60}),
        help_text="A directory on the server, or a Hugging Face Hub id.",
    )
    revision = forms.CharField(max_length=100, required=False)

    def clean_source(self) -> str:
        source = str(self.cleaned_data["source"]).replace("\0", "")
        if not is_local(source) and not HUB_ID.fullmatch(source):
            raise forms.ValidationError("Enter a directory or a Hub id such as org/model.")
        return within_roots(source)


def _warm(model: LanguageModel, request: HttpRequest) -> None:
    assert isinstance(request.user, User)
    enqueue_job(kind=WARM, params={"model": model.name}, owner=request.user, title=f"Warm {model}")


Act = Callable[[LanguageModel, HttpRequest], object]
UNLOADING = "Unload of {} requested. Running requests finish first; the next request loads it again."
ACTS: dict[str, tuple[Act, str]] = {
    "load": (lambda model, _: services.load_model(model=model), "Load of {} requested. Progress is shown below."),
    "unload": (lambda model, _: services.unload_model(model=model), UNLOADING),
    "unload_now": (
        lambda model, _: services.unload_model(model=model, now=True),
        "Unload of {} requested. Running requests are cancelled; the next request loads it again.",
    ),
    "pin": (lambda model, _: services.pin_model(model=model, is_pinned=True), "Pinned {}. It stays in memory."),
    "unpin": (lambda model, _: services.pin_model(model=model, is_pinned=False), "Unpinned {}."),
    "default": (lambda model, _: services.set_default_model(model=model), "{} is now the default model of its kind."),
    "warm": (_warm, "Started a job that loads {} and generates one token, so that the first request is fast."),
}


def live_html(model: LanguageModel) -> SafeString:
    return render_to_string(
        f"{_TEMPLATES}/availability.html", {"model": model, "availability": model_availability(model)}
    )


def page_context(model: LanguageModel) -> dict[str, Any]:
    """Return the context of a model's page beside its form."""
    return {
        "availability": model_availability(model),
        "memory": memory_need(model),
        "acts": list(_offered(model)),
        "live_url": LIVE_URL,
        "parameters": parameter_rows(model),
        "own_template": own_chat_template(model),
        "try_template": f"{_TEMPLATES}/try_{model.kind}.html" if model.kind in TRIED_KINDS else "",
        "facts": get_registry().media_facts(model.name),
        "max_bytes": settings.MILLM_MAX_BODY_BYTES,
    }


def _offered(model: LanguageModel) -> Iterator[tuple[str, str]]:
    if model.state in (LanguageModel.State.LOADED, LanguageModel.State.LOADING):
        yield "unload", "Unload"
        yield "unload_now", "Unload now"
    else:
        yield "load", "Load"
    if model.kind not in MEDIA_KINDS:
        yield "warm", "Warm"
    yield ("unpin", "Unpin") if model.pinned else ("pin", "Pin")
    if not model.is_default:
        yield "default", "Set as default"


SETTINGS_PART = "part-settings"  # a class for console/page-parts.js
LIVE_FIELDS = (
    "state",
    "kind",
    "error",
    "memory",
    "memory_estimate",
    "limits",
    "kernels",
    "engine_settings",
    "loaded_at",
    "created_at",
)


TEXT_FIELDS = frozenset(  # which models for audio, images and videos do not have
    {
        *("limits", "kernels", "engine_settings", "quantization", "context_length", "replicas", "default_profile"),
        *("chat_template", "tool_format", "shared_prefix_cache"),
        *("input_price", "cached_input_price", "output_price"),
    }
)


def fieldsets_for(kind: str, fieldsets: Sequence[Any]) -> list[Any]:
    """Return the fieldsets without the fields that models of this kind do not have."""
    hidden = TEXT_FIELDS if kind in MEDIA_KINDS else frozenset()
    return [
        (title, {**options, "fields": tuple(name for name in options["fields"] if name not in hidden)})
        for title, options in fieldsets
    ]


@admin.register(LanguageModel)
class LanguageModelAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    form = LanguageModelForm
    empty_words = "No models yet. Add one from a directory on the server or from the Hugging Face Hub."
    list_display = ("name", "kind", "source", "availability", "pinned", "is_default")
    list_filter = ("state", "kind", "is_default", "autoload", "pinned")
    search_fields = ("name", "aliases", "source")
    readonly_fields = LIVE_FIELDS
    actions = ("load_models", "unload_models", "make_default")
    fieldsets = (
        (None, {"fields": ("name", "aliases", "source", "revision", "is_default"), "classes": (SETTINGS_PART,)}),
        ("Status", {"fields": LIVE_FIELDS, "classes": ("part-status",)}),
        (
            "Load settings",
            {
                "fields": (
                    *("dtype", "device", "quantization", "context_length"),
                    *("replicas", "autoload", "pinned", "keep_alive_s"),
                ),
                "classes": (SETTINGS_PART,),
                "description": "Changes to these, the source or the chat template take effect at the next load.",
            },
        ),
        (
            "Requests",
            {
                "fields": (
                    "default_profile",
                    "use_as",
                    "default_sampling",
                    "chat_template",
                    "tool_format",
                    "shared_prefix_cache",
                    "input_price",
                    "cached_input_price",
                    "output_price",
                ),
                "classes": (SETTINGS_PART,),
            },
        ),
        (
            "Trust",
            {
                "fields": ("trust_remote_code", "allow_pickle"),
                "classes": ("collapse", SETTINGS_PART),
                "description": "Either option lets the model run its own code. Only superusers can change them, and "
                "they require MILLM_ALLOW_REMOTE_CODE=true.",
            },
        ),
    )

    class Media:
        css = {"all": ("inference/models.css",)}
        js = (Script("inference/live.js", type="module"), Script("console/page-parts.js", type="module"))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        model = self.get_object(request, unquote(object_id))
        is_shown = isinstance(model, LanguageModel) and self.has_view_permission(request, model)
        shown = page_context(model) if is_shown and isinstance(model, LanguageModel) else {}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **shown})

    @admin.display(description="state", ordering="state")
    def availability(self, model: LanguageModel) -> SafeString:
        return format_html(
            '<div data-model-live="{}" data-live-topic="model:{}" data-live-url="{}">{}</div>',
            model.pk,
            model.pk,
            LIVE_URL,
            live_html(model),
        )

    @admin.display(description="memory", ordering="memory_bytes")
    def memory(self, model: LanguageModel) -> str:
        return filesizeformat(model.memory_bytes) if model.memory_bytes else "–"

    @admin.display(description="memory estimate")
    def memory_estimate(self, model: LanguageModel) -> str:
        return services.describe_memory(model=model) if model.pk else "–"

    @admin.display(description="effective limits")
    def limits(self, model: LanguageModel) -> str:
        """Return the limits derived from the machine, the settings and the model."""
        return _definitions(lambda: services.describe_limits(model=model)) or "Shown while the model is loaded."

    @admin.display(description="kernels")
    def kernels(self, model: LanguageModel) -> str:
        try:
            stats = get_client().stats()
        except EngineError as error:
            return str(error)
        return next((m.kernels for m in stats.by_model if m.name == model.name and m.kernels), "–")

    @admin.display(description="engine settings")
    def engine_settings(self, model: LanguageModel) -> str:
        """Return the engine's settings, with the sizes that were chosen for the model while it is loaded."""
        return _definitions(lambda: _with_chosen_sizes(get_client().settings(), services.describe_limits(model=model)))

    @admin.action(description="Load", permissions=["change"])
    def load_models(self, request: HttpRequest, queryset: QuerySet[LanguageModel]) -> None:
        self._act(request, queryset, services.load_model, "Load of {} requested.")

    @admin.action(description="Unload", permissions=["change"])
    def unload_models(self, request: HttpRequest, queryset: QuerySet[LanguageModel]) -> None:
        self._act(request, queryset, services.unload_model, UNLOADING)

    @admin.action(description="Set as default", permissions=["change"])
    def make_default(self, request: HttpRequest, queryset: QuerySet[LanguageModel]) -> None:
        models = list(queryset[:2])
        if len(models) != 1:
            self.message_user(request, "Select exactly one model.", messages.ERROR)
            return
        self._act(request, queryset, services.set_default_model, "{} is now the default model of its kind.")

    def _act(
        self,
        request: HttpRequest,
        queryset: QuerySet[LanguageModel],
        act: Callable[..., None],
        done: str,
    ) -> None:
        """Apply an action to each selected model that the user may change, and log it."""
        for model in queryset:
            if not self.has_change_permission(request, model):
                self.message_user(request, f"You don't have permission to change {model.name}.", messages.ERROR)
                continue
            try:
                act(model=model)
            except EngineError as error:
                self.message_user(request, str(error), messages.ERROR)
                continue
            self.log_change(request, model, done.format(model.name))
            self.message_user(request, done.format(model.name), messages.SUCCESS)

    def save_model(
        self,
        request: HttpRequest,
        obj: LanguageModel,
        form: forms.ModelForm[LanguageModel],
        change: bool,  # noqa: FBT001
    ) -> None:
        assert isinstance(request.user, User)
        services.save_model(obj, user=request.user)

    def delete_model(self, request: HttpRequest, obj: LanguageModel) -> None:
        services.remove_models(models=[obj])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[LanguageModel]) -> None:
        services.remove_models(models=queryset)

    def get_fieldsets(self, request: HttpRequest, obj: LanguageModel | None = None) -> Any:
        """Hide the live fields of a model that is not registered yet, and those that its kind does not have."""
        found = super().get_fieldsets(request, obj)
        if obj is None:
            return [section for section in found if section[1]["fields"] != LIVE_FIELDS]
        return fieldsets_for(obj.kind, found)

    def get_readonly_fields(self, request: HttpRequest, obj: LanguageModel | None = None) -> Any:
        """Make the fields read-only that only a superuser may change."""
        own = (*super().get_readonly_fields(request, obj),)
        if is_superuser(request.user):
            return own
        is_trusted = obj is not None and any(getattr(obj, name) for name in services.TRUST_FIELDS)
        return (*own, *services.TRUST_FIELDS, *(services.ORIGIN_FIELDS if is_trusted else ()))

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name in {"name", "source"} and field is not None:
            field.widget.attrs["size"] = 60
        return field

    def get_urls(self) -> list[Any]:
        wrap = self.admin_site.admin_view
        own = [
            path("preview/", wrap(self.preview_view), name="inference_languagemodel_preview"),
            path("live/", wrap(self.live_view), name="inference_languagemodel_live"),
            path("<path:object_id>/act/<slug:act>/", wrap(self.act_view), name="inference_languagemodel_act"),
        ]
        return [*own, *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Preview a source from its configuration, with a link to the form that registers it.

        Fetching is a POST, because it sends a request to another server.
        """
        if not self.has_add_permission(request):
            raise PermissionDenied
        form, found = PreviewForm(request.POST or None), None
        if request.method == "POST" and form.is_valid():
            try:
                found = preview_model(ModelSource(form.cleaned_data["source"], form.cleaned_data["revision"]))
            except SourceError as error:
                form.add_error("source", str(error))
        name = form.cleaned_data["source"].rstrip("/").rpartition("/")[2] if found else ""
        context = {**self.admin_site.each_context(request), "title": "Preview a model", "opts": self.opts}
        return TemplateResponse(
            request, f"{_TEMPLATES}/preview.html", {**context, "form": form, "found": found, "name": name}
        )

    def live_view(self, request: HttpRequest) -> HttpResponse:
        """Return the availability of models as HTML by primary key, for live.js."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        asked = [int(pk) for pk in request.GET.get("pk", "").split(",") if pk.isdecimal() and len(pk) < 19]
        rows = self.get_queryset(request).filter(pk__in=asked[:MAX_LIVE])
        return never_cache(lambda _: JsonResponse({"models": {str(row.pk): live_html(row) for row in rows}}))(request)

    def act_view(self, request: HttpRequest, object_id: str, act: str) -> HttpResponse:
        model = self.get_object(request, unquote(object_id))
        if not isinstance(model, LanguageModel) or act not in ACTS:
            raise Http404
        if not self.has_change_permission(request, model):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._do(request, model, act)
        return HttpResponseRedirect(reverse("admin:inference_languagemodel_change", args=[model.pk]))

    def _do(self, request: HttpRequest, model: LanguageModel, act: str) -> None:
        do, done = ACTS[act]
        try:
            do(model, request)
        except MillmError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        self.log_change(request, model, done.format(model))
        self.message_user(request, done.format(model), messages.SUCCESS)


def _definitions(read: Callable[[], Mapping[str, object]]) -> str:
    """Return names and values, sizes also in readable units."""
    try:
        found = read()
    except EngineError as error:
        return str(error)
    rows = ((name.replace("_", " "), _readable(name, value)) for name, value in found.items())
    listed = format_html_join("", "<dt>{}</dt><dd>{}</dd>", rows)
    return format_html('<dl class="model-facts">{}</dl>', listed) if listed else ""


CHOSEN = {
    "max_seq_len": "max_seq_len",
    "max_batch_size": "max_batch_size",
    "max_prefill_tokens": "max_prefill_tokens",
    "min_prefill_tokens": "min_prefill_tokens",
    "kv_cache_bytes": "kv_bytes",
}
"""Sizes that are chosen by device and model where the setting is 0, and the limits that have the choice."""


def _with_chosen_sizes(found: Mapping[str, object], limits: Mapping[str, object]) -> dict[str, object]:
    """Return the settings with the choices in place of zeros: as sizes of a loaded model, otherwise as a word."""
    return {name: value or _chosen(name, limits) if name in CHOSEN else value for name, value in found.items()}


def _chosen(name: str, limits: Mapping[str, object]) -> str:
    value = limits.get(CHOSEN[name])
    if not value:
        return "automatic"
    return f"{_readable(name, value)}, chosen for {limits['device']}"


def _readable(name: str, value: object) -> object:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes") and isinstance(value, int):
        return filesizeformat(value) if value else "auto"
    return value
