"""The page of the vectors' admin where an extraction is asked for."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from inference.files.sources import SourceError
from inference.interventions import Site
from inference.models import LanguageModel
from jobs.models import Job
from steering.errors import SteeringError
from steering.exchange.documents import MAX_BYTES
from steering.extraction_job import KIND, ExtractionWish, check_wish, request_extraction
from steering.models import SAE
from steering.prompt_pairs import read_pairs
from steering.spec.errors import InvalidSpecError

_MAX_LAYERS = 200


class ExtractionForm(forms.Form):
    name = forms.SlugField(max_length=100, help_text="How the vectors are to be called.")
    model = forms.ModelChoiceField(LanguageModel.objects.all())
    pairs = forms.FileField(
        max_length=200, help_text='A JSON list of {"positive": "…", "negative": "…"}: prompts that differ in one thing.'
    )
    layers = forms.CharField(max_length=_MAX_LAYERS, help_text="Numbers, separated by commas: one vector for each.")
    site = forms.ChoiceField(choices=SAE.Site.choices, initial=SAE.Site.RESID_POST)
    method = forms.ChoiceField(
        choices=[
            ("mean_difference", "mean of the differences (CAA)"),
            ("pca", "direction of the largest differences (PCA)"),
        ]
    )
    position = forms.ChoiceField(choices=[("last", "each prompt's last token"), ("mean", "mean over its tokens")])
    chat = forms.BooleanField(
        required=False, initial=True, label="As a chat", help_text="Off: the prompts as they are."
    )
    description = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 2, "cols": 60}))
    wish: ExtractionWish

    def clean_layers(self) -> tuple[int, ...]:
        texts = [text.strip() for text in self.cleaned_data["layers"].split(",")]
        if not all(text.isascii() and text.isdecimal() and len(text) < 6 for text in texts):
            raise ValidationError("Expected numbers of layers, separated by commas.")
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
        self.wish = ExtractionWish(
            name=data["name"], model=data["model"], pairs=pairs, method=data["method"], position=data["position"],
            sites=tuple(Site(layer, data["site"]) for layer in data["layers"]), chat=data["chat"],
            description=data["description"],
        )  # fmt: skip
        try:
            check_wish(self.wish)
        except (SteeringError, SourceError) as error:
            raise ValidationError({"layers": str(error)}) from error


def open_extractions(request: HttpRequest) -> list[Job]:
    """Jobs of the person's own, as far as they may see jobs."""
    if not request.user.has_perm("jobs.view_job"):
        return []
    states = (Job.State.QUEUED, Job.State.RUNNING)
    return list(Job.objects.filter(kind=KIND, owner_id=request.user.pk, state__in=states).order_by("created_at"))


class ExtractionPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """For those who may add vectors."""

    change_list_template = "admin/steering/vectorset/change_list.html"

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.extract_view)
        return [path("extract/", view, name="steering_vectorset_extract"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """With the jobs that find vectors now: the page shows what they found when they end."""
        return super().changelist_view(request, {**(extra_context or {}), "extractions": open_extractions(request)})

    def extract_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = ExtractionForm(request.POST or None, request.FILES or None)
        if request.method == "POST" and form.is_valid():
            job = request_extraction(wish=form.wish, user=request.user)  # type: ignore[arg-type]  # staff
            text = f"The job {job} is queued; its vectors will be called {form.wish.name}."
            self.message_user(request, text, messages.SUCCESS)
            return HttpResponseRedirect(reverse("admin:steering_vectorset_changelist"))
        context = {"title": "Find vectors in pairs of prompts", "opts": self.opts, "form": form}
        context |= self.admin_site.each_context(request)
        return TemplateResponse(request, "admin/steering/vectorset/extract.html", context)
