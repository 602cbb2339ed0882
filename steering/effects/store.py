"""Measured effects in the database, and those of features as files that travel with an SAE.

A file is JSON lines, optionally gzipped. Its first line describes the measurement, every other line one feature. A
line without a strength has only the output tokens::

    {"format": "millm.feature_effects", "format_version": 1, "sae": "abc...", "recipe": "...", "before": [
        {"prompt": "Tell me a story.", "text": "Once ..."}]}
    {"index": 7, "strength": 9.5, "kl": 0.59, "push": 0.31, "is_capped": false, "output_score": 0.2,
     "base_output_score": 0.01, "steered_activation": 0.11, "base_activation": 0.0, "fluency": 1.3,
     "curve": [[9.5, 0.59]], "after": ["The rain ..."], "output_tokens": [[" rain", 0.12]]}
    {"index": 8, "output_tokens": [[" sun", 0.07]]}
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from django.db import transaction
from django.utils import timezone

from core.text import is_storable
from steering.effects.recipe import VERSION, EffectRecipe, EffectResult, Sample
from steering.features.label_files import MAX_PROBLEMS, read_records
from steering.models import SAE, Feature, FeatureEffect, PlainVector, VectorEffect
from steering.models.effects import CalibratedEffect
from steering.profiles.snapshot import registered_saes
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.fields import Fields
from steering.spec.units import MAX_PUSH, MAX_STRENGTH

FORMAT = "millm.feature_effects"
_VERSION = 2
_MAX_RECIPE = 200
_MAX_SAMPLES = 16
_MAX_SAMPLE_CHARS = 4000
_MAX_POINTS = 32
_MAX_TOKENS = 64
_MAX_TOKEN_CHARS = 200
_BATCH = 500
_WRITTEN = (
    *("strength", "kl", "push", "is_capped", "output_score", "base_output_score", "steered_activation"),
    *("base_activation", "fluency", "steers_well", "curve", "samples", "recipe", "is_imported", "measured_at"),
)


def recipe_text(recipe: EffectRecipe) -> str:
    """Return a text that identifies the recipe, readable where a person looks for it."""
    values = json.dumps(recipe.to_json(), sort_keys=True)
    digest = hashlib.sha256(values.encode()).hexdigest()[:8]
    return f"{VERSION}-{digest}: KL {recipe.target:g}, cap {recipe.push_cap:g}, {len(recipe.prompts)} prompts"


@transaction.atomic
def store_effects(
    *, sae: SAE, results: Iterable[EffectResult], recipe: str, measured_at: datetime, is_imported: bool = False
) -> int:
    """Insert or replace the effects of features, and return their number."""
    found = {result.index: result for result in results if result.index is not None}
    pks = dict(Feature.objects.filter(sae=sae, index__in=found).values_list("index", "pk"))
    rows = [
        FeatureEffect(
            sae=sae,
            feature_id=pks[index],
            output_score=result.output_score,
            base_output_score=result.base_output_score,
            steered_activation=result.steered_activation,
            base_activation=result.base_activation,
            steers_well=result.steers_well,
            **_calibrated(result, recipe, measured_at, is_imported=is_imported),
        )
        for index, result in found.items()
        if index in pks
    ]
    FeatureEffect.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["feature"], update_fields=_WRITTEN, batch_size=_BATCH
    )
    return len(rows)


def _calibrated(result: EffectResult, recipe: str, measured_at: datetime, *, is_imported: bool) -> dict[str, Any]:
    """Return the columns that effects of features and of vectors have in common."""
    return {
        "strength": result.strength,
        "kl": result.kl,
        "push": result.push,
        "is_capped": result.is_capped,
        "fluency": result.fluency,
        "curve": [list(point) for point in result.curve],
        "samples": [{"prompt": one.prompt, "before": one.before, "after": one.after} for one in result.samples],
        "recipe": recipe,
        "is_imported": is_imported,
        "measured_at": measured_at,
    }


def store_vector_effect(
    *,
    vector: PlainVector,
    result: EffectResult,
    output_tokens: Sequence[tuple[str, float]],
    recipe: str,
    measured_at: datetime,
    is_imported: bool = False,
) -> None:
    """Insert or replace the effect of a vector, with the tokens that it makes the model write."""
    values = _calibrated(result, recipe, measured_at, is_imported=is_imported)
    values["output_tokens"] = _tokens(output_tokens)
    VectorEffect.objects.update_or_create(vector=vector, defaults=values)


@transaction.atomic
def store_output_tokens(*, sae: SAE, found: Mapping[int, Sequence[tuple[str, float]]]) -> int:
    """Replace the output tokens of features, by index, and return the number of features."""
    rows = list(Feature.objects.filter(sae=sae, index__in=found).only("pk", "index"))
    for row in rows:
        row.output_tokens = _tokens(found[row.index])
    return Feature.objects.bulk_update(rows, ["output_tokens"], batch_size=_BATCH)


def _tokens(found: Sequence[tuple[str, float]]) -> list[list[Any]]:
    return [[text, _short(part)] for text, part in found if is_storable(text)]


def not_measured(feature: Feature) -> str:
    """Return the message for a feature without a measured effect."""
    return (
        f'The effect of feature {feature.index} of `{feature.sae.name}` was not measured. Start "Measure effects" on '
        "the SAE's page, or send a strength as a number."
    )


def export_effects(sae: SAE, path: Path) -> int:
    """Write the effects of an SAE to a file, gzipped if its name ends with .gz. Return the number of features."""
    lines = list(_lines(sae))
    data = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()
    # Without a time of day, so that the same effects give the same file.
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return len(lines) - 1


def import_effects(sae: SAE, path: Path) -> int:
    """Import a file of :func:`export_effects`, and return the number of features.

    Raise OSError, or InvalidSpecError by line and field; then nothing is imported.
    """
    with path.open("rb") as file:
        return import_effects_file(sae, file, path.name)


def import_effects_file(sae: SAE, file: IO[bytes], name: str) -> int:
    """Import an open, seekable file. See :func:`import_effects`."""
    problems: list[Problem] = []
    results: dict[int, EffectResult | None] = {}
    written: dict[int, tuple[tuple[str, float], ...]] = {}
    header: tuple[str, tuple[Sample, ...]] | None = None
    for where, value in read_records(file, name):
        if header is None:
            header = _read_header(Fields(value, where, problems), sae)
        else:
            index, result, tokens = _read_feature(Fields(value, where, problems), header[1], sae.d_sae)
            if index in results and not problems:
                problems.append(Problem(f"{where}.index", f"Feature {index} is listed twice."))
            results[index] = result
            if tokens:
                written[index] = tokens
        if len(problems) >= MAX_PROBLEMS:
            break
    if header is None:
        problems.append(Problem("effects", "The file is empty."))
    if header is None or problems:
        raise InvalidSpecError(problems)
    now = timezone.now()
    with transaction.atomic():
        measured = [result for result in results.values() if result is not None]
        store_effects(sae=sae, results=measured, recipe=header[0], measured_at=now, is_imported=True)
        store_output_tokens(sae=sae, found=written)
    registered_saes.invalidate()  # edits of requests with the strength "auto" are cached there
    return len(results)


def _lines(sae: SAE) -> Iterator[dict[str, Any]]:
    rows = FeatureEffect.objects.filter(sae=sae).order_by("feature__index").select_related("feature")
    effects = {row.feature.index: row for row in rows}
    written = dict(sae.features.exclude(output_tokens=[]).values_list("index", "output_tokens"))
    first = max(effects.values(), key=lambda row: len(row.samples), default=None)
    before = [] if first is None else first.samples
    yield {
        "format": FORMAT,
        "format_version": _VERSION,
        "sae": sae.checksum,
        "recipe": "" if first is None else first.recipe,
        "before": [{"prompt": one["prompt"], "text": one["before"]} for one in before],
    }
    prompts = [one["prompt"] for one in before]
    for index in sorted(effects.keys() | written.keys()):
        effect = _effect_fields(effects[index], prompts) if index in effects else {}
        tokens = {"output_tokens": written[index]} if index in written else {}
        yield {"index": index, **effect, **tokens}


def calibrated_fields(row: CalibratedEffect) -> dict[str, Any]:
    """Return what files have of the columns that effects of features and of vectors have in common."""
    return {
        "strength": _short(row.strength),
        "kl": _short(row.kl),
        "push": _short(row.push),
        "is_capped": row.is_capped,
        "fluency": _short(row.fluency),
        "curve": [[_short(value) for value in point] for point in row.curve],
    }


def _effect_fields(row: FeatureEffect, prompts: Sequence[str]) -> dict[str, Any]:
    after = {one["prompt"]: one["after"] for one in row.samples}
    return {
        **calibrated_fields(row),
        "output_score": _short(row.output_score),
        "base_output_score": _short(row.base_output_score),
        "steered_activation": _short(row.steered_activation),
        "base_activation": _short(row.base_activation),
        "after": [after.get(prompt, "") for prompt in prompts],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _read_header(fields: Fields, sae: SAE) -> tuple[str, tuple[Sample, ...]]:
    if fields.text("format") != FORMAT or fields.integer("format_version", minimum=1, maximum=_VERSION) != _VERSION:
        fields.report("format", f"Expected a file of the format {FORMAT}, version {_VERSION}.")
    if fields.text("sae") != sae.checksum:
        fields.report("sae", f"The effects were measured with other weights than those of {sae.name}.", "sae_mismatch")
    recipe = fields.text("recipe", required=False, max_length=_MAX_RECIPE)
    before = tuple(
        Sample(child.text("prompt"), child.text("text", max_length=_MAX_SAMPLE_CHARS), "")
        for child in fields.children("before", max_length=_MAX_SAMPLES)
    )
    fields.refuse_others()
    return recipe, before


def _read_feature(
    fields: Fields, before: Sequence[Sample], d_sae: int
) -> tuple[int, EffectResult | None, tuple[tuple[str, float], ...]]:
    """Return the index, the effect if the record has one, and the output tokens."""
    index = fields.integer("index", minimum=0, maximum=d_sae - 1, code="invalid_feature")
    tokens = _read_tokens(fields)
    result = _read_result(fields, index, before) if fields.value("strength") is not None or not tokens else None
    fields.refuse_others()
    return index, result, tokens


def _read_tokens(fields: Fields) -> tuple[tuple[str, float], ...]:
    value = fields.value("output_tokens")
    found = [] if value is None else value
    if not isinstance(found, list) or len(found) > _MAX_TOKENS or not all(map(_is_token, found)):
        fields.report("output_tokens", f"Expected at most {_MAX_TOKENS} pairs [text, number].")
        return ()
    return tuple((str(text), float(part)) for text, part in found)


def _is_token(value: object) -> bool:
    if not (isinstance(value, list) and len(value) == 2):
        return False
    text, part = value
    is_number = isinstance(part, int | float) and not isinstance(part, bool) and 0 <= part <= MAX_STRENGTH
    return is_number and isinstance(text, str) and len(text) <= _MAX_TOKEN_CHARS and is_storable(text)


def _read_result(fields: Fields, index: int, before: Sequence[Sample]) -> EffectResult:
    after = fields.texts("after", max_length=_MAX_SAMPLES)
    if len(after) > len(before):
        fields.report("after", f"Expected at most {len(before)} texts, got {len(after)}.")
    return EffectResult(
        index=index,
        strength=fields.number("strength", limit=MAX_STRENGTH, default=0.0),
        kl=fields.positive("kl") or 0.0,
        push=fields.number("push", limit=MAX_PUSH, default=0.0),
        is_capped=fields.flag("is_capped"),
        output_score=fields.number_or_none("output_score", limit=1.0),
        base_output_score=fields.number_or_none("base_output_score", limit=1.0),
        steered_activation=fields.positive("steered_activation"),
        base_activation=fields.positive("base_activation"),
        fluency=fields.positive("fluency"),
        curve=_read_curve(fields),
        samples=tuple(Sample(one.prompt, one.before, text) for one, text in zip(before, after, strict=False) if text),
    )


def _read_curve(fields: Fields) -> tuple[tuple[float, float], ...]:
    value = fields.value("curve")
    points = [] if value is None else value
    if not isinstance(points, list) or len(points) > _MAX_POINTS or not all(map(_is_point, points)):
        fields.report("curve", f"Expected at most {_MAX_POINTS} pairs [strength, kl] of numbers.")
        return ()
    return tuple((float(x), float(y)) for x, y in points)


def _is_point(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= MAX_STRENGTH for x in value)
    )
