"""Labels of features, and merging several records about the same feature."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from steering.spec.errors import Problem

MAX_LABEL = 500
MAX_DESCRIPTION = 4000
MAX_TOP_TOKENS = 20
MAX_EXAMPLES = 5
MAX_EXAMPLE_TOKENS = 48


@dataclass(frozen=True, slots=True)
class FeatureExample:
    """A text excerpt with one activation per token."""

    tokens: tuple[str, ...]
    values: tuple[float, ...]

    @property
    def max_value(self) -> float:
        return max(self.values)

    @property
    def top_token(self) -> str:
        return self.tokens[self.values.index(self.max_value)]

    def around_maximum(self) -> FeatureExample:
        """Return at most MAX_EXAMPLE_TOKENS tokens, three quarters of them before the largest activation."""
        place = self.values.index(self.max_value)
        start = max(0, min(place - MAX_EXAMPLE_TOKENS * 3 // 4, len(self.tokens) - MAX_EXAMPLE_TOKENS))
        kept = slice(start, start + MAX_EXAMPLE_TOKENS)
        return FeatureExample(self.tokens[kept], self.values[kept])


@dataclass(frozen=True, slots=True)
class FeatureLabel:
    """What is known about one feature; None or empty where nothing is. ``source`` says who gave the label."""

    index: int
    label: str = ""
    max_activation: float | None = None
    density: float | None = None
    top_tokens: tuple[str, ...] = ()
    description: str = ""
    source: str = ""
    examples: tuple[FeatureExample, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelRecord:
    """One record of a file. If it is whole, no other record may describe the same feature.

    ``origin`` is the SAE that the record names, as model/SAE; ``path`` is its position in the file.
    """

    path: str
    label: FeatureLabel
    is_whole: bool = True
    origin: str = ""


@dataclass(frozen=True, slots=True)
class LabelSet:
    """The labels of a file, one per feature. ``num_left_out`` counts explanations that did not fit."""

    labels: tuple[FeatureLabel, ...]
    origin: str = ""
    num_left_out: int = 0


@dataclass(slots=True)
class LabelCollector:
    """Merges the records of a file into one label per feature."""

    problems: list[Problem]
    num_left_out: int = 0
    _origin: str = ""
    _labels: dict[int, FeatureLabel] = field(default_factory=dict)
    _whole: set[int] = field(default_factory=set)

    def add(self, record: LabelRecord) -> None:
        index = record.label.index
        self._check_origin(record)
        if index not in self._labels:
            self._labels[index] = replace(record.label, examples=_strongest(record.label.examples))
        elif record.is_whole or index in self._whole:
            self.problems.append(
                Problem(f"{record.path}.index", f"Feature {index} is listed twice.", "invalid_feature")
            )
        else:
            self._labels[index] = self._join(self._labels[index], record.label)
        if record.is_whole:
            self._whole.add(index)

    def result(self) -> LabelSet:
        return LabelSet(tuple(self._labels[index] for index in sorted(self._labels)), self._origin, self.num_left_out)

    def _check_origin(self, record: LabelRecord) -> None:
        self._origin = self._origin or record.origin
        if record.origin and record.origin != self._origin:
            message = (
                f"This label is for {record.origin}, but the records before it are for {self._origin}; import them "
                "separately."
            )
            self.problems.append(Problem(f"{record.path}.layer", message))

    def _join(self, one: FeatureLabel, other: FeatureLabel) -> FeatureLabel:
        """Return both labels merged: the first explanation is the label, others are added to the description."""
        label, description, source = one.label, one.description, one.source
        if not label:
            label, description, source = other.label, other.description, other.source
        elif other.label:
            description = self._append(description, other)
        examples = _strongest((*one.examples, *other.examples))
        return FeatureLabel(
            index=one.index,
            label=label,
            max_activation=other.max_activation if one.max_activation is None else one.max_activation,
            density=other.density if one.density is None else one.density,
            top_tokens=one.top_tokens or other.top_tokens,
            description=description,
            source=source,
            examples=examples,
        )

    def _append(self, description: str, other: FeatureLabel) -> str:
        line = f"{other.description or other.label} ({other.source})"
        joined = f"{description}\n{line}".strip()
        if len(joined) <= MAX_DESCRIPTION:
            return joined
        self.num_left_out += 1
        return description


def top_tokens(examples: tuple[FeatureExample, ...]) -> tuple[str, ...]:
    """Return the distinct tokens with the largest activation of each example."""
    return tuple(dict.fromkeys(example.top_token for example in examples))[:MAX_TOP_TOKENS]


def _strongest(examples: tuple[FeatureExample, ...]) -> tuple[FeatureExample, ...]:
    """Return the distinct examples with the largest activations; exports repeat a text for several quantiles."""
    distinct = dict.fromkeys(examples)
    return tuple(sorted(distinct, key=lambda example: -example.max_value)[:MAX_EXAMPLES])
