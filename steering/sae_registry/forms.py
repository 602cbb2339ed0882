"""Forms for adding, measuring and embedding SAEs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError

from inference.files.sources import SourceError, local_directory
from inference.models import LanguageModel
from inference.validation import within_roots
from steering.corpora.corpus import DEFAULT_TOKENS, MAX_TOKENS
from steering.errors import SteeringError
from steering.evaluation.params import ENDPOINT
from steering.models import SAE
from steering.sae_registry.registration import PreparedSAE, SAECandidate, SAELocation, inspect_sae, prepare_sae
from steering.saes.errors import InvalidSAEError

_WIDE = forms.TextInput(attrs={"size": 60})


class SourceForm(forms.Form):
    """The source of an SAE. ``site`` and ``layer`` are required if the files do not name them."""

    model = forms.ModelChoiceField(LanguageModel.objects.all())
    source = forms.CharField(
        max_length=500, widget=_WIDE, help_text="A directory on the server, or a Hugging Face Hub id."
    )
    revision = forms.CharField(max_length=100, required=False, help_text="Branch, tag or commit on the Hub.")
    subfolder = forms.CharField(
        max_length=300, required=False, label="Sub-folder", help_text="The SAE's folder or file inside the source."
    )
    name = forms.CharField(max_length=200, required=False, help_text="The SAE's name on this server.")
    layer = forms.IntegerField(required=False, min_value=0, help_text="Empty: from the SAE's configuration.")
    site = forms.ChoiceField(required=False, choices=[("", "from the SAE's configuration"), *SAE.Site.choices])
    measures = forms.BooleanField(
        required=False,
        initial=True,
        label="Measure after adding",
        help_text="A background job runs the default corpus and reports how well the SAE fits.",
    )

    def clean_source(self) -> str:
        return within_roots(str(self.cleaned_data["source"]))

    @property
    def location(self) -> SAELocation:
        data = self.cleaned_data
        return SAELocation(data["source"], data["revision"], data["subfolder"])

    def inspect(self) -> SAECandidate:
        """Return the candidate. Raises like :func:`steering.sae_registry.registration.inspect_sae`."""
        data = self.cleaned_data
        return inspect_sae(self.location, data["model"], layer=data["layer"], site=data["site"] or None)


class AddSAEForm(SourceForm):
    """Checks the SAE during validation, so that its problems are shown in the form.

    The weights of a local SAE are read here (``prepared``); a job downloads those of a Hub repository.
    """

    prepared: PreparedSAE | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].required = True

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        if SAE.objects.filter(name=name).exists():
            raise ValidationError(f"An SAE with the name {name} already exists.")
        return name

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if self.errors:
            return data
        try:
            candidate = self.inspect()
            if local_directory(data["source"]) is not None:
                self.prepared = prepare_sae(data["name"], data["model"], candidate)
        except (InvalidSAEError, SourceError) as error:
            raise ValidationError({"source": str(error)}) from error
        except SteeringError as error:
            raise ValidationError(error.message) from error
        return data


class CheckForm(forms.Form):
    """The corpus of a measurement, and the number of tokens."""

    corpus = forms.ChoiceField(choices=())
    tokens = forms.IntegerField(min_value=1, max_value=MAX_TOKENS, initial=DEFAULT_TOKENS, label="Max tokens")
    replaces_imports = forms.BooleanField(required=False, label="Replace imported statistics and examples")

    def __init__(self, corpora: Sequence[str], data: Any = None) -> None:
        super().__init__(data)
        corpus = self.fields["corpus"]
        assert isinstance(corpus, forms.ChoiceField)
        corpus.choices = [(name, name) for name in corpora]


class EmbedForm(forms.Form):
    """The model that embeds labels."""

    embedding_model = forms.ModelChoiceField(LanguageModel.objects.filter(kind=LanguageModel.Kind.EMBEDDING))

    @property
    def has_choice(self) -> bool:
        field = self.fields["embedding_model"]
        assert isinstance(field, forms.ModelChoiceField)
        return bool(field.queryset is not None and field.queryset.exists())


class InterpretForm(forms.Form):
    """The model that labels features, and which ones."""

    model = forms.ChoiceField(choices=())
    limit = forms.IntegerField(min_value=1, required=False, label="Max features", help_text="Empty: all.")
    replaces = forms.BooleanField(required=False, label="Replace labels of earlier runs")

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, auto_id="id_interpret_%s")
        model = self.fields["model"]
        assert isinstance(model, forms.ChoiceField)
        rows = LanguageModel.objects.filter(kind=LanguageModel.Kind.GENERATION).order_by("name")
        choices = [(name, name) for name in rows.values_list("name", flat=True)]
        if settings.MILLM_JUDGE_BASE_URL and settings.MILLM_JUDGE_MODEL:
            choices.append((ENDPOINT, f"external endpoint ({settings.MILLM_JUDGE_MODEL})"))
        model.choices = choices
