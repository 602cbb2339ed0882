"""The form that starts a training."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from core.errors import MillmError
from inference.files.sources import SourceError, present_directory
from inference.interventions import Site
from inference.models import LanguageModel
from jobs.models import Job
from steering.corpora.corpus import DEFAULT_NAME, SUFFIXES
from steering.corpora.corpus_registry import list_corpora
from steering.corpora.uploads import save_corpus
from steering.errors import IncompatibleSAEError
from steering.model_shape import ModelShape, read_model_shape
from steering.models import SAE
from steering.training.recipe import MAX_FEATURES, MAX_TOKENS, TRAINABLE_SITES, TrainingRecipe
from steering.training.services import DEFAULT_ACTIVATIONS, TrainingOrder, check_training, request_training

EXPANSION = 8  # features per dimension of the residual, by default
_RECIPE = TrainingRecipe(features=32)
_SITES = [(name, label) for name, label in SAE.Site.choices if name in TRAINABLE_SITES]
_KINDS = [
    ("topk", "TopK"),
    ("batchtopk", "BatchTopK"),
    ("jumprelu", "JumpReLU"),
]


class TrainForm(forms.Form):
    """A training of an SAE. Empty ``layer`` and ``features`` mean the defaults for the model."""

    model = forms.ModelChoiceField(
        LanguageModel.objects.filter(kind=LanguageModel.Kind.GENERATION),
        empty_label=None,
        help_text="The SAE learns features of this model.",
    )
    name = forms.CharField(max_length=100, help_text="The SAE's name on this server.")
    layer = forms.IntegerField(
        required=False,
        min_value=0,
        help_text="Middle layers have the most features of meaning and topic. Empty: the middle layer.",
    )
    site = forms.ChoiceField(choices=_SITES, initial="resid_post", help_text="Where in the layer activations are read.")
    activation = forms.ChoiceField(
        label="Kind",
        choices=_KINDS,
        initial=_RECIPE.activation,
        help_text="TopK keeps the k strongest features of each token, BatchTopK k per token on average. JumpReLU "
        "learns a threshold for each feature. The last two are saved as JumpReLU, which steers faster.",
    )
    features = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_FEATURES,
        help_text=f"More features are more specific, and take longer. Empty: {EXPANSION} times the model's width.",
    )
    k = forms.IntegerField(
        label="Active features per token (k)",
        min_value=1,
        max_value=MAX_FEATURES,
        initial=_RECIPE.k,
        help_text="Fewer are easier to understand, more reconstruct better.",
    )
    corpora = forms.MultipleChoiceField(
        required=False,
        choices=(),
        widget=forms.CheckboxSelectMultiple,
        initial=[DEFAULT_NAME],
        help_text="The default corpus is a small sample, to try this out. A useful SAE needs millions of tokens.",
    )
    file = forms.FileField(
        required=False,
        max_length=100,
        label="Upload a corpus",
        help_text=f"{', '.join(SUFFIXES)}: JSON lines with text or messages, or texts separated by empty lines. It is "
        "kept as a corpus, and used in addition to those chosen above.",
    )
    tokens = forms.IntegerField(
        label="Training tokens",
        min_value=1,
        max_value=MAX_TOKENS,
        initial=_RECIPE.tokens,
        help_text="Activations are used again if the corpus has fewer tokens.",
    )
    max_activations = forms.IntegerField(
        label="Max stored activations",
        initial=DEFAULT_ACTIVATIONS,
        help_text="Tokens of the corpus that are read, and kept on the disk while training: 2 bytes times the model's "
        "width for each.",
    )
    batch = forms.IntegerField(label="Batch size", initial=_RECIPE.batch, help_text="Tokens per step.")
    learning_rate = forms.FloatField(initial=_RECIPE.learning_rate, widget=forms.NumberInput(attrs={"step": "any"}))
    seed = forms.IntegerField(initial=_RECIPE.seed)
    order: TrainingOrder

    def __init__(self, data: Any = None, files: Any = None, *, may_upload: bool) -> None:
        super().__init__(data, files)
        corpora, model = self.fields["corpora"], self.fields["model"]
        assert isinstance(corpora, forms.MultipleChoiceField)
        assert isinstance(model, forms.ModelChoiceField)
        corpora.choices = [(one.name, one.name) for one in list_corpora() if one.kind != "app"]
        if not may_upload:
            del self.fields["file"]
        defaults = {row.pk: found for row in model.queryset or () if (found := _defaults(row)) is not None}
        model.widget.attrs["data-defaults"] = json.dumps(defaults)
        if defaults:
            first = next(iter(defaults))
            self.initial = {"model": first, **defaults[first]}

    @property
    def main(self) -> list[forms.BoundField]:
        return [self[name] for name in self.fields if name not in _ADVANCED]

    @property
    def advanced(self) -> list[forms.BoundField]:
        return [self[name] for name in _ADVANCED]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if self.errors:
            return data
        if not data["corpora"] and not data.get("file"):
            raise ValidationError({"corpora": "Choose a corpus, or upload one."})
        try:
            self.order = self._order(data)
            check_training(order=self.order, corpora=data["corpora"])
        except MillmError as error:
            raise ValidationError({error.param if error.param in self.fields else "__all__": error.message}) from error
        return data

    def start(self, user: User) -> Job:
        """Save the uploaded corpus and queue the training. Raise CorpusError for a file that is no corpus."""
        corpora, file = list(self.cleaned_data["corpora"]), self.cleaned_data.get("file")
        if file:
            save_corpus(name=file.name, content=file.open, user=user)
            corpora.append(file.name)
        return request_training(order=self.order, corpora=corpora, owner=user)

    def _order(self, data: dict[str, Any]) -> TrainingOrder:
        shape = read_model_shape(data["model"])
        layer = _middle(shape) if data["layer"] is None else data["layer"]
        site = Site(layer, data["site"])
        fields = ("k", "activation", "tokens", "batch", "learning_rate", "seed")
        features = data["features"] or EXPANSION * shape.width(site)
        recipe = TrainingRecipe(features=features, **{name: data[name] for name in fields})
        return TrainingOrder(data["name"], data["model"], site, recipe, data["max_activations"])


_ADVANCED = ("max_activations", "batch", "learning_rate", "seed")


def _middle(shape: ModelShape) -> int:
    return shape.num_layers // 2


def _defaults(model: LanguageModel) -> dict[str, Any] | None:
    """Return the defaults of the fields that depend on the model; None if its files are not on this server."""
    try:
        shape = read_model_shape(model) if present_directory(model.model_source) is not None else None
    except (SourceError, IncompatibleSAEError):
        return None
    if shape is None:
        return None
    layer = _middle(shape)
    return {"name": f"{model.name}-layer{layer}", "layer": layer, "features": EXPANSION * shape.hidden_size}
