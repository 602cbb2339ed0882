"""How much a model reasons before it answers: the request's wishes as its chat template and the engine take them."""

from __future__ import annotations

from typing import Any

from inference.client import ThinkingBudget
from inference.dialects.answer_grammar import Thinking
from inference.text import ModelText
from openai_api.errors import unsupported_parameter
from openai_api.schemas.chat import ChatRequest

SWITCHES = ("enable_thinking", "thinking")


def template_variables(text: ModelText, wanted: ChatRequest) -> dict[str, Any]:
    """The request's variables of the template, ``reasoning_effort`` under the names that the template knows."""
    given = wanted.chat_template_kwargs.model_dump(exclude_none=True) if wanted.chat_template_kwargs else {}
    effort = wanted.reasoning_effort
    if effort is None:
        return given
    derived: dict[str, Any] = {}
    switch = _switch(text)
    if effort == "none" and switch is not None:
        derived[switch] = False
    elif text.knows_variable("reasoning_effort"):
        derived["reasoning_effort"] = effort
    return {**derived, **given}


def is_effort_without_effect(text: ModelText, wanted: ChatRequest) -> bool:
    """Whether the model has no use for the effort asked for. Reasoning that cannot be turned off is cut off."""
    return wanted.reasoning_effort not in {None, "none"} and not text.knows_variable("reasoning_effort")


def thinking_budget(text: ModelText, wanted: ChatRequest, thinking: Thinking) -> ThinkingBudget | None:
    """Raises ApiError 400 where the model cannot be held to one."""
    max_tokens = _max_thinking(text, wanted)
    marks = text.dialect.thinking
    if max_tokens is None or thinking == "none" or marks is None:
        return None
    start_id, end_id = text.token_of(marks.start), text.token_of(marks.end)
    if start_id is None or end_id is None:
        param = "reasoning_effort" if wanted.reasoning_budget is None else "reasoning_budget"
        raise unsupported_parameter(param, "This model's marks of reasoning are not single tokens: leave it out.")
    return ThinkingBudget(max_tokens, start_id, end_id, has_begun=thinking == "begun")


def _max_thinking(text: ModelText, wanted: ChatRequest) -> int | None:
    if wanted.reasoning_budget is not None:
        return None if wanted.reasoning_budget < 0 else wanted.reasoning_budget
    return 0 if wanted.reasoning_effort == "none" and _switch(text) is None else None


def _switch(text: ModelText) -> str | None:
    """The template's own variable that turns reasoning off."""
    return next((name for name in SWITCHES if text.knows_variable(name)), None)
