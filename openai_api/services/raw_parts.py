"""The parts of answers to prompts that are plain text."""

from __future__ import annotations

from collections.abc import Sequence

from inference.dialects.answer_parts import answer_parts
from inference.parts import PartRules
from inference.thinking_state import thinking_state
from openai_api.services.target import Target


def raw_parts(target: Target, prompts: Sequence[Sequence[int]]) -> list[PartRules]:
    """One for each prompt; empty where none matter. Nobody knows whether tools are on offer, so marks alone tell."""
    if target.profile is None or not target.profile.intervention.tells_parts:
        return []
    text = target.model.text
    return [answer_parts(text.dialect, thinking_state(text, ids), "marked") for ids in prompts]
