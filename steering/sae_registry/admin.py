"""SAEs in the admin: adding, measuring and loading them, importing labels, and their page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from core.errors import MillmError
from inference.files.sources import SourceError
from inference.steering_refs import loaded_saes
from jobs.services import enqueue_job
from steering import services
from steering.corpora.corpus_registry import corpus_names
from steering.effects.job import effect_counts, request_effects
from steering.errors import SteeringError
from steering.features.label_files import parse_label_file
from steering.features.label_import import import_labels
from steering.features.labels import LabelSet
from steering.interpretation.job import request_interpretation
from steering.models import SAE
from steering.profiles.snapshot import source_of
from steering.sae_registry.forms import AddSAEForm, CheckForm, EmbedForm, InterpretForm, SourceForm
from steering.sae_registry.health import judge, summary
from steering.sae_registry.hub import list_saes
from steering.sae_registry.jobs import AddedSAE, add_sae, request_measurement, request_sae
from steering.sae_registry.registration import describe, estimated_bytes
from steering.saes.errors import InvalidSAEError
from steering.spec.errors import InvalidSpecError
from steering.training.forms import TrainForm


def _url(sae: SAE) -> str:
    return reverse("admin:steering_sae_change", args=[sae.pk])


_MAX_LISTED = 500


def _registered(added: AddedSAE) -> SafeString:
    if added.measurement is None:
        return format_html("Added {}.", added.sae)
    url = reverse("admin:jobs_job_change", args=[added.measurement.pk])
    return format_html('Added {}. <a href="{}">A job</a> is measuring how well it fits.', added.sae, url)


class LabelsForm(forms.Form):
    """Reads the file during validation, so that its problems are shown next to the field."""

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


def _may_import(request: HttpRequest) -> bool:
    return request.user.has_perm("steering.change_feature")


_SHOWN = (
    *("place", "features", "verdict", "l0_text", "fvu_text"),
    *("recovered_text", "dead_text", "norm_text", "weights"),
)


@admin.register(SAE)
class SAEAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Only the name can be edited: everything else is read from the files, or measured.

    Every further page checks permissions itself, and whatever changes something is a POST. Listing and previewing a
    source are POSTs too, because they send requests to another server: a link must not be able to trigger that.
    """

    change_form_template = "admin/steering/sae/change_form.html"
    change_list_template = "admin/steering/sae/change_list.html"

    empty_words = "No SAEs yet. Add one from a directory on the server or from the Hugging Face Hub, or train one."
    list_display = ("name", "model", "place", "architecture", "d_sae", "l0_text", "fvu_text", "state", "memory")
    list_filter = ("model", "architecture", "layer")
    list_select_related = ("model",)
    search_fields = ("name", "source")
    fieldsets = (
        (None, {"fields": ("name", "model", "place", "features", "weights"), "classes": ("part-health",)}),
        (
            "Health",
            {
                "fields": ("verdict", "l0_text", "fvu_text", "recovered_text", "dead_text", "norm_text"),
                "classes": ("part-health",),
            },
        ),
        (
            "Files",
            {
                "fields": ("source", "revision", "subfolder", "format", "checksum", "created_at"),
                "classes": ("part-files",),
            },
        ),
        ("Shape", {"fields": ("architecture", "normalization", "d_in", "d_sae"), "classes": ("part-files",)}),
    )

    class Media:
        css = {"all": ("steering/admin.css", "steering/feature.css")}

    def get_urls(self) -> list[Any]:
        actions: Sequence[tuple[str, Callable[[HttpRequest, SAE], str]]] = (
            ("check", self._check),
            ("load", self._load),
            ("unload", self._unload),
            ("embed", self._embed),
            ("effects", self._effects),
            ("interpret", self._interpret),
        )
        train = path("train/", self.admin_site.admin_view(self.train_view), name="steering_sae_train")
        own = [
            path(
                f"<path:object_id>/{name}/",
                self.admin_site.admin_view(self._action_view(action)),
                name=f"steering_sae_{name}",
            )
            for name, action in actions
        ]
        labels = path(
            "<path:object_id>/labels/", self.admin_site.admin_view(self.labels_view), name="steering_sae_labels"
        )
        return [train, *own, labels, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"can_import_labels": _may_import(request), **(extra_context or {})}
        sae = self.get_object(request, unquote(object_id))
        if isinstance(sae, SAE) and self.has_change_permission(request, sae):
            context |= {
                "check_form": CheckForm(corpus_names()),
                "embed_form": EmbedForm(),
                "interpret_form": InterpretForm(),
                "num_labels": sae.features.exclude(label="").count(),
                "is_loaded": loaded_saes().loaded_bytes(sae.checksum) is not None,
                "can_act": True,
                "effects": effect_counts(sae),
            }
        return super().change_view(request, object_id, form_url, context)

    def get_readonly_fields(self, request: HttpRequest, obj: SAE | None = None) -> tuple[str, ...]:
        stored = (field.name for field in SAE._meta.fields if field.name not in ("id", "name"))
        return (*_SHOWN, *stored)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return one line per SAE instead of all features, and the reasons why SAEs cannot be deleted."""
        lines, protected = [], []
        for sae in objs:
            lines.append(f"SAE {sae} with {sae.d_sae} features")
            try:
                services.check_sae_is_unused(sae=sae)
            except SteeringError as error:
                protected.append(error.message)
        counts = {"SAEs": len(lines), "features": sum(sae.d_sae for sae in objs)}
        needed = set() if self.has_delete_permission(request) else {self.opts.verbose_name}
        return lines, counts, needed, protected

    def save_model(self, request: HttpRequest, obj: SAE, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        services.rename_sae(sae=obj)

    def delete_model(self, request: HttpRequest, obj: SAE) -> None:
        services.delete_sae(sae=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[SAE]) -> None:
        for sae in queryset:
            services.delete_sae(sae=sae)

    @admin.display(description="L0", ordering="l0")
    def l0_text(self, sae: SAE) -> str:
        return "–" if sae.l0 is None else f"{sae.l0:.3g}"

    @admin.display(description="FVU", ordering="fvu")
    def fvu_text(self, sae: SAE) -> str:
        return "–" if sae.fvu is None else f"{sae.fvu:.3f}"

    @admin.display(description="loss recovered")
    def recovered_text(self, sae: SAE) -> str:
        return "–" if sae.loss_recovered is None else f"{sae.loss_recovered:.1%}"

    @admin.display(description="dead features", ordering="dead_share")
    def dead_text(self, sae: SAE) -> str:
        return "–" if sae.dead_share is None else f"{sae.dead_share:.1%} of features"

    @admin.display(description="mean residual norm")
    def norm_text(self, sae: SAE) -> str:
        return "–" if sae.mean_resid_norm is None else f"{sae.mean_resid_norm:.4g}"

    @admin.display(description="weights")
    def weights(self, sae: SAE) -> str:
        """Return whether the weights are loaded in this process. Other processes have their own copy."""
        loaded = loaded_saes().loaded_bytes(sae.checksum)
        if loaded is not None:
            return f"loaded, {filesizeformat(loaded)}"
        return f"not loaded ({filesizeformat(estimated_bytes(sae.d_in, sae.d_sae))} when loaded)"

    @admin.display(description="in memory")
    def memory(self, sae: SAE) -> str:
        loaded = loaded_saes().loaded_bytes(sae.checksum)
        return "–" if loaded is None else filesizeformat(loaded)

    @admin.display(description="health")
    def state(self, sae: SAE) -> SafeString:
        verdict = summary(sae)
        return format_html('<span class="{}">{}</span>', "steering-warning" if verdict.is_warning else "", verdict.text)

    @admin.display(description="findings")
    def verdict(self, sae: SAE) -> SafeString:
        rows = (("steering-warning" if verdict.is_warning else "", verdict.text) for verdict in judge(sae))
        return format_html_join("", '<div class="{}">{}</div>', rows)

    @admin.display(description="features")
    def features(self, sae: SAE) -> SafeString:
        url = f"../../../feature/?sae__id__exact={sae.pk}"
        return format_html('<a href="{}">{} features</a>', url, sae.d_sae)

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
            found = list_saes(place.source, revision=place.revision, subfolder=place.subfolder)
        except MillmError as error:
            form.add_error("source", str(error))
            return self._form_page(request, form)
        rows = [(sae, filesizeformat(sae.num_bytes)) for sae in found[:_MAX_LISTED]]
        return self._form_page(request, form, found=rows, num_found=len(found))

    def _preview(self, request: HttpRequest) -> HttpResponse:
        """Preview the configuration. The button of a listing submits the subfolder."""
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

    def _action_view(self, action: Callable[[HttpRequest, SAE], str]) -> Callable[..., HttpResponse]:
        """Return a view that checks permissions, runs ``action`` and redirects to the URL that it returns."""

        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            sae = self.get_object(request, unquote(object_id))
            if not isinstance(sae, SAE):
                raise Http404
            if not self.has_change_permission(request, sae):
                raise PermissionDenied
            return HttpResponseRedirect(action(request, sae))

        return view

    def _check(self, request: HttpRequest, sae: SAE) -> str:
        form = CheckForm(corpus_names(), request.POST)
        if not form.is_valid():
            for errors in form.errors.values():
                self.message_user(request, " ".join(str(error) for error in errors), messages.ERROR)
            return _url(sae)
        job = request_measurement(sae=sae, owner=request.user, **form.cleaned_data)  # type: ignore[arg-type]  # staff
        self.log_change(request, sae, "Started a measurement.")
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

    def _effects(self, request: HttpRequest, sae: SAE) -> str:
        try:
            job = request_effects(sae=sae, replaces="replaces" in request.POST, owner=request.user)  # type: ignore[arg-type]  # staff
        except SteeringError as error:
            self.message_user(request, error.message, messages.ERROR)
            return _url(sae)
        self.log_change(request, sae, "Started measuring effects.")
        return reverse("admin:jobs_job_change", args=[job.pk])

    def _interpret(self, request: HttpRequest, sae: SAE) -> str:
        form = InterpretForm(request.POST)
        if not form.is_valid():
            for name, errors in form.errors.items():
                text = f"{form.fields[name].label or name}: {' '.join(map(str, errors))}"
                self.message_user(request, text, messages.ERROR)
            return _url(sae)
        job = request_interpretation(sae=sae, owner=request.user, **form.cleaned_data)  # type: ignore[arg-type]  # staff
        self.log_change(request, sae, "Started labelling features.")
        return reverse("admin:jobs_job_change", args=[job.pk])

    def _load(self, request: HttpRequest, sae: SAE) -> str:
        try:
            loaded_saes().load_sae(source_of(sae))
        except MillmError as error:
            self.message_user(request, f"{sae} was not loaded. {error}", messages.ERROR)
        else:
            self.message_user(request, f"Loaded the weights of {sae}.", messages.SUCCESS)
        return _url(sae)

    def _unload(self, request: HttpRequest, sae: SAE) -> str:
        loaded_saes().unload_sae(sae.checksum)
        text = f"Unloaded the weights of {sae}. The next request with one of its features loads them again."
        self.message_user(request, text, messages.SUCCESS)
        return _url(sae)

    def train_view(self, request: HttpRequest) -> HttpResponse:
        """Queue a training, or show its form with defaults for the model in ``?model=``."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        may_upload = request.user.has_perm("steering.change_sae")
        if request.method == "POST":
            form = TrainForm(request.POST, request.FILES, may_upload=may_upload)
            if form.is_valid():
                try:
                    job = form.start(request.user)  # type: ignore[arg-type]  # staff
                except MillmError as error:
                    form.add_error("file" if "file" in form.fields else None, error.message)
                else:
                    return HttpResponseRedirect(reverse("admin:jobs_job_change", args=[job.pk]))
        else:
            form = TrainForm(may_upload=may_upload)
        context = {"title": "Train an SAE", "opts": self.opts, "form": form, **self.admin_site.each_context(request)}
        return TemplateResponse(request, "admin/steering/sae/train.html", context)

    def labels_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Import a file of labels, or show its problems by line and field."""
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
