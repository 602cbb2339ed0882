"""Errors of steering, with the status, code and field that clients see."""

from __future__ import annotations

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
    """The profile was taken out of use; its versions stay for the record."""

    status = 404
    code = "profile_archived"


class ProfileModelMismatchError(SteeringError):
    """The profile exists, but for another model."""

    code = "profile_model_mismatch"


class SAEUnavailableError(SteeringError):
    """The weights that a version was published with cannot be loaded, or are not the same any more."""

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
    """The draft is what was published last."""


class ReviewError(InvalidProfileError):
    """A review is missing, or cannot be given."""

    code = "review_required"


class SAENotReadableError(SteeringError):
    """The SAE does not read the site where it is registered."""

    code = "sae_not_readable"
    param = "sae"


class SAEChoiceError(SteeringError):
    """The model has no SAE, or several and none was named."""

    code = "sae_required"
    param = "sae"


class UnknownSAEError(SteeringError):
    status = 404
    code = "sae_not_found"
    param = "sae"


class PolicyConflictError(SteeringError):
    """A profile and a policy of the server cannot be put one after the other."""

    status = 409
    code = "policy_conflict"


class ScopeNotSupportedError(SteeringError):
    """An edit is for a part of the answer that the model never writes."""

    status = 409
    code = "scope_not_supported"


class InlineSteeringError(SteeringError):
    """Edits in a request that cannot be used; ``field`` is that of the first problem."""

    def __init__(self, message: str, field: str = "steering", code: str = "invalid_value") -> None:
        super().__init__(message, param=field, code=code)

    @classmethod
    def from_spec(cls, error: InvalidSpecError) -> InlineSteeringError:
        """With the paths that the request has: its list is called features."""
        message = str(error).replace("edits[", "steering.features[")
        first = error.problems[0]
        field = first.path.replace("edits", "steering.features", 1).replace(".feature.index", ".index")
        return cls(message.replace(".feature.index", ".index"), field, first.code)


class InUseError(SteeringError):
    """Something else needs what was to be deleted."""

    status = 409
    code = "in_use"


class EvaluationError(MillmError):
    """An evaluation cannot be run as described."""

    code = "invalid_value"
