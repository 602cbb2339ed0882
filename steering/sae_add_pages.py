"""The page that adds an SAE: what a source holds, what one of its SAEs is, and then its registration."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference.files.sources import SourceError
from steering.candidate_wording import describe, estimated_bytes
from steering.errors import SteeringError
from steering.hub import find_saes
from steering.models import SAE
from steering.sae_forms import AddSAEForm, SourceForm
from steering.sae_jobs import AddedSAE, add_sae, request_sae
from steering.saes.errors import InvalidSAEError

_MAX_LISTED = 500


class AddPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Listing and preview are POSTs too: they ask another server, and nobody shall be lured into that by a link."""

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return self._form_page(request, SourceForm())
        if "_list" in request.POST:
            return self._list(request)
        if "_preview" in request.POST:
            return self._preview(request)
        form = AddSAEForm(request.POST)
        return self._add(request, form) if form.is_valid() else self._form_page(request, form)

    def _list(self, request: HttpRequest) -> HttpResponse:
        form = SourceForm(request.POST)
        if not form.is_valid():
            return self._form_page(request, form)
        place = form.location
        try:
            found = find_saes(place.source, revision=place.revision, subfolder=place.subfolder)
        except (SourceError, InvalidSAEError) as error:
            form.add_error("source", str(error))
            return self._form_page(request, form)
        rows = [(sae, filesizeformat(sae.num_bytes)) for sae in found[:_MAX_LISTED]]
        return self._form_page(request, form, found=rows, num_found=len(found))

    def _preview(self, request: HttpRequest) -> HttpResponse:
        """What the configuration says. The button of a listing brings the sub-folder along."""
        data = request.POST.copy()
        data["subfolder"] = request.POST["_preview"] or request.POST.get("subfolder", "")
        form = SourceForm(data)
        if not form.is_valid():
            return self._form_page(request, form)
        try:
            candidate = form.inspect()
        except (InvalidSAEError, SourceError) as error:
            form.add_error("source", str(error))
            return self._form_page(request, form)
        except SteeringError as error:
            form.add_error(None, error.message)
            return self._form_page(request, form)
        math = candidate.config.math
        context = {
            "description": describe(candidate, form.cleaned_data["model"]),
            "doubts": candidate.doubts,
            "memory": filesizeformat(estimated_bytes(math.d_in, math.d_sae)),
            "others": SAE.objects.filter(model=form.cleaned_data["model"]).count(),
        }
        return self._form_page(request, form, preview=context)

    def _add(self, request: HttpRequest, form: AddSAEForm) -> HttpResponse:
        if form.prepared is None:
            return self._enqueue(request, form)
        added = add_sae(
            prepared=form.prepared,
            measures=form.cleaned_data["measures"],
            owner=request.user,  # type: ignore[arg-type]  # staff
        )
        self.log_addition(request, added.sae, "Added.")
        self.message_user(request, _registered(added), messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:steering_sae_change", args=[added.sae.pk]))

    def _enqueue(self, request: HttpRequest, form: AddSAEForm) -> HttpResponse:
        data = form.cleaned_data
        job = request_sae(
            name=data["name"], model=data["model"], location=form.location, layer=data["layer"], site=data["site"],
            measures=data["measures"],
            owner=request.user,  # type: ignore[arg-type]  # staff
        )  # fmt: skip
        return HttpResponseRedirect(reverse("admin:jobs_job_change", args=[job.pk]))

    def _form_page(self, request: HttpRequest, form: SourceForm, **context: Any) -> HttpResponse:
        context |= {"title": "Add SAE", "opts": self.opts, "form": form, **self.admin_site.each_context(request)}
        return TemplateResponse(request, "admin/steering/sae/add.html", context)


def _registered(added: AddedSAE) -> SafeString:
    if added.measurement is None:
        return format_html("Registered {}.", added.sae)
    url = reverse("admin:jobs_job_change", args=[added.measurement.pk])
    return format_html('Registered {}. <a href="{}">A job</a> measures how well it fits.', added.sae, url)
