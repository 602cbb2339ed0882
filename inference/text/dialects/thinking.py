"""The marks that models put around their reasoning."""

from __future__ import annotations

from dataclasses import dataclass

from inference.text.dialects import harmony
from inference.text.dialects.events import ReasoningDelta
from inference.text.dialects.text_buffer import Parser, TextBuffer, Waiting, mapped, stripped


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """``sign``: text that identifies a template with these marks. By default the end mark, because most templates only
    remove earlier reasoning and contain that mark alone.
    """

    start: str
    end: str
    sign: str = ""


KNOWN_MARKS = (
    ThinkingMarks("<think>", "</think>"),  # DeepSeek, Qwen, GLM, Hunyuan, MiniMax and most others
    ThinkingMarks("[THINK]", "[/THINK]"),  # Magistral
    ThinkingMarks("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ThinkingMarks("<seed:think>", "</seed:think>"),  # Seed-OSS
    ThinkingMarks("◁think▷", "◁/think▷"),  # Kimi
    ThinkingMarks("<|channel>thought", "<channel|>"),  # Gemma 4
    ThinkingMarks("<thought>", "</thought>"),  # EXAONE Deep
    ThinkingMarks(
        f"{harmony.CHANNEL}{harmony.ANALYSIS}{harmony.MESSAGE}",
        f"{harmony.END}{harmony.ASSISTANT}",
        f"{harmony.CHANNEL}{harmony.ANALYSIS}",
    ),  # gpt-oss
)


def marks_in(template: str) -> ThinkingMarks | None:
    return next((marks for marks in KNOWN_MARKS if (marks.sign or marks.end) in template), None)


def is_left_open(marks: ThinkingMarks, prompt_end: str) -> bool:
    """Return whether the prompt has opened the reasoning, so that the answer begins inside it."""
    return prompt_end.rstrip().endswith(marks.start)


def begins_with(buffer: TextBuffer, start: str) -> Waiting[bool]:
    """Consume ``start`` if only whitespace precedes it. Returns whether it did."""
    while True:
        text = buffer.text.lstrip()
        if buffer.is_ended or not start.startswith(text[: len(start)]) or len(text) >= len(start):
            break
        yield None
    if not text.startswith(start):
        return False
    buffer.take(len(buffer.text) - len(text) + len(start))
    return True


def parse_reasoning(buffer: TextBuffer, end: str) -> Parser[ReasoningDelta, str | None]:
    """Yield the text before ``end`` without surrounding whitespace. Returns None if the text ends first."""
    yield from buffer.skip_space()
    return (yield from mapped(stripped(buffer.until((end,))), ReasoningDelta))


def is_closed(marks: ThinkingMarks, prompt_end: str) -> bool:
    """Return whether the prompt has closed the reasoning, as templates do if it is disabled."""
    return prompt_end.rstrip().endswith(marks.end)
