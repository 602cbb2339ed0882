"""Tools of a response, and which of them the model may or must call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from openai_api.schemas.base import Part
from openai_api.schemas.vector_stores import FilterSchema, RankingOptions

MAX_TOOLS = 128
MAX_DESCRIPTION = 16_384
MAX_STORES = 8
FILE_SEARCH = "file_search"  # the tool's type, and the name under which the model calls it
# Tools that OpenAI runs itself. Clients send them by default, so they are ignored by name instead of refused.
HOSTED = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "image_generation",
        "local_shell",
        "mcp",
        "namespace",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class OfferedFunction(Part):
    type: Literal["function"]
    name: ToolName
    description: str | None = Field(None, max_length=MAX_DESCRIPTION)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def _refuse_hybrid(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError(
            "unsupported_parameter", "is not supported: this server ranks by cosine similarity only"
        )


class SearchRanking(RankingOptions):
    hybrid_search: Annotated[None, BeforeValidator(_refuse_hybrid)] = None


class FileSearchTool(Part):
    """Search of vector stores. The model sees it as a function that takes queries."""

    type: Literal["file_search"]
    vector_store_ids: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        min_length=1, max_length=MAX_STORES
    )
    filters: FilterSchema | None = None
    max_num_results: int | None = Field(None, ge=1, le=50, description="Default: 10.")
    ranking_options: SearchRanking | None = None

    @property
    def name(self) -> str:
        return FILE_SEARCH


class HostedTool(Part):
    """A tool that OpenAI runs and this server ignores."""

    type: str


def is_hosted(kind: object) -> bool:
    return isinstance(kind, str) and (kind in HOSTED or kind.startswith("web_search"))


def _tool_kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "~file_search" if kind == FILE_SEARCH else "~hosted" if is_hosted(kind) else "~function"


def _known_tool(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else "function"
    if isinstance(kind, str) and kind not in {"function", FILE_SEARCH} and not is_hosted(kind):
        raise PydanticCustomError(
            "unsupported_parameter",
            "has the unsupported type `{kind}`. Supported: function, file_search",
            {"kind": kind[:50]},
        )
    return value


Tool = Annotated[
    Annotated[OfferedFunction, Tag("~function")]
    | Annotated[FileSearchTool, Tag("~file_search")]
    | Annotated[HostedTool, Tag("~hosted")],
    Discriminator(_tool_kind),
    BeforeValidator(_known_tool),
]


class FunctionChoice(Part):
    type: Literal["function"]
    name: ToolName


class SearchChoice(Part):
    type: Literal["file_search"]

    @property
    def name(self) -> str:
        return FILE_SEARCH


def _chosen_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "~file_search" if kind == FILE_SEARCH else "~function"


ToolReference = Annotated[
    Annotated[FunctionChoice, Tag("~function")] | Annotated[SearchChoice, Tag("~file_search")],
    Discriminator(_chosen_kind),
]


class AllowedFunctions(Part):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolReference], Field(min_length=1, max_length=MAX_TOOLS)]


def _choice_kind(value: Any) -> str:
    if isinstance(value, str):
        return "~word"
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "~allowed" if kind == "allowed_tools" else _chosen_kind(value)


def _known_choice(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else "function"
    if isinstance(kind, str) and kind not in {"function", FILE_SEARCH, "allowed_tools"}:
        raise PydanticCustomError(
            "unsupported_parameter",
            "has the unsupported type `{kind}`. Supported: function, file_search, allowed_tools",
            {"kind": kind[:50]},
        )
    return value


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~word")]
    | Annotated[FunctionChoice, Tag("~function")]
    | Annotated[SearchChoice, Tag("~file_search")]
    | Annotated[AllowedFunctions, Tag("~allowed")],
    Discriminator(_choice_kind),
    BeforeValidator(_known_choice),
]
