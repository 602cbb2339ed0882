"""What an SAE's page can do: measure it, load and unload its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse

from inference.files.sources import SourceError
from jobs.services import enqueue_job
from steering.corpus_shelf import corpus_names
from steering.models import SAE
from steering.profiles.resolver import get_resolver
from steering.profiles.snapshot import source_of
from steering.sae_forms import CheckForm, EmbedForm
from steering.sae_jobs import request_measurement
from steering.saes.errors import InvalidSAEError


class SAEPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """All of them are POSTs of those who may change SAEs."""

    def get_urls(self) -> list[Any]:
        acts: Sequence[tuple[str, Callable[[HttpRequest, SAE], str]]] = (
            ("check", self._check),
            ("load", self._load),
            ("unload", self._unload),
            ("embed", self._embed),
        )
        own = [
            path(f"<path:object_id>/{name}/", self.admin_site.admin_view(self._act(act)), name=f"steering_sae_{name}")
            for name, act in acts
        ]
        return [*own, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {**(extra_context or {})}
        sae = self.get_object(request, unquote(object_id))
        if isinstance(sae, SAE) and self.has_change_permission(request, sae):
            context |= {
                "check_form": CheckForm(corpus_names()),
                "embed_form": EmbedForm(),
                "is_loaded": get_resolver().loaded_bytes(sae.checksum) is not None,
                "can_act": True,
            }
        return super().change_view(request, object_id, form_url, context)

    def _act(self, act: Callable[[HttpRequest, SAE], str]) -> Callable[..., HttpResponse]:
        """A view that checks who asks, does it and goes where ``act`` says."""

        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            sae = self.get_object(request, unquote(object_id))
            if not isinstance(sae, SAE):
                raise Http404
            if not self.has_change_permission(request, sae):
                raise PermissionDenied
            return HttpResponseRedirect(act(request, sae))

        return view

    def _check(self, request: HttpRequest, sae: SAE) -> str:
        form = CheckForm(corpus_names(), request.POST)
        if not form.is_valid():
            for errors in form.errors.values():
                self.message_user(request, " ".join(str(error) for error in errors), messages.ERROR)
            return _url(sae)
        job = request_measurement(sae=sae, owner=request.user, **form.cleaned_data)  # type: ignore[arg-type]  # staff
        self.log_change(request, sae, "Began to measure it.")
        return reverse("admin:jobs_job_change", args=[job.pk])

    def _embed(self, request: HttpRequest, sae: SAE) -> str:
        form = EmbedForm(request.POST)
        if not form.is_valid():
            self.message_user(request, "Choose an embedding model.", messages.ERROR)
            return _url(sae)
        model = form.cleaned_data["embedding_model"]
        job = enqueue_job(
            kind="steering.embed_labels",
            params={"sae": sae.pk, "embedding_model": model.pk},
            owner=request.user,  # type: ignore[arg-type]
            title=f"Embed labels of {sae} with {model}",
        )
        return reverse("admin:jobs_job_change", args=[job.pk])

    def _load(self, request: HttpRequest, sae: SAE) -> str:
        try:
            get_resolver().sae(source_of(sae))
        except (InvalidSAEError, SourceError) as error:
            self.message_user(request, f"{sae} was not loaded. {error}", messages.ERROR)
        else:
            self.message_user(request, f"The weights of {sae} are loaded.", messages.SUCCESS)
        return _url(sae)

    def _unload(self, request: HttpRequest, sae: SAE) -> str:
        get_resolver().unload_sae(sae.checksum)
        text = f"The weights of {sae} are unloaded. The next request with one of its features loads them again."
        self.message_user(request, text, messages.SUCCESS)
        return _url(sae)


def _url(sae: SAE) -> str:
    return reverse("admin:steering_sae_change", args=[sae.pk])
