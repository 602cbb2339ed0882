"""SAEs: register, rename, measure, load, unload and delete. Jobs register and measure them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from inference.files.sources import check_within_roots
from inference.interventions import Site
from inference.models import LanguageModel
from inference.steering_refs import loaded_saes
from management_api.resources.job import JobOut, job_started
from management_api.serializers import (
    Choice,
    Flag,
    FormRowField,
    Integer,
    Number,
    ReadSerializer,
    StrictInput,
    Text,
    VisibleRowField,
    described,
)
from management_api.uploads import SentFile, UploadResource, form, opener
from management_api.viewset import Filters
from steering import services
from steering.corpora.corpus import DEFAULT_NAME, DEFAULT_TOKENS, MAX_TOKENS
from steering.corpora.corpus_registry import open_corpus
from steering.effects.job import request_effects
from steering.effects.recipe import MAX_TEXTS, EffectRecipe
from steering.features.label_files import parse_label_file
from steering.features.label_import import import_labels
from steering.interpretation.job import request_interpretation
from steering.models import SAE
from steering.profiles.snapshot import source_of
from steering.sae_registry.health import judge
from steering.sae_registry.jobs import request_measurement, request_sae
from steering.sae_registry.registration import SAELocation, inspect_sae
from steering.sae_registry.uploads import MAX_FILES, UploadedFile, UploadError, delete_upload, store_upload
from steering.training.recipe import ACTIVATIONS, MAX_FEATURES, TRAINABLE_SITES, TrainingRecipe
from steering.training.services import DEFAULT_ACTIVATIONS, TrainingOrder, request_training

CHANGE = "steering.change_sae"
MAX_LAYER = 10_000
MAX_PROMPT_CHARS = 2_000
MAX_SELECTED = 10_000
DEFAULT_RECIPE = EffectRecipe()
TRAINING = TrainingRecipe(features=32)
_RECIPE = ("features", "k", "activation", "tokens", "batch", "learning_rate", "seed")


class SAEOut(ReadSerializer):
    health = serializers.SerializerMethodField(help_text="Assessment of the measured figures, in sentences.")
    loss_recovered = serializers.FloatField(
        read_only=True,
        allow_null=True,
        help_text="Share of the cross-entropy that the reconstruction recovers: (zero - spliced) / (zero - model).",
    )
    is_loaded = serializers.SerializerMethodField(help_text="Whether this process has loaded the weights.")

    class Meta:
        model = SAE
        fields: tuple[str, ...] = (
            *("id", "name", "model", "layer", "site", "d_in", "d_sae", "architecture", "normalization", "format"),
            *("source", "revision", "subfolder", "checksum", "l0", "fvu", "dead_share", "mean_resid_norm"),
            *("median_resid_norm", "measured_sinks"),
            *("loss_recovered", "model_loss", "spliced_loss", "zero_loss", "mean_loss"),
            *("measured_at", "measured_tokens", "corpus", "health", "is_loaded", "created_at"),
        )

    def get_health(self, sae: SAE) -> list[str]:
        return [verdict.text for verdict in judge(sae)]

    def get_is_loaded(self, sae: SAE) -> bool:
        return loaded_saes().loaded_bytes(sae.checksum) is not None


class SAEFilters(Filters):
    model = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    name = serializers.CharField(max_length=200, required=False)


class SAEInput(StrictInput):
    name = Text(max_length=200)
    model = VisibleRowField(find=lambda user: LanguageModel.objects.all())
    source = Text(max_length=500)  # type: ignore[assignment]  # the stubs have a field's attribute `source`
    revision = Text(max_length=100, default="", allow_blank=True)
    subfolder = Text(max_length=300, default="", allow_blank=True)
    layer = Integer(min_value=0, max_value=MAX_LAYER, default=None, allow_null=True)
    site = Choice(choices=SAE.Site.choices, default="", allow_blank=True)
    measures = Flag(default=True, help_text="Start a job that measures the SAE on the default corpus.")


class SAEForm(StrictInput):
    files = serializers.ListField(
        child=SentFile(), min_length=1, max_length=MAX_FILES, help_text="The SAE's files, or one zip archive of them."
    )
    name = serializers.CharField(max_length=200)
    model = FormRowField(find=lambda user: LanguageModel.objects.all())
    layer = serializers.IntegerField(min_value=0, max_value=MAX_LAYER, default=None)
    site = serializers.ChoiceField(choices=SAE.Site.choices, default="", allow_blank=True)
    measures = serializers.BooleanField(default=True, help_text="Start a job that measures it on the default corpus.")


class LabelsForm(StrictInput):
    file = SentFile(help_text="JSON, JSONL or CSV, also gzipped.")


class LabelsOut(serializers.Serializer[Any]):
    num_features = serializers.IntegerField()
    num_labels = serializers.IntegerField()
    num_examples = serializers.IntegerField()
    doubts = serializers.ListField(child=serializers.CharField())


class SAEChange(StrictInput):
    name = Text(max_length=200)


class MeasureInput(StrictInput):
    corpus = Text(max_length=200, default=DEFAULT_NAME)
    tokens = Integer(min_value=1, max_value=MAX_TOKENS, default=DEFAULT_TOKENS)
    replaces_imports = Flag(default=False)


class RecipeInput(StrictInput):
    """How effects are measured: the fields of an :class:`EffectRecipe` that callers may set."""

    target = Number(default=DEFAULT_RECIPE.target, help_text="KL(unsteered || steered) in nats per token.")
    push_cap = Number(default=DEFAULT_RECIPE.push_cap, help_text="Cap on the relative size of the step.")
    prompts = serializers.ListField(
        child=Text(max_length=MAX_PROMPT_CHARS),
        min_length=1,
        max_length=MAX_TEXTS,
        default=list(DEFAULT_RECIPE.prompts),
    )


def take_recipe(data: dict[str, Any]) -> EffectRecipe:
    """Take the fields of :class:`RecipeInput` out of the data. Raise EvaluationError for values out of range."""
    prompts = tuple(data.pop("prompts"))
    return EffectRecipe(target=data.pop("target"), push_cap=data.pop("push_cap"), prompts=prompts)


class EffectsInput(RecipeInput):
    features = serializers.ListField(
        child=Integer(min_value=0, max_value=2**31 - 1),
        max_length=MAX_SELECTED,
        default=list,
        help_text="Indices of the features to measure; empty: all live features.",
    )
    replaces = Flag(default=False, help_text="Measure features again that have an effect of the same recipe.")


class TrainInput(StrictInput):
    name = Text(max_length=100)
    model = VisibleRowField(find=lambda user: LanguageModel.objects.all())
    layer = Integer(min_value=0, max_value=MAX_LAYER)
    site = Choice(choices=TRAINABLE_SITES, default="resid_post")
    activation = Choice(choices=ACTIVATIONS, default=TRAINING.activation)
    features = Integer(min_value=1, max_value=MAX_FEATURES, help_text="Often 8 to 32 times the model's width.")
    k = Integer(default=TRAINING.k, help_text="Active features per token.")
    corpora = serializers.ListField(child=Text(max_length=200), min_length=1, max_length=20, default=[DEFAULT_NAME])
    tokens = Integer(default=TRAINING.tokens, help_text="Training vectors; stored ones are used again.")
    max_activations = Integer(default=DEFAULT_ACTIVATIONS, help_text="Activations to store on the disk.")
    batch = Integer(default=TRAINING.batch)
    learning_rate = Number(default=TRAINING.learning_rate)
    seed = Integer(default=TRAINING.seed, min_value=0, max_value=2**31 - 1)


class InterpretInput(StrictInput):
    model = Text(max_length=200, help_text="A generation model of this server, or `endpoint`, which the settings name.")
    limit = Integer(min_value=1, default=None, allow_null=True, help_text="Label at most this many features.")
    replaces = Flag(default=False, help_text="Replace labels of earlier runs too; other labels are never replaced.")


@described(tags=["SAEs"])
class SAEs(UploadResource):
    queryset = SAE.objects.none()
    serializer_class = SAEOut
    filters = SAEFilters
    uploads = frozenset({"upload", "labels"})
    ordering = ("name",)
    permissions = {
        "list": "steering.view_sae",
        "retrieve": "steering.view_sae",
        "create": "steering.add_sae",
        "upload": "steering.add_sae",
        "train": "steering.add_sae",
        "labels": "steering.change_feature",
        "partial_update": CHANGE,
        "destroy": "steering.delete_sae",
        "measure": CHANGE,
        "effects": CHANGE,
        "interpret": CHANGE,
        "load": CHANGE,
        "unload": CHANGE,
    }

    def rows(self, user: User) -> QuerySet[SAE]:
        return SAE.objects.select_related("model")

    @described(parameters=[SAEFilters])
    def list(self, request: Request) -> Response:
        """List SAEs by name."""
        return super().list(request)

    @described(request=SAEInput, responses={202: JobOut})
    def create(self, request: Request) -> Response:
        """Register an SAE. Its configuration is checked against the model at once; a job downloads and reads its
        weights."""
        data = self.read(SAEInput)
        if SAE.objects.filter(name=data["name"]).exists():
            raise serializers.ValidationError({"name": f"The SAE `{data['name']}` already exists."})
        check_within_roots(data["source"])
        location = SAELocation(data["source"], data["revision"], data["subfolder"])
        inspect_sae(location, data["model"], layer=data["layer"], site=data["site"] or None)
        place = {name: data[name] for name in ("name", "model", "layer", "site", "measures")}
        return job_started(request_sae(location=location, owner=self.user, **place))

    @described(request=form(SAEForm), responses={202: JobOut})
    @action(detail=False, methods=["post"])
    def upload(self, request: Request) -> Response:
        """Upload the files of an SAE. Its configuration is checked at once; a job reads its weights and registers it.

        The files are deleted with the SAE.
        """
        data = self.read(SAEForm)
        if SAE.objects.filter(name=data["name"]).exists():
            raise serializers.ValidationError({"name": f"The SAE `{data['name']}` already exists."})
        files = [UploadedFile(sent.name, sent.size, opener(sent)) for sent in data["files"]]
        location = SAELocation(str(store_upload(files)))
        try:
            candidate = inspect_sae(location, data["model"], layer=data["layer"], site=data["site"] or None)
            if not location.locate(with_weights=True).is_here(candidate.config.weights_file):
                raise UploadError(f"The file {candidate.config.weights_file} with the weights is missing.")
            place = {name: data[name] for name in ("name", "model", "layer", "site", "measures")}
            return job_started(request_sae(location=location, owner=self.user, **place))
        except BaseException:
            delete_upload(location.source)
            raise

    @described(request=TrainInput, responses={202: JobOut})
    @action(detail=False, methods=["post"])
    def train(self, request: Request) -> Response:
        """Start a job that trains an SAE on a model's activations on corpora, measures it and registers it."""
        data = self.read(TrainInput)
        recipe = TrainingRecipe(**{name: data[name] for name in _RECIPE})
        site = Site(data["layer"], data["site"])
        order = TrainingOrder(data["name"], data["model"], site, recipe, data["max_activations"])
        return job_started(request_training(order=order, corpora=data["corpora"], owner=self.user))

    @described(request=form(LabelsForm), responses=LabelsOut)
    @action(detail=True, methods=["post"])
    def labels(self, request: Request, pk: str) -> Response:
        """Import labels of an SAE's features. If anything in the file is invalid, nothing is imported."""
        sae, sent = self.get_object(), self.read(LabelsForm)["file"]
        report = import_labels(sae=sae, found=parse_label_file(sent.file, sent.name, sae.d_sae))
        return Response(LabelsOut({**asdict(report), "doubts": list(report.doubts)}).data)

    @described(request=SAEChange)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Rename an SAE. Its other fields come from its files or from measurements."""
        sae = self.get_object()
        sae.name = self.read(SAEChange, instance=sae)["name"]
        sae.full_clean()
        return self.answer(services.rename_sae(sae=sae))

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete an SAE. Fails while a version, a draft or a watch rule uses it."""
        services.delete_sae(sae=self.get_object())
        return Response(status=204)

    @described(request=MeasureInput, responses={202: JobOut})
    @action(detail=True, methods=["post"])
    def measure(self, request: Request, pk: str) -> Response:
        """Start a job that measures the SAE on a corpus. Afterwards, ``health`` describes the result."""
        sae, data = self.get_object(), self.read(MeasureInput)
        open_corpus(data["corpus"])
        return job_started(request_measurement(sae=sae, owner=self.user, **data))

    @described(request=EffectsInput, responses={202: JobOut})
    @action(detail=True, methods=["post"])
    def effects(self, request: Request, pk: str) -> Response:
        """Start a job that measures the effects of features on the model's output: the strength that moves it by the
        target, the output score, fluency and samples. Read them at `/api/features/{id}/effect`."""
        sae, data = self.get_object(), self.read(EffectsInput)
        return job_started(request_effects(sae=sae, recipe=take_recipe(data), owner=self.user, **data))

    @described(request=InterpretInput, responses={202: JobOut})
    @action(detail=True, methods=["post"])
    def interpret(self, request: Request, pk: str) -> Response:
        """Start a job that labels features without a label: a model explains each from its examples, and the label is
        scored by detection."""
        sae, data = self.get_object(), self.read(InterpretInput)
        return job_started(request_interpretation(sae=sae, owner=self.user, **data))

    @described(request=None)
    @action(detail=True, methods=["post"])
    def load(self, request: Request, pk: str) -> Response:
        """Load the weights of an SAE."""
        sae = self.get_object()
        loaded_saes().load_sae(source_of(sae))
        return self.answer(sae)

    @described(request=None)
    @action(detail=True, methods=["post"])
    def unload(self, request: Request, pk: str) -> Response:
        """Unload the weights of an SAE."""
        sae = self.get_object()
        loaded_saes().unload_sae(sae.checksum)
        return self.answer(sae)
