"""Reads the unsaved form of a profile: the draft that saving it would create, and its problems by field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import MillmError
from inference.steering_refs import PublishedVersion
from steering.errors import InvalidProfileError
from steering.models import FeatureEdit, SteeringProfile
from steering.profiles.draft_checks import needed_saes, usable_edits
from steering.profiles.snapshot import DRAFT, source_of
from steering.spec.errors import Problem
from steering.spec.rendering import edits_to_json, fingerprint
from steering.spec.wording import describe_edit

Formsets = Mapping[str, Any]
"""Formsets of FeatureEdit, by the name of one of their edits."""
_PATH = re.compile(r"edits\[(\d+)\]\.?(.*)")
_FIELDS = {
    "window": "after",
    "window.first": "first",
    "gate": "gate_feature",
    "gate.vector": "gate_vector",
    "gate.above": "gate_above",
    "gate.below": "gate_above",
    "gate.unit": "gate_unit",
    "gate.measure": "gate_measure",
    "gate.scope": "gate_scope",
    "site": "norm_layer",
    "site.sae": "sae",
}


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A problem with one field. ``field`` is its name in the form, or empty; ``place`` is its label for people."""

    field: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class InvalidDraftError(MillmError):
    """The form of a draft has invalid fields; ``problems`` name all of them."""

    code = "invalid_profile"
    param = "profile"

    def __init__(self, problems: Sequence[FieldProblem]) -> None:
        super().__init__(" ".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class DraftCard:
    """One edit of the form that is not deleted."""

    form: Any  # a ModelForm of FeatureEdit
    name: str

    @property
    def row(self) -> FeatureEdit:
        """The row that saving would write; meaningful only if the form is valid."""
        row: FeatureEdit = self.form.instance
        return row

    def problems(self) -> Iterator[FieldProblem]:
        for name, messages in self.form.errors.items():
            field = name if name in self.form.fields else next(iter(self.form.fields))
            for message in messages:
                yield self.problem(field, str(message))

    def problem(self, field: str, message: str) -> FieldProblem:
        label = str(self.form.fields[field].label or field).lower()
        return FieldProblem(self.form.add_prefix(field), f"{self.name}, {label}", message)


@dataclass(frozen=True, slots=True)
class UnsavedDraft:
    """The version that publishing the form would create; ``words`` describes each edit in a line."""

    model: str
    version: PublishedVersion
    words: tuple[str, ...]


def read_cards(formsets: Formsets) -> list[DraftCard]:
    """Return the cards in the order that they have once saved: existing edits first, then new ones."""
    cards = [card for name, formset in formsets.items() for card in _cards(name, formset)]
    return sorted(cards, key=lambda card: (card.row.pk is None, card.row.pk or 0))


def read_draft(profile: SteeringProfile, formsets: Formsets) -> UnsavedDraft:
    """Validate the form as saving and publishing do, without writing anything.

    Raises InvalidDraftError, which names every field, or SAEUnavailableError if the files of an SAE are missing.
    """
    cards = read_cards(formsets)
    problems = [problem for formset in formsets.values() for problem in _formset_problems(formset)]
    problems += [problem for card in cards for problem in card.problems()]
    if problems:
        raise InvalidDraftError(problems)
    try:
        return unsaved_draft(profile, [card.row for card in cards])
    except InvalidProfileError as error:
        raise InvalidDraftError(_placed(error, cards)) from error


def unsaved_draft(profile: SteeringProfile, rows: Sequence[FeatureEdit]) -> UnsavedDraft:
    """Return what a draft of these rows would be. Neither need be saved.

    Raises InvalidProfileError, or SAEUnavailableError if the files of an SAE are missing.
    """
    edits = usable_edits(profile, rows)
    sources = tuple(source_of(sae) for sae in needed_saes(profile, edits))
    version = PublishedVersion(f"{profile.name}{DRAFT}", 0, fingerprint(edits), edits_to_json(edits), sources)
    return UnsavedDraft(profile.model.name, version, tuple(describe_edit(edit) for edit in edits))


def _cards(name: str, formset: Any) -> Iterator[DraftCard]:
    formset.is_valid()
    for number, form in enumerate(formset.forms):
        is_empty = number >= formset.initial_form_count() and not form.has_changed()
        if not is_empty and not form.cleaned_data.get("DELETE"):
            yield DraftCard(form, f"{name} {number + 1}")


def _formset_problems(formset: Any) -> Iterator[FieldProblem]:
    for message in formset.non_form_errors():
        yield FieldProblem("", "", str(message))


def _placed(error: InvalidProfileError, cards: Sequence[DraftCard]) -> list[FieldProblem]:
    return [_place(problem, cards) for problem in error.problems] or [FieldProblem("", "", error.message)]


def _place(problem: Problem, cards: Sequence[DraftCard]) -> FieldProblem:
    """Map a problem's JSON path to the form field that holds the value."""
    match = _PATH.match(problem.path)
    if match is None:
        return FieldProblem("", "", problem.message)
    card, path = cards[int(match[1])], match[2]
    first = path.partition(".")[0]
    names = [name for name in (_FIELDS.get(path), _FIELDS.get(first), first) if name is not None]
    field = next((name for name in names if name in card.form.fields), next(iter(card.form.fields)))
    return card.problem(field, problem.message)
