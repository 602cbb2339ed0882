"""Neuronpedia's names of what this server has.

A ``modelId`` is the name or an alias of a model. A ``sourceId`` is the name of an SAE behind the number of its layer,
such as ``6-res-jb``; an SAE whose name has that form already is called by it. The bare name of an SAE is accepted too.
A source set is a source without the number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from core.errors import MillmError
from inference.registry.records import ModelNotFoundError, ModelRecord
from openai_api.backend import get_backend
from openai_api.endpoints.features import find_model
from openai_api.generation.target import check_model_allowed
from openai_api.http.call import Call
from openai_api.neuronpedia.schemas import ExplanationBody, FeaturePlace, NeuronBody
from steering.errors import UnknownSAEError
from steering.features.catalog import FeatureRecord, SAERecord

_PARAMS = {"model": "modelId", "sae": "source", "profile": "features", "steering": "features"}
_NAMES = (  # field of /v1 -> Neuronpedia's name
    (re.compile(r"\bsteering\.features\b"), "features"),
    (re.compile(r"\bmax_tokens\b"), "n_tokens"),
    (re.compile(r"\bfrequency_penalty\b"), "freq_penalty"),
    (re.compile(r"\breturn_activations\b"), "text"),
)


def renamed(text: str) -> str:
    """Return an error's message or parameter with Neuronpedia's field names."""
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return _PARAMS.get(text, text)


def source_id(sae: SAERecord) -> str:
    prefix = f"{sae.layer}-"
    return sae.name if sae.name.startswith(prefix) else prefix + sae.name


def source_set(sae: SAERecord) -> str:
    return source_id(sae).removeprefix(f"{sae.layer}-")


def allowed_model(call: Call, name: str) -> ModelRecord:
    """Return the model, if the key may use it. Raises MillmError 404 and 403."""
    try:
        record = find_model(call, name)
        check_model_allowed(call.key, record)
    except MillmError as error:
        raise error.with_param("modelId") from None
    return record


async def find_source(call: Call, model: str, source: str, *, param: str = "source") -> SAERecord:
    """Return the SAE of a source. Raises MillmError 404 and 403."""
    (found,) = await find_sources(call, model, [source], param=param)
    return found


async def find_sources(call: Call, model: str, sources: Sequence[str], *, param: str) -> list[SAERecord]:
    record = allowed_model(call, model)
    saes = await get_backend().features().saes(record.name)
    return [_named(saes, record, source, param) for source in sources]


def _named(saes: Sequence[SAERecord], model: ModelRecord, source: str, param: str) -> SAERecord:
    """Return the SAE of that name, or else the one of that id."""
    by_name = {**{source_id(sae): sae for sae in saes}, **{sae.name: sae for sae in saes}}
    if source in by_name:
        return by_name[source]
    known = ", ".join(source_id(sae) for sae in saes[:5]) or "none"
    message = f"The model `{model.name}` has no source `{source[:100]}`. Available: {known}."
    raise UnknownSAEError(message).with_param(param)


async def sources_of_set(call: Call, model: str, name: str) -> list[SAERecord]:
    """Return the SAEs of a source set, at least one. Raises MillmError 404 and 403."""
    record = allowed_model(call, model)
    found = [sae for sae in await get_backend().features().saes(record.name) if source_set(sae) == name]
    if not found:
        message = f"The model `{record.name}` has no source set `{name[:100]}`."
        raise UnknownSAEError(message).with_param("sourceSet")
    return found


async def source_in_path(call: Call, path: str) -> SAERecord:
    """Return the SAE of ``modelId/sourceId``, both of which may contain slashes. Raises MillmError 404 and 403."""
    problems: list[MillmError] = []
    for model, source in _halves(path):
        try:
            return await find_source(call, model, source)
        except MillmError as error:
            if error.status != 404:
                raise
            problems.append(error)
    raise max(problems, key=lambda error: error.code == UnknownSAEError.code)


def _halves(path: str) -> Iterator[tuple[str, str]]:
    parts = path.split("/")
    for size in range(1, len(parts)):
        yield "/".join(parts[:size]), "/".join(parts[size:])


def check_same_model(features: Sequence[FeaturePlace], model: str) -> None:
    """Raise MillmError 400 for a feature of another model than that of the request."""
    registry = get_backend().registry()
    for number, feature in enumerate(features):
        param = f"features[{number}].modelId"
        try:
            is_same = registry.find(feature.modelId).name == registry.find(model).name
        except ModelNotFoundError as error:
            raise error.with_param(param) from None
        if not is_same:
            message = f"`{param}` must be the request's `modelId`, `{model[:100]}`, got `{feature.modelId[:100]}`."
            raise MillmError(message, code="invalid_value", param=param)


def neuron_body(sae: SAERecord, record: FeatureRecord) -> NeuronBody:
    return {
        "modelId": sae.model,
        "layer": source_id(sae),
        "index": str(record.index),
        "frac_nonzero": record.density,
        "maxActApprox": record.max_activation,
        "explanations": explanation_bodies(sae, record),
    }


def explanation_bodies(sae: SAERecord, record: FeatureRecord) -> list[ExplanationBody]:
    """Return the label and the longer description as explanations."""
    return [explanation_body(sae, record, text, record.source) for text in (record.label, record.description) if text]


def best_explanation(sae: SAERecord, record: FeatureRecord) -> ExplanationBody:
    """Return the label as an explanation, even if it is empty."""
    return explanation_body(sae, record, record.label, record.source)


def explanation_body(sae: SAERecord, record: FeatureRecord, text: str, by: str) -> ExplanationBody:
    return {
        "modelId": sae.model,
        "layer": source_id(sae),
        "source": source_id(sae),
        "index": str(record.index),
        "description": text,
        "typeName": None,
        "explanationModelName": by or None,
    }
