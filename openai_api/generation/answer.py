"""How the answers to a request are parsed, and the grammar that constrains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inference.segments import SegmentRules
from inference.text.dialects.answer_grammar import (
    ANY_OBJECT,
    MAX_CALLS,
    CallSpec,
    Literals,
    OfferedTool,
    ThinkingState,
    answer_grammar,
)
from inference.text.dialects.answer_reader import AnswerReader
from inference.text.dialects.argument_form import argument_forms
from inference.text.dialects.dialect import Dialect, answer_segment_rules
from inference.text.dialects.tool_format import ToolFormat
from inference.text.grammar import Grammar, GrammarError
from inference.text.model_text import ModelText, thinking_state
from openai_api.generation.target import Target
from openai_api.http.errors import unsupported_parameter
from openai_api.schemas.structured import GrammarSpec
from openai_api.schemas.tools import FunctionTool, ToolUse

NO_TOOLS = (
    "The server does not recognise a tool call format in this model's chat template. Remove `tools`, or ask an "
    "administrator to set the model's tool format."
)
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """The segments to look for in the answers: reasoning, tool calls, content."""

    dialect: Dialect
    thinking: ThinkingState = "none"
    tools: ToolUse | None = None

    def reader(self) -> AnswerReader:
        """Return a parser for one choice."""
        use = self.tools
        return AnswerReader(
            thinking=None if self.thinking == "none" else self.dialect.thinking,
            is_thinking=self.thinking == "begun",
            tools=self._notation,
            tool_names=frozenset(tool.name for tool in use.callable) if use else frozenset(),
            argument_forms={tool.name: argument_forms(tool.parameters or {}) for tool in use.callable} if use else None,
            max_calls=None if use and use.is_parallel else 1 if use else 0,
        )

    @property
    def _notation(self) -> ToolFormat | None:
        """Return the notation that the text is parsed by. Framed content needs one even without tools."""
        notation = self.dialect.tools
        return notation if notation is not None and (self.tools or notation.shape.content_opening) else None

    def finish_reason(self, reason: str, num_calls: int) -> FinishReason:
        """Return OpenAI's finish reason. A call of a function that the request demanded ends with "stop"."""
        if reason == "length":
            return "length"
        is_chosen = self.tools is None or self.tools.name is None
        return "tool_calls" if num_calls and is_chosen else "stop"

    def shown_token_ids(self, text: ModelText) -> tuple[int, ...]:
        """Return the special tokens that mark calls and reasoning and must stay visible to the parser."""
        return tuple(text.special_tokens_in(self._marks()).values())

    def grammar_spec(self, text: ModelText, body: GrammarSpec | None) -> GrammarSpec | None:
        """Return the grammar of the whole answer; ``body`` is that of its content."""
        use = self.tools if self.tools is not None and (self.tools.is_constrained or body is not None) else None
        opening = self._notation.shape.content_opening if self._notation else ""
        if use is None and (body is None or (self.thinking == "none" and not opening)):
            return body
        grammar = answer_grammar(
            literals=Literals(text.special_tokens_in(self._marks())),
            marks=self.dialect.thinking,
            thinking=self.thinking,
            calls=self._call_rules(use) if use else None,
            body=body.grammar if body else None,
            content_opening=opening,
        )
        return GrammarSpec(grammar, body.param if body and not (use and use.must_call) else "tools")

    def _call_rules(self, use: ToolUse) -> CallSpec:
        assert self.dialect.tools is not None, "checked before"
        tools = tuple(OfferedTool(tool.name, enforced_schema(tool)) for tool in use.callable)
        return CallSpec(self.dialect.tools.shape, tools, use.must_call, MAX_CALLS if use.is_parallel else 1)

    def _marks(self) -> tuple[str, ...]:
        thinking = self.dialect.thinking if self.thinking != "none" else None
        return (
            *((thinking.start, thinking.end) if thinking else ()),
            *(self._notation.marks if self._notation else ()),
        )


def check_tools(use: ToolUse | None, dialect: Dialect) -> None:
    """Raise MillmError 400 when the model cannot call tools."""
    if use is not None and dialect.tools is None:
        raise unsupported_parameter("tools", NO_TOOLS)


def enforced_schema(tool: FunctionTool) -> Mapping[str, Any]:
    """Return the schema that a demanded call's arguments must follow.

    A schema that cannot be enforced is an error only for strict tools; for others OpenAI promises only valid JSON.
    """
    schema = {"type": "object", "properties": {}} if tool.parameters is None else tool.parameters
    if tool.strict:
        return schema
    try:
        Grammar.of_schema(schema).check()
    except GrammarError:
        return ANY_OBJECT
    return schema


def raw_segment_rules(target: Target, prompts: Sequence[Sequence[int]]) -> list[SegmentRules]:
    """Return the parsing rules of each prompt; empty where none apply. Plain prompts do not declare tools, so only
    marks count.
    """
    if target.profile is None or not target.profile.steering.depends_on_segments:
        return []
    text = target.model.text
    return [answer_segment_rules(text.dialect, thinking_state(text, ids), "marked") for ids in prompts]
