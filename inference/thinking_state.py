"""Whether a prompt has begun the reasoning of its answer."""

from __future__ import annotations

from collections.abc import Sequence

from inference.dialects.answer_grammar import Thinking
from inference.dialects.thinking import is_closed, is_left_open
from inference.text import ModelText

PROMPT_END = 24  # tokens; marks and the blanks around them


def thinking_state(text: ModelText, prompt_ids: Sequence[int], *, continues: bool = False) -> Thinking:
    """Whether the answer begins inside of reasoning, may begin with it, or must not be searched for it."""
    marks = text.dialect.thinking
    if marks is None:
        return "none"
    prompt_end = text.decode(prompt_ids[-PROMPT_END:])
    if is_left_open(marks, prompt_end):
        return "begun"
    return "none" if continues or is_closed(marks, prompt_end) else "possible"
