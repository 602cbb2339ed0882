"""The page of an SAE's admin where a file of labels is uploaded."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from steering.label_files import parse_label_file
from steering.label_import import import_labels
from steering.labels import LabelSet
from steering.models import SAE
from steering.spec.errors import InvalidSpecError


class LabelsForm(forms.Form):
    """Reads the file while it validates, so that what is wrong with it is said beside the field."""

    file = forms.FileField(
        max_length=200,
        help_text="JSON, JSONL or CSV, also with .gz: miLLM's own fields, or an export of Neuronpedia.",
    )
    found: LabelSet

    def __init__(self, sae: SAE, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sae = sae

    def clean_file(self) -> object:
        file = self.cleaned_data["file"]
        try:
            self.found = parse_label_file(file, file.name, self._sae.d_sae)
        except InvalidSpecError as error:
            raise ValidationError([str(problem) for problem in error.problems]) from error
        return file


class LabelPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """For those who may change features. The form above it shows what stands where."""

    change_form_template = "admin/steering/sae/change_form.html"

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.labels_view)
        return [path("<path:object_id>/labels/", view, name="steering_sae_labels"), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"can_import_labels": _may_import(request), **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    def labels_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Imports the whole file, or says by line and field what is wrong with it."""
        sae = self.get_object(request, unquote(object_id))
        if sae is None:
            raise Http404
        if not (_may_import(request) and self.has_view_permission(request, sae)):
            raise PermissionDenied
        form = LabelsForm(sae, request.POST or None, request.FILES or None)
        if request.method == "POST" and form.is_valid():
            self._import(request, sae, form)
            return HttpResponseRedirect(reverse("admin:steering_sae_change", args=[sae.pk]))
        context = {"title": f"Import labels of {sae}", "opts": self.opts, "original": sae, "form": form}
        context |= self.admin_site.each_context(request)
        return TemplateResponse(request, "admin/steering/sae/labels.html", context)

    def _import(self, request: HttpRequest, sae: SAE, form: LabelsForm) -> None:
        report = import_labels(sae=sae, found=form.found)
        self.log_change(request, sae, f"Imported labels from {form.cleaned_data['file'].name}.")
        self.message_user(request, f"Imported {report}", messages.SUCCESS)
        for doubt in report.doubts:
            self.message_user(request, doubt, messages.WARNING)


def _may_import(request: HttpRequest) -> bool:
    return request.user.has_perm("steering.change_feature")
