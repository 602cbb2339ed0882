"""Tools of chat completions, and which of them the model may or must call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from core.errors import MillmError
from inference.text.grammar import Grammar, GrammarError
from openai_api.http.errors import invalid
from openai_api.schemas.base import Part

MAX_TOOLS = 128
MAX_DESCRIPTION = 16_384  # characters
NAME = r"^[a-zA-Z0-9_-]{1,64}$"

FunctionName = Annotated[str, Field(pattern=NAME)]
Mode = Literal["none", "auto", "required"]


class FunctionTool(Part):
    """``parameters`` is a JSON schema. Without it, the function has no parameters."""

    name: FunctionName
    description: str | None = Field(None, max_length=MAX_DESCRIPTION)
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="Every call must match the schema exactly.")


def _only_functions(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else "function"
    if isinstance(kind, str) and kind != "function":
        raise PydanticCustomError(
            "unsupported_parameter", "has the unsupported type `{kind}`. Supported: function", {"kind": kind[:50]}
        )
    return value


class PlainTool(Part):
    type: Literal["function"]
    function: FunctionTool


Tool = Annotated[PlainTool, BeforeValidator(_only_functions)]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


class FunctionReference(Part):
    name: str = Field(max_length=256)


class NamedChoice(Part):
    """A function that must be called; in lists of allowed tools, one that may be called."""

    type: Literal["function"]
    function: FunctionReference


class AllowedTools(Part):
    mode: Literal["auto", "required"]
    tools: list[NamedChoice] = Field(min_length=1, max_length=MAX_TOOLS)


class AllowedChoice(Part):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "~mode"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return {"function": "~function", "allowed_tools": "~allowed"}.get(kind) if isinstance(kind, str) else None


ToolChoice = Annotated[
    Annotated[Mode, Tag("~mode")]
    | Annotated[NamedChoice, Tag("~function")]
    | Annotated[AllowedChoice, Tag("~allowed")],
    Discriminator(
        _choice_kind,
        custom_error_type="invalid_tool_choice",
        custom_error_message="must be none, auto, required, or an object with the type function or allowed_tools",
    ),
]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request. ``name`` is the one that must be called, if any.

    ``is_limited``: calls of other tools, or in another form, must not be possible for the model.
    """

    tools: tuple[FunctionTool, ...]
    must_call: bool = False
    name: str | None = None
    is_parallel: bool = True
    is_limited: bool = False

    @property
    def callable(self) -> tuple[FunctionTool, ...]:
        """Return the tools that may be called."""
        return tuple(tool for tool in self.tools if self.name in {None, tool.name})

    @property
    def is_constrained(self) -> bool:
        """Return whether a grammar must enforce the required calls."""
        return self.must_call or self.is_limited or not self.is_parallel or any(tool.strict for tool in self.callable)


def tool_use(tools: Sequence[PlainTool] | None, choice: ToolChoice | None, *, is_parallel: bool) -> ToolUse | None:
    """Combine the tool fields of a request; None where nothing may be called. Raises MillmError 400."""
    functions = tuple(tool.function for tool in tools or ())
    _check_names([tool.name for tool in functions])
    if not functions:
        if choice is not None and choice != "none":
            raise invalid("`tool_choice` requires `tools`.", param="tool_choice")
        return None
    if choice == "none":
        return None
    _check_strict(functions)
    if isinstance(choice, NamedChoice):
        _check_known(choice.function.name, functions, "tool_choice.function.name")
        return ToolUse(functions, must_call=True, name=choice.function.name, is_parallel=False)
    if isinstance(choice, AllowedChoice):
        allowed = _allowed(choice.allowed_tools, functions)
        return ToolUse(
            allowed, must_call=choice.allowed_tools.mode == "required", is_parallel=is_parallel, is_limited=True
        )
    return ToolUse(functions, must_call=choice == "required", is_parallel=is_parallel)


def _allowed(allowed: AllowedTools, functions: tuple[FunctionTool, ...]) -> tuple[FunctionTool, ...]:
    for place, tool in enumerate(allowed.tools):
        _check_known(tool.function.name, functions, f"tool_choice.allowed_tools.tools[{place}].function.name")
    names = {tool.function.name for tool in allowed.tools}
    return tuple(tool for tool in functions if tool.name in names)


def _check_names(names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            param = f"tools[{place}].function.name"
            raise invalid(f"`{param}` must be unique, got `{name}` twice.", param=param)


def _check_strict(functions: Sequence[FunctionTool]) -> None:
    """Check the schemas of strict tools. Calls of other tools follow their schema as far as it can be enforced."""
    for place, tool in enumerate(functions):
        if not tool.strict or tool.parameters is None:
            continue
        try:
            Grammar.of_schema(tool.parameters).check()
        except GrammarError as error:
            raise error.at(f"tools[{place}].function.parameters", is_schema=True) from None


def _check_known(name: str, functions: Sequence[FunctionTool], param: str) -> None:
    if all(tool.name != name for tool in functions):
        raise unknown_tool(name, param)


def unknown_tool(name: str, param: str) -> MillmError:
    return invalid(f"`{param}` must be the name of a tool in `tools`, got `{name[:64]}`.", param=param)
