"""A notation of tool calls, as a model's chat template teaches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from inference.dialects.call_shape import CallShape
from inference.dialects.calls import Calls
from inference.dialects.events import AnswerEvent
from inference.dialects.source import Reading, Source

IdForm = Literal["call", "short"]  # short: nine letters and digits, which Mistral's templates insist on


@dataclass(frozen=True, slots=True)
class CallSpan:
    """Between which texts calls stand, told without reading them. Without ``ends`` all the rest is calls.

    ``openers`` begin calls only at the very beginning of an answer.
    """

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """``marks`` are the texts that calls are recognised by; a tokenizer may have them as special tokens.

    A template teaches the format if it holds all texts of one of ``signs``.
    """

    name: str
    read: Callable[[Source, Calls], Reading[AnswerEvent, None]]
    shape: CallShape
    marks: tuple[str, ...]
    signs: tuple[tuple[str, ...], ...]
    span: CallSpan
    ids: IdForm = "call"

    def is_taught_by(self, template: str) -> bool:
        return any(all(sign in template for sign in signs) for signs in self.signs)
