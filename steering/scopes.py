"""Edits for a part of the answer, on a model that may not have it."""

from __future__ import annotations

from inference.dialects.dialect import Dialect
from inference.interventions import Intervention
from steering.errors import ScopeNotSupportedError


def check_scopes(intervention: Intervention, dialect: Dialect) -> None:
    """ScopeNotSupportedError where an edit could never act, whatever the model writes."""
    if "thinking" in intervention.needed_parts and dialect.thinking is None:
        raise ScopeNotSupportedError(
            "The profile has an edit with the scope “thinking”, and this model's chat template knows no marks of"
            " reasoning: it could never act. Use another scope."
        )
