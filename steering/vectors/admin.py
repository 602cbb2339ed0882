"""Steering vectors in the admin: upload a file, compute vectors from prompts, show norms, delete unused sets."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from core.errors import MillmError
from core.read_only_admin import ReadOnlyAdmin
from inference.interventions import Site
from inference.models import LanguageModel
from jobs.models import Job
from steering.errors import SteeringError
from steering.exchange.documents import MAX_BYTES
from steering.models import SAE, PlainVector, VectorSet
from steering.saes.files import file_sha256
from steering.sharing import SharingAdmin
from steering.spec.errors import InvalidSpecError
from steering.vectors.dashboard import VectorPages
from steering.vectors.extraction import KIND, ExtractionParams, check_params, read_pairs, request_extraction
from steering.vectors.services import (
    NewVector,
    check_vectors,
    check_vectors_are_unused,
    delete_vectors,
    describe_vectors,
    read_vector_file,
)
from steering.vectors.services import save_vectors as save
from steering.visibility import SEE_ALL_VECTORS, visible_vector_sets, visible_vectors

_MAX_LAYERS = 200


class ExtractionForm(forms.Form):
    name = forms.SlugField(max_length=100, help_text="A name for the vectors.")
    model = forms.ModelChoiceField(LanguageModel.objects.all())
    pairs = forms.FileField(
        max_length=200,
        help_text='A JSON list of {"positive": "…", "negative": "…"}: prompts that differ in one aspect.',
    )
    layers = forms.CharField(
        max_length=_MAX_LAYERS, help_text="Layer numbers, separated by commas. One vector per layer."
    )
    site = forms.ChoiceField(choices=SAE.Site.choices, initial=SAE.Site.RESID_POST)
    method = forms.ChoiceField(
        choices=[
            ("mean_difference", "mean difference (CAA)"),
            ("pca", "first principal component of the differences (PCA)"),
        ]
    )
    position = forms.ChoiceField(
        choices=[("last", "last token of the prompt"), ("mean", "mean over the prompt's tokens")]
    )
    chat = forms.BooleanField(
        required=False, initial=True, label="Apply chat template", help_text="Off: prompts are used as they are."
    )
    description = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 2, "cols": 60}))
    params: ExtractionParams

    def clean_layers(self) -> tuple[int, ...]:
        texts = [text.strip() for text in self.cleaned_data["layers"].split(",")]
        if not all(text.isascii() and text.isdecimal() and len(text) < 6 for text in texts):
            raise ValidationError("Enter layer numbers, separated by commas.")
        return tuple(int(text) for text in texts)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if not self.errors:
            self._check(data)
        return data

    def _check(self, data: dict[str, Any]) -> None:
        try:
            pairs = read_pairs(data["pairs"].read(MAX_BYTES + 1), data["pairs"].name)
        except InvalidSpecError as error:
            raise ValidationError({"pairs": [str(problem) for problem in error.problems]}) from error
        self.params = ExtractionParams(
            name=data["name"], model=data["model"], pairs=pairs, method=data["method"], position=data["position"],
            sites=tuple(Site(layer, data["site"]) for layer in data["layers"]), chat=data["chat"],
            description=data["description"],
        )  # fmt: skip
        try:
            check_params(self.params)
        except MillmError as error:
            raise ValidationError({"layers": str(error)}) from error


def open_extractions(request: HttpRequest) -> list[Job]:
    """Return the user's queued and running extraction jobs, if they have permission to view jobs."""
    if not request.user.has_perm("jobs.view_job"):
        return []
    states = (Job.State.QUEUED, Job.State.RUNNING)
    return list(Job.objects.filter(kind=KIND, owner_id=request.user.pk, state__in=states).order_by("created_at"))


JOB_ORIGIN = re.compile(r"job (?P<job>[0-9a-f-]{36}): (?P<words>.*)")  # as steering/vectors/extraction.py writes it
_ENDINGS = (".safetensors", ".npz", ".gguf")


class AddVectorsForm(forms.ModelForm[VectorSet]):
    """Reads the file during validation, so that its problems are shown next to the field."""

    file = forms.FileField(max_length=200, help_text="safetensors, npz, or GGUF as repeng and llama.cpp write it.")
    layer = forms.IntegerField(
        required=False, min_value=0, help_text="Read only this layer. Required if the file names no layer."
    )
    found: tuple[NewVector, ...]
    checksum = ""

    class Meta:
        model = VectorSet
        fields = ("name", "model", "description")

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if not self.errors:
            self._read(data["file"], data["model"], data["layer"])
        return data

    def _read(self, upload: Any, model: LanguageModel, layer: int | None) -> None:
        ending = Path(upload.name).suffix.lower()
        if ending not in _ENDINGS:
            raise ValidationError({"file": f"The file name must end with one of {', '.join(_ENDINGS)}."})
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"vectors{ending}"
                path.write_bytes(upload.read())  # no larger than a request's body
                self.found, self.checksum = read_vector_file(path, layer=layer), file_sha256(path)
            check_vectors(model, self.found)
        except MillmError as error:
            raise ValidationError({"file": error.message}) from error


