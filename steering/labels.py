"""Labels and statistics of features, from a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.fields import Fields, describe

MAX_LABEL = 500
MAX_TOP_TOKENS = 20
_MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class FeatureLabel:
    """What is known about one feature; None where nothing is."""

    index: int
    label: str = ""
    max_activation: float | None = None
    density: float | None = None
    top_tokens: tuple[str, ...] = ()


def read_labels(path: Path, d_sae: int) -> tuple[FeatureLabel, ...]:
    """A JSON list of objects with index, label, max_activation, density, top_tokens; all but the index optional.

    InvalidSpecError names what is wrong.
    """
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise InvalidSpecError([Problem("labels", f"{path} is larger than {_MAX_FILE_BYTES >> 20} MiB.")])
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidSpecError([Problem("labels", f"{path} is not valid JSON.")]) from error
    return parse_labels(value, d_sae)


def parse_labels(value: object, d_sae: int) -> tuple[FeatureLabel, ...]:
    if not isinstance(value, list):
        raise InvalidSpecError([Problem("labels", f"Expected a list of features, found {describe(value)}.")])
    problems: list[Problem] = []
    labels = tuple(_parse_label(item, f"labels[{number}]", d_sae, problems) for number, item in enumerate(value))
    problems += _duplicates(labels)
    if problems:
        raise InvalidSpecError(problems[:20])
    return labels


def _parse_label(value: object, path: str, d_sae: int, problems: list[Problem]) -> FeatureLabel:
    fields = Fields(value, path, problems)
    label = FeatureLabel(
        index=fields.integer("index", minimum=0, maximum=d_sae - 1, code="invalid_feature"),
        label=fields.text("label", required=False)[:MAX_LABEL],
        max_activation=fields.positive("max_activation"),
        density=fields.positive("density"),
        top_tokens=fields.texts("top_tokens", max_length=MAX_TOP_TOKENS),
    )
    fields.refuse_others()
    return label


def _duplicates(labels: tuple[FeatureLabel, ...]) -> Iterator[Problem]:
    seen: set[int] = set()
    for number, label in enumerate(labels):
        if label.index in seen:
            yield Problem(f"labels[{number}].index", f"Feature {label.index} is listed twice.", "invalid_feature")
        seen.add(label.index)
