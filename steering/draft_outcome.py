"""What each edit of an unsaved draft comes to, for the card where it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from steering.draft_form import DraftCard
from steering.drafts import edit_of
from steering.health import summary
from steering.inlines import coefficient_text
from steering.models import Evaluation, FeatureEdit, SteeringProfile
from steering.spec.edit import EditSpec, FeatureTarget
from steering.spec.errors import InvalidSpecError, MissingScaleError
from steering.spec.factor import with_factor
from steering.spec.parsing import parse_edits
from steering.spec.wording import describe_edit
from steering.strength_scale import StrengthScale, strength_scale


@dataclass(frozen=True, slots=True)
class CalibratedStrength:
    strength: float
    words: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """``prefix`` names the card. ``problem`` says why the rest is not known; ``warning`` what to beware of."""

    prefix: str
    words: str = ""
    coefficient: str = ""
    push: float | None = None
    scale: StrengthScale | None = None
    calibrated: CalibratedStrength | None = None
    warning: str = ""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def outcomes_of(profile: SteeringProfile, cards: Sequence[DraftCard]) -> list[Outcome]:
    calibrated = _calibrated(profile)
    return [_outcome(card, calibrated) for card in cards]


def _outcome(card: DraftCard, calibrated: Mapping[object, CalibratedStrength]) -> Outcome:
    prefix = card.form.prefix
    if (problem := next(card.problems(), None)) is not None:
        return Outcome(prefix, problem=f"{problem.place.removeprefix(f'{card.name}, ')}: {problem.message}")
    try:
        edit = edit_of(card.row)
        words, coefficient, push = describe_edit(edit), coefficient_text(edit), edit.push
    except InvalidSpecError as error:
        return Outcome(prefix, problem=error.problems[0].message)
    except MissingScaleError as error:
        return Outcome(prefix, problem=str(error))
    return Outcome(
        prefix, words, coefficient, push, strength_scale(edit), calibrated.get(_key(edit)), _warning(card.row)
    )


def _warning(row: FeatureEdit) -> str:
    if row.feature is None or not summary(row.feature.sae).is_warning:
        return ""
    return f"The SAE {row.feature.sae} looks wrong (see its page), so its pushes may mislead."


def _calibrated(profile: SteeringProfile) -> dict[object, CalibratedStrength]:
    """Strengths that the newest calibration of one of the profile's versions proposes, by what they are of."""
    rows = Evaluation.objects.filter(version__profile=profile, kind=Evaluation.Kind.CALIBRATION)
    evaluation = rows.select_related("version__profile").first()
    if evaluation is None:
        return {}
    proposal = evaluation.result["proposal"]
    reached = f"{proposal['kl']:.2g} nats per token" if proposal["kl"] is not None else "its target as nearly as can be"
    edits = [with_factor(edit, proposal["factor"]) for edit in parse_edits(evaluation.version.edits)]
    return {
        _key(edit): CalibratedStrength(
            edit.strength, f"The calibration of {evaluation.version} found {edit.strength:.3g}: {reached}."
        )
        for edit in edits
    }


def _key(edit: EditSpec) -> object:
    target = edit.target
    what = (target.sae.checksum, target.index) if isinstance(target, FeatureTarget) else target
    return (what, edit.operation, edit.unit, edit.phase)
