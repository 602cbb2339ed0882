"""Pages of a model's admin beside the form: preview, acts, and how its models stand now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import path, reverse, reverse_lazy
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache

from inference import services
from inference.client import EngineError
from inference.job_kinds import WARM
from inference.model_checks import within_roots
from inference.model_preview import preview_model
from inference.model_standing import memory_need, model_standing
from inference.model_template import own_chat_template
from inference.models import LanguageModel
from inference.sampling_words import sampling_rows
from inference.sources import HUB_ID, ModelSource, SourceError, is_local
from jobs.errors import JobError
from jobs.services import enqueue_job

_TEMPLATES = "admin/inference/languagemodel"
MAX_LIVE = 100
LIVE_URL = reverse_lazy("admin:inference_languagemodel_live")


class LanguageModelForm(forms.ModelForm[LanguageModel]):
    """Checks a new source before the model looks at it."""

    def clean_source(self) -> str:
        source = str(self.cleaned_data["source"])
        return within_roots(source) if "source" in self.changed_data else source


class PreviewForm(forms.Form):
    source = forms.CharField(
        max_length=500, widget=forms.TextInput(attrs={"size": 60}), help_text="A directory of the server, or a Hub id."
    )
    revision = forms.CharField(max_length=100, required=False)

    def clean_source(self) -> str:
        source = str(self.cleaned_data["source"]).replace("\0", "")
        if not is_local(source) and not HUB_ID.fullmatch(source):
            raise forms.ValidationError("This is neither a directory nor a Hub id such as org/model.")
        return within_roots(source)


class ModelPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Preview is a POST too: it asks another server, and nobody shall be lured into that by a link."""

    def get_urls(self) -> list[Any]:
        wrap = self.admin_site.admin_view
        own = [
            path("preview/", wrap(self.preview_view), name="inference_languagemodel_preview"),
            path("live/", wrap(self.live_view), name="inference_languagemodel_live"),
            path("<path:object_id>/act/<slug:act>/", wrap(self.act_view), name="inference_languagemodel_act"),
        ]
        return [*own, *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """What a source holds, from its configuration alone; then the form that registers it."""
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
        """How models stand, as HTML by their number: what live.js puts into the page."""
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
        except (EngineError, JobError) as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        self.log_change(request, model, done.format(model))
        self.message_user(request, done.format(model), messages.SUCCESS)


def _warm(model: LanguageModel, request: HttpRequest) -> None:
    assert isinstance(request.user, User)
    enqueue_job(kind=WARM, params={"model": model.name}, owner=request.user, title=f"Warm {model}")


Act = Callable[[LanguageModel, HttpRequest], object]
UNLOADING = "Unload of {} requested: requests that it answers end first. The next request loads it again."
ACTS: dict[str, tuple[Act, str]] = {
    "load": (lambda model, _: services.load_model(model=model), "Load of {} requested. Its state is shown below."),
    "unload": (lambda model, _: services.unload_model(model=model), UNLOADING),
    "unload_now": (
        lambda model, _: services.unload_model(model=model, now=True),
        "Unload of {} requested, ending the requests that it answers. The next request loads it again.",
    ),
    "pin": (lambda model, _: services.pin_model(model=model, is_pinned=True), "{} is pinned: it stays in memory."),
    "unpin": (lambda model, _: services.pin_model(model=model, is_pinned=False), "{} is not pinned any more."),
    "default": (lambda model, _: services.set_default_model(model=model), "{} is the default model now."),
    "warm": (_warm, "A job loads {} and lets it write a token, so that the first request need not wait."),
}


def live_html(model: LanguageModel) -> SafeString:
    return render_to_string(f"{_TEMPLATES}/standing.html", {"model": model, "standing": model_standing(model)})


def page_context(model: LanguageModel) -> dict[str, Any]:
    """What a model's page shows around its form."""
    return {
        "standing": model_standing(model),
        "memory": memory_need(model),
        "acts": list(_offered(model)),
        "live_url": LIVE_URL,
        "sampling": sampling_rows(model),
        "own_template": own_chat_template(model),
    }


def _offered(model: LanguageModel) -> Iterator[tuple[str, str]]:
    if model.state in (LanguageModel.State.LOADED, LanguageModel.State.LOADING):
        yield "unload", "Unload"
        yield "unload_now", "Unload now"
    else:
        yield "load", "Load"
    yield "warm", "Warm"
    yield ("unpin", "Unpin") if model.pinned else ("pin", "Pin")
    if not model.is_default:
        yield "default", "Make it the default"
