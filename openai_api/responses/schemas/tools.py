"""Tools of a response, and which of them the model may or must call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from django.conf import settings
from pydantic import BeforeValidator, Discriminator, Field, SecretStr, Tag
from pydantic_core import PydanticCustomError

from openai_api.schemas.base import IGNORED, Part
from openai_api.schemas.vector_stores import FilterSchema, RankingOptions

MAX_TOOLS = 128
MAX_DESCRIPTION = 16_384
MAX_STORES = 8
MCP = "mcp"
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


class ToolFilter(Part):
    """Tools of an MCP server, by name, or those that say that they only read."""

    tool_names: list[Annotated[str, Field(max_length=256)]] | None = Field(None, max_length=1024)
    read_only: bool | None = None

    def matches(self, name: str, *, is_read_only: bool) -> bool:
        if self.tool_names is None and self.read_only is None:
            return False
        is_named = self.tool_names is None or name in self.tool_names
        return is_named and self.read_only in {None, is_read_only}


class ApprovalFilter(Part):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


SECRETS = ("authorization", "headers")  # fields of an McpTool that are never stored


class McpTool(Part):
    """The tools of a remote MCP server, which this server calls."""

    type: Literal["mcp"]
    server_label: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,47}$")
    server_url: str = Field(min_length=1, max_length=8_192)
    server_description: Annotated[str | None, Field(max_length=MAX_DESCRIPTION), IGNORED] = None
    authorization: SecretStr | None = Field(None, description="Access token for the server. It is not stored.")
    headers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,128}$")], SecretStr] | None = Field(
        None, max_length=32, description="Headers for the server. They are not stored."
    )
    allowed_tools: list[Annotated[str, Field(max_length=256)]] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = Field(None, description="Default: always.")
    defer_loading: Annotated[bool | None, IGNORED] = None
    allowed_callers: Annotated[list[str] | None, IGNORED] = None

    def allows(self, name: str, *, is_read_only: bool) -> bool:
        """Return whether the model may see a tool of the server."""
        if isinstance(self.allowed_tools, ToolFilter):
            return self.allowed_tools.matches(name, is_read_only=is_read_only)
        return self.allowed_tools is None or name in self.allowed_tools

    def needs_approval(self, name: str, *, is_read_only: bool) -> bool:
        """Return whether the client has to approve calls of a tool."""
        rule = self.require_approval
        if not isinstance(rule, ApprovalFilter):
            return rule != "never"
        if rule.always is not None and rule.always.matches(name, is_read_only=is_read_only):
            return True
        return rule.never is None or not rule.never.matches(name, is_read_only=is_read_only)


class HostedTool(Part):
    """A tool that OpenAI runs and this server ignores."""

    type: str


def is_hosted(kind: object) -> bool:
    if kind == MCP and not settings.MILLM_MCP_SERVERS:
        return True
    return isinstance(kind, str) and (kind in HOSTED or kind.startswith("web_search"))


def _tool_kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if is_hosted(kind):
        return "~hosted"
    return f"~{kind}" if kind in {FILE_SEARCH, MCP} else "~function"


def _known_tool(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else "function"
    if isinstance(kind, str) and kind not in {"function", FILE_SEARCH, MCP} and not is_hosted(kind):
        raise PydanticCustomError(
            "unsupported_parameter",
            "has the unsupported type `{kind}`. Supported: function, file_search, mcp",
            {"kind": kind[:50]},
        )
    return value


Tool = Annotated[
    Annotated[OfferedFunction, Tag("~function")]
    | Annotated[FileSearchTool, Tag("~file_search")]
    | Annotated[McpTool, Tag("~mcp")]
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


class McpChoice(Part):
    """The tools of an MCP server, or one of them."""

    type: Literal["mcp"]
    server_label: str = Field(max_length=64)
    name: str | None = Field(None, max_length=256)


def _chosen_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return f"~{kind}" if kind in {FILE_SEARCH, MCP} else "~function"


ToolReference = Annotated[
    Annotated[FunctionChoice, Tag("~function")]
    | Annotated[SearchChoice, Tag("~file_search")]
    | Annotated[McpChoice, Tag("~mcp")],
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
    if isinstance(kind, str) and kind not in {"function", FILE_SEARCH, MCP, "allowed_tools"}:
        raise PydanticCustomError(
            "unsupported_parameter",
            "has the unsupported type `{kind}`. Supported: function, file_search, mcp, allowed_tools",
            {"kind": kind[:50]},
        )
    return value


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~word")]
    | Annotated[FunctionChoice, Tag("~function")]
    | Annotated[SearchChoice, Tag("~file_search")]
    | Annotated[McpChoice, Tag("~mcp")]
    | Annotated[AllowedFunctions, Tag("~allowed")],
    Discriminator(_choice_kind),
    BeforeValidator(_known_choice),
]