@admin.register(VectorSet)
class VectorSetAdmin(VectorPages, SharingAdmin, admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Only the description and the groups can be edited, because published versions depend on the rest."""

    change_form_template = "admin/steering/vectorset/change_form.html"

    change_list_template = "admin/steering/vectorset/change_list.html"
    owner_field = "created_by"
    see_all = SEE_ALL_VECTORS

    empty_words = "No steering vectors yet. Add a file, or extract vectors from prompt pairs."
    list_display = ("name", "model", "num_vectors", "origin_link", "created_by", "created_at")
    list_filter = ("model",)
    list_select_related = ("model", "created_by")
    search_fields = ("name", "description")
    fields = ("description", "shared_with", "name", "model", "origin_link", "checksum", "created_by", "created_at")

    class Media:
        css = {"all": ("steering/admin.css", "steering/feature.css")}
        js = ("steering/load_later.js",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[VectorSet]:
        rows: QuerySet[VectorSet] = visible_vector_sets(request.user, super().get_queryset(request))
        return rows.annotate(vector_count=Count("vectors"))

    def get_fields(self, request: HttpRequest, obj: VectorSet | None = None) -> Any:
        return self.fields if obj else ("name", "model", "description", "file", "layer")

    def get_form(self, request: HttpRequest, obj: VectorSet | None = None, change: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        if obj is None:
            kwargs |= {"form": AddVectorsForm, "fields": ("name", "model", "description")}
        return super().get_form(request, obj, change, **kwargs)

    def get_readonly_fields(self, request: HttpRequest, obj: VectorSet | None = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        fixed = ("name", "model", "origin_link", "checksum", "created_by", "created_at")
        return fixed if self.may_share(request, obj) else (*fixed, "shared_with")

    def save_model(self, request: HttpRequest, obj: VectorSet, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        if change:
            describe_vectors(vector_set=obj, user=request.user)  # type: ignore[arg-type]  # staff
            return
        saved = save(
            name=obj.name, model=obj.model, description=obj.description, vectors=form.found,
            origin=form.cleaned_data["file"].name, checksum=form.checksum, user=request.user,  # type: ignore[arg-type]
        )  # fmt: skip
        obj.pk = saved.pk

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return one line per set instead of all vectors, and the reasons why sets cannot be deleted."""
        lines, protected = [], []
        for vector_set in objs:
            lines.append(f"vector set {vector_set}")
            try:
                check_vectors_are_unused(vector_set=vector_set)
            except SteeringError as error:
                protected.append(error.message)
        needed = set() if self.has_delete_permission(request) else {self.opts.verbose_name}
        return lines, {"vector sets": len(lines)}, needed, protected

    def delete_model(self, request: HttpRequest, obj: VectorSet) -> None:
        delete_vectors(vector_set=obj, user=request.user)  # type: ignore[arg-type]  # staff

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[VectorSet]) -> None:
        for vector_set in queryset:
            delete_vectors(vector_set=vector_set, user=request.user)  # type: ignore[arg-type]  # staff

    @admin.display(description="origin", ordering="origin")
    def origin_link(self, vector_set: VectorSet) -> str | SafeString:
        """Return the name of the file, or a link to the job that computed the vectors."""
        found = JOB_ORIGIN.fullmatch(vector_set.origin)
        if found is None:
            return vector_set.origin
        url = reverse("admin:jobs_job_change", args=[found["job"]])
        return format_html('{} (<a href="{}">view job</a>)', found["words"].replace("_", " "), url)

    @admin.display(description="vectors", ordering="vector_count")
    def num_vectors(self, vector_set: VectorSet) -> int:
        return int(vector_set.vector_count)  # type: ignore[attr-defined]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.extract_view)
        return [path("extract/", view, name="steering_vectorset_extract"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Render the list with the jobs that compute vectors now; the page updates when they finish."""
        return super().changelist_view(request, {**(extra_context or {}), "extractions": open_extractions(request)})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {**(extra_context or {})}
        found = self.get_object(request, unquote(object_id))
        if isinstance(found, VectorSet):
            context |= {**self.vector_context(request, found), "origin": self.origin_link(found)}
        return super().change_view(request, object_id, form_url, context)

    def extract_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = ExtractionForm(request.POST or None, request.FILES or None)
        if request.method == "POST" and form.is_valid():
            job = request_extraction(params=form.params, user=request.user)  # type: ignore[arg-type]  # staff
            text = f'Queued "{job}". It creates the vectors {form.params.name}.'
            self.message_user(request, text, messages.SUCCESS)
            return HttpResponseRedirect(reverse("admin:steering_vectorset_changelist"))
        context = {"title": "Extract vectors from prompt pairs", "opts": self.opts, "form": form}
        context |= self.admin_site.each_context(request)
        return TemplateResponse(request, "admin/steering/vectorset/extract.html", context)


@admin.register(PlainVector)
class PlainVectorAdmin(ReadOnlyAdmin):
    """Serves the autocomplete field of profiles; vectors are added and deleted with their set."""

    search_fields = ("vector_set__name", "=layer")
    list_select_related = ("vector_set",)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        return {}  # not in the index

    def get_queryset(self, request: HttpRequest) -> QuerySet[PlainVector]:
        rows: QuerySet[PlainVector] = visible_vectors(request.user, super().get_queryset(request))
        return rows.select_related("vector_set").defer("data")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[PlainVector], search_term: str
    ) -> tuple[QuerySet[PlainVector], bool]:
        model = request.GET.get("language_model", "")
        if model.isdecimal():
            queryset = queryset.filter(vector_set__model_id=int(model))
        return super().get_search_results(request, queryset, search_term)
