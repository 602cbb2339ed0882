"""Errors of steering, with the status, code and field that clients see."""

from __future__ import annotations

import re
from collections.abc import Sequence

from core.errors import MillmError
from steering.spec.errors import InvalidSpecError, Problem


class SteeringError(MillmError):
    code = "invalid_value"
    param = "profile"
    names_files = True


class ProfileNotFoundError(SteeringError):
    status = 404
    code = "profile_not_found"


class ProfileArchivedError(SteeringError):
    """The profile is archived; its versions are kept."""

    status = 404
    code = "profile_archived"


class ProfileModelMismatchError(SteeringError):
    """The profile exists, but for another model."""

    code = "profile_model_mismatch"


class SAEUnavailableError(SteeringError):
    """The weights that a version was published with cannot be loaded, or have changed."""

    status = 409
    code = "sae_mismatch"


class IncompatibleSAEError(SteeringError):
    """The SAE does not fit the model."""

    code = "sae_mismatch"
    param = "model"


class InvalidProfileError(SteeringError):
    """A draft cannot be published; ``problems`` name the fields."""

    code = "invalid_profile"

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def from_spec(cls, error: InvalidSpecError) -> InvalidProfileError:
        return cls(str(error), error.problems)


class NothingToPublishError(InvalidProfileError):
    """The draft has the same effect as the latest version."""


class ReviewError(InvalidProfileError):
    """A review is missing, or cannot be given."""

    code = "review_required"


class SAEChoiceError(SteeringError):
    """The model has no SAE, or several and the request does not choose one."""

    code = "sae_required"
    param = "sae"


class UnknownSAEError(SteeringError):
    status = 404
    code = "sae_not_found"
    param = "sae"


class SAENotMeasuredError(SteeringError):
    """A figure of the SAE that the work needs was never measured."""

    status = 409
    code = "sae_not_measured"
    param = "sae"


class EffectNotMeasuredError(SteeringError):
    """The effect of the feature was not measured."""

    status = 404
    code = "effect_not_measured"
    param = "index"


class MeaningUnavailableError(SteeringError):
    """Labels cannot be searched by meaning; the message says why."""

    status = 409
    code = "meaning_not_available"
    param = "meaning"


class PolicyConflictError(SteeringError):
    """A profile and a policy of the server cannot be combined."""

    status = 409
    code = "policy_conflict"


class ScopeNotSupportedError(SteeringError):
    """An edit is limited to a segment that the model's output never has."""

    status = 409
    code = "scope_not_supported"


class InlineSteeringError(SteeringError):
    """Edits in a request cannot be used; ``field`` is that of the first problem."""

    def __init__(self, message: str, field: str = "steering", code: str = "invalid_value") -> None:
        super().__init__(message, param=field, code=code)

    @classmethod
    def from_spec(cls, error: InvalidSpecError, num_features: int) -> InlineSteeringError:
        """Build the error with the request's paths, where edits are two lists, `features` before `vectors`."""

        def renamed(text: str) -> str:
            text = _EDIT.sub(lambda found: _request_path(int(found[1]), num_features), text)
            return re.sub(r"^edits\b", f"steering.{'features' if num_features else 'vectors'}", text)

        first = error.problems[0]
        return cls(renamed(str(error)), renamed(first.path), first.code)


_EDIT = re.compile(r"\bedits\[(\d+)\](?:\.feature(?=\.index\b)|\.vector\b)?")


def _request_path(number: int, num_features: int) -> str:
    is_feature = number < num_features
    return f"steering.features[{number}]" if is_feature else f"steering.vectors[{number - num_features}]"


class InvalidWatchRuleError(SteeringError):
    """A watch rule could not be applied; ``param`` is the field to change."""

    param = "feature"


class InUseError(SteeringError):
    """The object cannot be deleted, because another one uses it."""

    status = 409
    code = "in_use"


class EvaluationError(MillmError):
    """An evaluation cannot be run as described."""

    code = "invalid_value"
