"""Export and import pages of the profiles' admin; an import shows a preview first."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from inference.models import LanguageModel
from steering.errors import SteeringError
from steering.exchange.documents import MAX_BYTES
from steering.exchange.exports import draft_document, file_name, version_document
from steering.exchange.imports import ImportOptions, import_profiles, plan_import
from steering.exchange.plan import ImportPlan
from steering.models import SAE, ProfileVersion, SteeringProfile
from steering.profiles.display import edits_html
from steering.spec.errors import InvalidSpecError


class ImportTargetForm(forms.Form):
    """The target and the options of an import."""

    model = forms.ModelChoiceField(LanguageModel.objects.all(), help_text="The model that the profiles steer.")
    sae = forms.ModelChoiceField(
        SAE.objects.select_related("model"),
        required=False,
        label="SAE",
        empty_label="as in the file",
        help_text="The SAE that the file refers to. Required if several of the model's SAEs match.",
    )
    name = forms.SlugField(max_length=100, required=False, help_text="Leave empty to use the name in the file.")
    replaces = forms.BooleanField(
        required=False,
        label="Replace drafts",
        help_text="Replaces the drafts of existing profiles with these names. Published versions are not affected.",
    )
    plan: ImportPlan

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        sae, model = data.get("sae"), data.get("model")
        if sae is not None and model is not None and sae.model_id != model.pk:
            self.add_error("sae", f"{sae} is an SAE of the model {sae.model}, not of {model}.")
        return data

    @property
    def options(self) -> ImportOptions:
        data = self.cleaned_data
        return ImportOptions(data["model"], data["sae"], data["name"], data["replaces"])

    def _plan(self, data: bytes, name: str, field: str) -> None:
        try:
            self.plan = plan_import(data, name, self.options)
        except InvalidSpecError as error:
            raise ValidationError({field: [str(problem) for problem in error.problems]}) from error


class ImportForm(ImportTargetForm):
    """Reads the file during validation, so that its problems show beside the field."""

    file = forms.FileField(
        max_length=200,
        help_text=(
            "Supported: JSON or CSV from miLLM, miLLM 1, miStudio (clusters), Neuronpedia (steering), Goodfire "
            "(variants), lm-evaluation-harness."
        ),
    )
    text = ""
    field_order = ("file", "model", "sae", "name", "replaces")

    def clean(self) -> dict[str, Any]:
        data = super().clean()
        if not self.errors:
            content = data["file"].read(MAX_BYTES + 1)
            self._plan(content, data["file"].name, "file")
            self.text = content.decode("utf-8-sig")  # the plan has seen that it is UTF-8
        return data


class ConfirmImportForm(ImportTargetForm):
    """The import of a preview, from hidden fields; ``fingerprint`` is that of the previewed plan."""

    file_name = forms.CharField(max_length=200)
    text = forms.CharField(max_length=MAX_BYTES, strip=False)
    fingerprint = forms.CharField(max_length=64)

    def clean(self) -> dict[str, Any]:
        data = super().clean()
        if not self.errors:
            self._plan(data["text"].encode(), data["file_name"], "text")
            if self.plan.fingerprint != data["fingerprint"]:
                raise ValidationError("The server's data changed since the preview. Review the import again.")
        return data


_TEMPLATES = "admin/steering/steeringprofile"
_CHANGELIST = "admin:steering_steeringprofile_changelist"


class ExchangePages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Exporting needs the permission to view a profile, importing the permission to add profiles."""

    change_list_template = f"{_TEMPLATES}/change_list.html"

    def get_urls(self) -> list[Any]:
        wrap = self.admin_site.admin_view
        name = "steering_steeringprofile"
        return [
            path("import/", wrap(self.import_view), name=f"{name}_import"),
            path("import/confirm/", wrap(self.confirm_import_view), name=f"{name}_confirm_import"),
            path("<path:object_id>/export/", wrap(self.export_view), name=f"{name}_export"),
            path("<path:object_id>/export/<int:number>/", wrap(self.export_view), name=f"{name}_export_version"),
            *super().get_urls(),
        ]

    def export_view(self, request: HttpRequest, object_id: str, number: int | None = None) -> HttpResponse:
        """Download a version, or without a number the draft."""
        profile = self.get_object(request, unquote(object_id))
        if profile is None:
            raise Http404
        if not self.has_view_permission(request, profile):
            raise PermissionDenied
        try:
            document = draft_document(profile) if number is None else _version_document(profile, number)
        except SteeringError as error:
            self.message_user(request, f"{profile} was not exported. {error}", messages.ERROR)
            return HttpResponseRedirect(reverse("admin:steering_steeringprofile_change", args=[profile.pk]))
        text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
        headers = {"Content-Disposition": f'attachment; filename="{file_name(profile, number)}"'}
        return HttpResponse(text, content_type="application/json", headers=headers)

    def import_view(self, request: HttpRequest) -> HttpResponse:
        """Read a file and show a preview; nothing is written."""
        self._check_may_import(request)
        form = ImportForm(request.POST or None, request.FILES or None)
        if request.method == "POST" and form.is_valid():
            return self._show_plan(request, form, form.text, form.cleaned_data["file"].name)
        return self._page_of_import(request, "import", form=form)

    def confirm_import_view(self, request: HttpRequest) -> HttpResponse:
        """Import what the preview showed. The form contains the file, which is read again."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._check_may_import(request)
        form = ConfirmImportForm(request.POST)
        if form.is_valid() and self._import(request, form):
            return HttpResponseRedirect(reverse(_CHANGELIST))
        for error in (text for texts in form.errors.values() for text in texts):
            self.message_user(request, f"Nothing was imported. {error}", messages.ERROR)
        return HttpResponseRedirect(reverse("admin:steering_steeringprofile_import"))

    def _import(self, request: HttpRequest, form: ImportTargetForm) -> bool:
        if form.options.replaces and not self.has_change_permission(request):
            raise PermissionDenied
        try:
            made = import_profiles(plan=form.plan, options=form.options, user=request.user)  # type: ignore[arg-type]  # staff
        except (SteeringError, ValidationError) as error:
            texts = error.messages if isinstance(error, ValidationError) else [error.message]
            self.message_user(request, f"Nothing was imported. {' '.join(texts)}", messages.ERROR)
            return False
        for profile in made:
            self.log_change(request, profile, f"Imported from a file (format: {form.plan.format}).")
            self.message_user(request, f"Imported {profile} as a draft. Publish to use it.", messages.SUCCESS)
        return True

    def _show_plan(self, request: HttpRequest, form: ImportTargetForm, text: str, name: str) -> HttpResponse:
        hidden = {field: request.POST.get(field, "") for field in ("model", "sae", "name", "replaces")}
        hidden |= {"file_name": name, "text": text, "fingerprint": form.plan.fingerprint}
        if not hidden["replaces"]:
            del hidden["replaces"]
        existing = set(SteeringProfile.objects.filter(model=form.options.model).values_list("name", flat=True))
        rows = [(profile, profile.name in existing, edits_html(profile.specs)) for profile in form.plan.profiles]
        return self._page_of_import(request, "import_preview", plan=form.plan, rows=rows, hidden=hidden, file=name)

    def _check_may_import(self, request: HttpRequest) -> None:
        if not self.has_add_permission(request):
            raise PermissionDenied

    def _page_of_import(self, request: HttpRequest, name: str, **context: Any) -> HttpResponse:
        context |= {**self.admin_site.each_context(request), "title": "Import profiles", "opts": self.opts}
        return TemplateResponse(request, f"{_TEMPLATES}/{name}.html", context)


def _version_document(profile: SteeringProfile, number: int) -> dict[str, Any]:
    version = ProfileVersion.objects.filter(profile=profile, number=number).select_related("profile__model").first()
    if version is None:
        raise Http404
    return version_document(version)
