"""What steering refuses, with the status, code and field that HTTP clients see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from steering.spec.errors import InvalidSpecError, Problem


class SteeringError(Exception):
    """``message`` is a sentence for clients; it names the value and the remedy."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "invalid_value"
    param: ClassVar[str] = "profile"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ProfileNotFoundError(SteeringError):
    status = 404
    code = "profile_not_found"


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


class InUseError(SteeringError):
    """Something else needs what was to be deleted."""

    status = 409
    code = "in_use"
