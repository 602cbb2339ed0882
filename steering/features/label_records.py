"""Parse one untrusted record of a label file.

There are two kinds: records of miLLM, which may only have known fields, and records of Neuronpedia, which have
``modelId``. The latter have four forms: explanations, activations (one text each), features (statistics), and features
from its API, which contain all three. Other fields of Neuronpedia (embeddings, histograms, scores) are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from steering.features.labels import (
    MAX_DESCRIPTION,
    MAX_EXAMPLES,
    MAX_LABEL,
    MAX_TOP_TOKENS,
    FeatureExample,
    FeatureLabel,
    LabelRecord,
)
from steering.spec.errors import Problem
from steering.spec.fields import Fields
from steering.spec.units import MAX_STRENGTH

_MAX_SOURCE = 300
_MAX_NAME = 100
_MAX_TEXT_TOKENS = 100_000
_MAX_DIGITS = 12


def parse_record(value: object, path: str, d_sae: int, problems: list[Problem]) -> LabelRecord:
    """Return the record of a value. Invalid fields are added to ``problems`` and get neutral values."""
    if isinstance(value, Mapping) and "modelId" in value:
        return _neuronpedia(Fields(_with_number(value), path, problems), value, d_sae)
    return LabelRecord(path, _own(Fields(value, path, problems), d_sae))


def _own(fields: Fields, d_sae: int) -> FeatureLabel:
    label = FeatureLabel(
        index=_index(fields, d_sae),
        label=_text(fields, "label", MAX_LABEL),
        max_activation=_positive(fields, "max_activation", MAX_STRENGTH),
        density=_positive(fields, "density", 1.0),
        top_tokens=_texts(fields, "top_tokens", MAX_TOP_TOKENS),
        description=_text(fields, "description", MAX_DESCRIPTION),
        source=_text(fields, "source", _MAX_SOURCE),
        examples=tuple(_example(child) for child in fields.children("examples", max_length=MAX_EXAMPLES)),
    )
    fields.refuse_others()
    return label


def _neuronpedia(fields: Fields, value: Mapping[str, object], d_sae: int) -> LabelRecord:
    index = _index(fields, d_sae)
    origin = f"{_text(fields, 'modelId', _MAX_NAME)}/{_text(fields, 'layer', _MAX_NAME)}"
    if "description" in value:
        return LabelRecord(fields.path, _explanation(fields, index, origin), is_whole=False, origin=origin)
    if "tokens" in value:
        label = FeatureLabel(index, examples=(_example(fields),))
        return LabelRecord(fields.path, label, is_whole=False, origin=origin)
    return LabelRecord(fields.path, _feature(fields, index, origin), origin=origin)


def _feature(fields: Fields, index: int, origin: str) -> FeatureLabel:
    """Return the label of a feature with statistics and, from the API, explanations and activations."""
    activations = fields.children("activations", max_length=10_000)
    examples = sorted((_example(child) for child in activations), key=lambda example: -example.max_value)
    explanations = [_explanation(child, index, origin) for child in fields.children("explanations", max_length=1000)]
    first = next((one for one in explanations if one.label), FeatureLabel(index))
    return FeatureLabel(
        index=index,
        label=first.label,
        max_activation=_positive(fields, "maxActApprox", MAX_STRENGTH),
        density=_positive(fields, "frac_nonzero", 1.0),
        description=first.description,
        source=first.source,
        examples=tuple(examples),
    )


def _explanation(fields: Fields, index: int, origin: str) -> FeatureLabel:
    """Return the label of an explanation. A text too long for the label is also stored as the description."""
    text = _text(fields, "description", MAX_DESCRIPTION).strip()
    model = _text(fields, "explanationModelName", _MAX_NAME)
    return FeatureLabel(
        index,
        label=text[:MAX_LABEL],
        description=text if len(text) > MAX_LABEL else "",
        source=f"Neuronpedia {origin}, {model}" if model else f"Neuronpedia {origin}",
    )


def _example(fields: Fields) -> FeatureExample:
    tokens = _texts(fields, "tokens", _MAX_TEXT_TOKENS)
    values = fields.numbers("values", max_length=_MAX_TEXT_TOKENS, limit=MAX_STRENGTH)
    if values and len(tokens) != len(values):
        fields.report("values", f"Expected {len(tokens)} numbers, one for each token, got {len(values)}.")
    if not values or len(tokens) != len(values):
        return FeatureExample(("",), (0.0,))
    return FeatureExample(tokens, values).around_maximum()


def _index(fields: Fields, d_sae: int) -> int:
    return fields.integer("index", minimum=0, maximum=d_sae - 1, code="invalid_feature")


def _with_number(value: Mapping[str, object]) -> dict[str, object]:
    """Return the record with an integer index; Neuronpedia writes indices as strings."""
    index = value.get("index")
    is_number = isinstance(index, str) and len(index) <= _MAX_DIGITS and index.isascii() and index.isdecimal()
    return {**value, "index": int(str(index)) if is_number else index}


def _positive(fields: Fields, name: str, limit: float) -> float | None:
    number = fields.number(name, limit=limit, default=math.nan)
    if math.isnan(number):
        return None
    if number < 0:
        fields.report(name, f"Expected a number of at least 0, got {number:g}.")
    return number


def _text(fields: Fields, name: str, max_length: int) -> str:
    text = fields.text(name, required=False, max_length=max_length)
    _check_text(fields, name, text)
    return text


def _texts(fields: Fields, name: str, max_length: int) -> tuple[str, ...]:
    texts = fields.texts(name, max_length=max_length)
    _check_text(fields, name, "".join(texts))
    return texts


def _check_text(fields: Fields, name: str, text: str) -> None:
    """Report characters that JSON allows and the database cannot store."""
    if "\0" in text:
        fields.report(name, "The text must not contain NUL.")
    elif any("\ud800" <= character <= "\udfff" for character in text):
        fields.report(name, "The text must not contain unpaired surrogates.")
