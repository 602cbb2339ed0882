"""The admin of models: what is registered, what is loaded, and buttons for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.forms.widgets import Script
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from inference import services
from inference.client import EngineError, get_client
from inference.model_pages import LIVE_URL, UNLOADING, LanguageModelForm, ModelPages, live_html, page_context
from inference.models import LanguageModel
from inference.rights import is_superuser

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


@admin.register(LanguageModel)
class LanguageModelAdmin(ModelPages, admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    form = LanguageModelForm
    empty_words = "No model yet. Who may register one sees first what a directory or a Hub id holds."
    list_display = ("name", "kind", "source", "standing", "memory", "loaded_at", "pinned", "is_default")
    list_filter = ("state", "kind", "is_default", "autoload", "pinned")
    search_fields = ("name", "aliases", "source")
    readonly_fields = LIVE_FIELDS
    actions = ("load_models", "unload_models", "make_default")
    fieldsets = (
        (None, {"fields": ("name", "aliases", "source", "revision", "is_default")}),
        ("Live", {"fields": LIVE_FIELDS}),
        (
            "Load settings",
            {
                "fields": ("dtype", "device", "quantization", "context_length", "autoload", "pinned", "keep_alive_s"),
                "description": "Changes here, of source or chat template take effect when the model is loaded next.",
            },
        ),
        (
            "Requests",
            {
                "fields": (
                    "default_profile",
                    "default_sampling",
                    "chat_template",
                    "tool_format",
                    "shared_prefix_cache",
                )
            },
        ),
        (
            "Trust",
            {
                "fields": ("trust_remote_code", "allow_pickle"),
                "classes": ("collapse",),
                "description": "Either lets the model run its own code. Only a superuser can change them, and they "
                "have no effect unless the server runs with MILLM_ALLOW_REMOTE_CODE=true.",
            },
        ),
    )

    class Media:
        css = {"all": ("inference/models.css",)}
        js = (Script("inference/live.js", type="module"), Script("inference/try_it.js", type="module"))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        model = self.get_object(request, unquote(object_id))
        is_shown = isinstance(model, LanguageModel) and self.has_view_permission(request, model)
        shown = page_context(model) if is_shown and isinstance(model, LanguageModel) else {}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **shown})

    @admin.display(description="state", ordering="state")
    def standing(self, model: LanguageModel) -> SafeString:
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

    @admin.display(description="chosen for it")
    def limits(self, model: LanguageModel) -> str:
        """From the machine, the settings and the model; known once it is loaded."""
        return _definitions(lambda: services.describe_limits(model=model)) or "Known while the model is loaded."

    @admin.display(description="kernels")
    def kernels(self, model: LanguageModel) -> str:
        try:
            stats = get_client().stats()
        except EngineError as error:
            return str(error)
        return next((m.kernels for m in stats.by_model if m.name == model.name and m.kernels), "–")

    @admin.display(description="engine settings")
    def engine_settings(self, model: LanguageModel) -> str:
        return _definitions(lambda: get_client().settings())

    @admin.action(description="Load", permissions=["change"])
    def load_models(self, request: HttpRequest, queryset: QuerySet[LanguageModel]) -> None:
        self._act(request, queryset, services.load_model, "Load of {} requested. The list shows its state.")

    @admin.action(description="Unload", permissions=["change"])
    def unload_models(self, request: HttpRequest, queryset: QuerySet[LanguageModel]) -> None:
        self._act(request, queryset, services.unload_model, UNLOADING)

    @admin.action(description="Set as default", permissions=["change"])
    def make_default(self, request: HttpRequest, queryset: QuerySet[LanguageModel]) -> None:
        models = list(queryset[:2])
        if len(models) != 1:
            self.message_user(request, "Choose one model: only one can be the default.", messages.ERROR)
            return
        self._act(request, queryset, services.set_default_model, "{} is the default model now.")

    def _act(
        self,
        request: HttpRequest,
        queryset: QuerySet[LanguageModel],
        act: Callable[..., None],
        done: str,
    ) -> None:
        """Do something to each chosen model that this user may change, and log it."""
        for model in queryset:
            if not self.has_change_permission(request, model):
                self.message_user(request, f"You may not change {model.name}.", messages.ERROR)
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
        """A model that is not registered yet has no state to show."""
        found = super().get_fieldsets(request, obj)
        return found if obj else [section for section in found if section[1]["fields"] != LIVE_FIELDS]

    def get_readonly_fields(self, request: HttpRequest, obj: LanguageModel | None = None) -> Any:
        """What only a superuser changes is shown to others, and not read from their forms."""
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


def _definitions(read: Callable[[], Mapping[str, object]]) -> str:
    """Names and values, sizes in bytes also as people read them."""
    try:
        found = read()
    except EngineError as error:
        return str(error)
    return format_html_join(", ", "<code>{} = {}</code>", ((name, _readable(name, v)) for name, v in found.items()))


def _readable(name: str, value: object) -> object:
    if name.endswith("_bytes") and isinstance(value, int) and value:
        return f"{value} ({filesizeformat(value)})"
    return value
