"""Reasoning before the answer: the marks that models put around it."""

from __future__ import annotations

from dataclasses import dataclass

from inference.text.dialects import harmony
from inference.text.dialects.events import ReasoningDelta
from inference.text.dialects.text_buffer import Parser, TextBuffer, Waiting, mapped, stripped


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """``sign``: the text that tells a template which knows them; most only take earlier reasoning out, and so name the
    end alone.
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
    """Whether the prompt itself has begun the reasoning, so that the answer begins inside it."""
    return prompt_end.rstrip().endswith(marks.start)


def begins_with(buffer: TextBuffer, start: str) -> Waiting[bool]:
    """Take ``start`` if nothing but blanks stands before it; else everything stays."""
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
    """What stands before ``end``, without the blanks around it; returns None where it does not come."""
    yield from buffer.skip_space()
    return (yield from mapped(stripped(buffer.until((end,))), ReasoningDelta))


def is_closed(marks: ThinkingMarks, prompt_end: str) -> bool:
    """Whether the prompt has ended the reasoning already, as templates do where it is turned off."""
    return prompt_end.rstrip().endswith(marks.end)
