"""Errors of training."""

from __future__ import annotations

from core.errors import MillmError


class TrainingError(MillmError):
    """A training cannot run as described; ``param`` is the option to change."""

    code = "invalid_value"
    names_files = True


class NoSpaceError(TrainingError):
    """The disk has too little space for the activations."""

    status = 507
    code = "insufficient_storage"
