"""The registered models."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models.functions import Now

from inference.files.architectures import ModelKind
from inference.files.sources import ModelSource, SourceError, kind_of_directory, present_directory
from inference.text.dialects.tool_formats import TOOL_FORMATS
from inference.text.generic_templates import NAMES
from inference.validation import device_problems, name_problems, parameter_problems, source_problems, template_problems


class LanguageModel(models.Model):
    """A registered model, under the name that clients use. ``source`` is a local directory or a Hub repository."""

    class Dtype(models.TextChoices):
        AUTO = "auto", "as saved"
        BFLOAT16 = "bfloat16"
        FLOAT16 = "float16"
        FLOAT32 = "float32"

    class State(models.TextChoices):
        UNLOADED = "unloaded"
        LOADING = "loading"
        LOADED = "loaded"
        FAILED = "failed"

    class Kind(models.TextChoices):
        GENERATION = "generation"
        EMBEDDING = "embedding"
        CLASSIFICATION = "classification"
        TRANSCRIPTION = "transcription"
        TRANSLATION = "translation"
        SPEECH = "speech"
        IMAGE = "image"
        VIDEO = "video"

    class UseAs(models.TextChoices):
        DETECTED = "", "as detected"
        TRANSLATION = "translation", "translation of speech into English"

    class Quantization(models.TextChoices):
        NONE = "none"
        INT8 = "int8", "int8 weights"
        W8A8 = "w8a8", "int8 weights and activations"

    name = models.CharField(max_length=200, unique=True, help_text='The value of "model" in requests.')
    aliases = ArrayField(
        models.CharField(max_length=200), default=list, blank=True, help_text="Other names, separated by commas."
    )
    source = models.CharField(max_length=500, help_text="A local directory, or a Hugging Face Hub id.")
    revision = models.CharField(max_length=100, blank=True)
    dtype = models.CharField(max_length=20, choices=Dtype, default=Dtype.AUTO)
    device = models.CharField(max_length=20, default="auto", help_text="auto, cpu, cuda or cuda:N.")
    quantization = models.CharField(max_length=20, choices=Quantization, default=Quantization.NONE)
    trust_remote_code = models.BooleanField(default=False)
    allow_pickle = models.BooleanField(default=False, help_text="Accept weights that are not safetensors.")
    context_length = models.PositiveIntegerField(default=0, help_text="0: the model's maximum.")
    chat_template = models.TextField(
        blank=True,
        help_text=f"Overrides the tokenizer's template. For a base model without one: {NAMES}.",
    )
    tool_format = models.CharField(
        max_length=40,
        blank=True,
        default="",
        db_default="",
        choices=[(name, name) for name in sorted(TOOL_FORMATS)],
        help_text="How the model writes tool calls. Empty: detected from its chat template.",
    )
    use_as = models.CharField(
        max_length=20,
        choices=UseAs,
        blank=True,
        default="",
        db_default="",
        help_text="A Whisper model can translate. Registered twice, for both uses, it is in memory once.",
    )
    default_sampling = models.JSONField(
        "default parameters", default=dict, blank=True, help_text='For example {"temperature": 0.7}.'
    )
    default_profile = models.CharField(
        max_length=200, blank=True, help_text="Profile for requests that name none (name or name@version)."
    )
    shared_prefix_cache = models.BooleanField(
        "share prefix cache between users",
        default=False,
        db_default=False,
        help_text="Users share cached prompt prefixes, which helps with a common system prompt. From "
        '"cached_tokens" and the time to first token, a user can then tell whether someone else sent the '
        "same prefix. Off: prefixes are shared only between requests of one user.",
    )
    input_price = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="Price per million input tokens, in your currency, to show the cost of requests. Empty: unknown.",
    )
    cached_input_price = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="Price per million input tokens that were in the prefix cache. Empty: the input price.",
    )
    output_price = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0)], help_text="Price per million output tokens."
    )
    replicas = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="With several engine processes: how many load the model. Empty: all.",
    )
    is_default = models.BooleanField(
        "default", default=False, help_text="Used by requests that name no model. At most one model of each kind."
    )
    autoload = models.BooleanField(default=False, help_text="Load when the server starts.")
    pinned = models.BooleanField(default=False, help_text="Never unload it when idle or to free memory.")
    keep_alive_s = models.PositiveIntegerField(
        "keep alive (s)",
        null=True,
        blank=True,
        help_text="Seconds without requests before it is unloaded. 0: never. Empty: MILLM_MODEL_KEEP_ALIVE.",
    )

    kind = models.CharField(
        max_length=20, choices=Kind, default=Kind.GENERATION, db_default=Kind.GENERATION, editable=False
    )
    state = models.CharField(max_length=20, choices=State, default=State.UNLOADED, editable=False)
    error = models.TextField(blank=True, editable=False)
    memory_bytes = models.BigIntegerField(default=0, editable=False)
    own_context_length = models.PositiveIntegerField(default=0, db_default=0, editable=False, help_text="0: unknown.")
    num_labels = models.PositiveIntegerField(
        default=0, db_default=0, editable=False, help_text="Number of classes of a classifier. 0: unknown or none."
    )
    loaded_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(condition=~models.Q(name=""), name="language_model_has_name"),
            models.CheckConstraint(condition=~models.Q(source=""), name="language_model_has_source"),
            models.UniqueConstraint(
                fields=("kind",), condition=models.Q(is_default=True), name="language_model_one_default_of_kind"
            ),
        )

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Check everything that needs no download and no loading. Raise ValidationError with all problems by field."""
        names = [self.name, *self.aliases]
        problems = {
            "name": [*name_problems(names), *self._taken_names(names)],
            "source": source_problems(self.model_source) if self.source else [],  # a blank source is reported as such
            "device": device_problems(self.device),
            "chat_template": template_problems(self.chat_template),
            "default_sampling": parameter_problems(self.default_sampling, self.detected_kind()),
        }
        if self.use_as and self.detected_kind() != self.Kind.TRANSLATION:
            problems["use_as"] = [f"Only models for transcription can translate; this one is for {self.kind}."]
        if any(problems.values()):
            raise ValidationError({field: found for field, found in problems.items() if found})

    def validate_constraints(self, exclude: Collection[str] | None = None) -> None:
        """Skip the check for a single default model: services.save_model makes this one the default instead."""
        super().validate_constraints({*(exclude or ()), "kind"})

    def detected_kind(self) -> str:
        """Return the kind of the model's files, or the one known so far if they are not on this machine."""
        try:
            directory = present_directory(self.model_source)
            return self.kind if directory is None else self.kind_in(directory)
        except SourceError:
            return self.kind

    def kind_in(self, directory: Path) -> ModelKind:
        """Return the kind of the model in its directory, used as this row says. Raise SourceError."""
        kind = kind_of_directory(directory)
        is_translator = kind == "transcription" and self.use_as == self.UseAs.TRANSLATION
        return "translation" if is_translator else kind

    @property
    def model_source(self) -> ModelSource:
        """The model's source, with the trust that both this row and the deployment grant it."""
        is_allowed: bool = settings.MILLM_ALLOW_REMOTE_CODE
        return ModelSource(
            self.source, self.revision, self.trust_remote_code and is_allowed, self.allow_pickle and is_allowed
        )

    def _taken_names(self, names: list[str]) -> list[str]:
        taken = models.Q(name__in=self.aliases) | models.Q(aliases__overlap=names)
        others = LanguageModel.objects.exclude(pk=self.pk).filter(taken)
        return [f"The model {other.name} already uses one of the names {', '.join(names)}." for other in others]
