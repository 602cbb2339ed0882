"""POST /v1/responses and /v1/responses/input_tokens: the requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from openai_api.http.errors import invalid
from openai_api.responses.schemas.items import MAX_ITEMS, InputItem, ItemId
from openai_api.responses.schemas.tools import (
    FILE_SEARCH,
    MAX_TOOLS,
    SECRETS,
    FileSearchTool,
    McpTool,
    OfferedFunction,
    Tool,
    ToolChoice,
    is_hosted,
)
from openai_api.schemas.base import IGNORED, Harmless, Part, RequestSchema
from openai_api.schemas.chat import ChatRequest, ReasoningBudget, TemplateKwargs
from openai_api.schemas.generation import MAX_TOKENS, DrawingSchema, SteeredSchema
from openai_api.schemas.structured import GrammarExtensions, JsonSchema, TextFormat, format_kind
from openai_api.schemas.vector_stores import MAX_DEPTH, MAX_PARTS, size_of


class JsonObjectText(Part):
    type: Literal["json_object"]


class JsonSchemaText(JsonSchema):
    """Like the ``json_schema`` of chat completions, but with its fields beside the type."""

    type: Literal["json_schema"]


Format = Annotated[
    Annotated[TextFormat, Tag("~text")]
    | Annotated[JsonObjectText, Tag("~json_object")]
    | Annotated[JsonSchemaText, Tag("~json_schema")],
    Discriminator(
        format_kind,
        custom_error_type="invalid_format",
        custom_error_message="must have a `type`: one of text, json_object, json_schema",
    ),
]


class TextConfig(Part):
    format: Format | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, IGNORED] = None


Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


MAX_TOP_LOGPROBS = 20
LOGPROBS = "message.output_text.logprobs"
SEARCH_RESULTS = "file_search_call.results"
HONOURED_INCLUDES = frozenset({LOGPROBS, SEARCH_RESULTS})
INCLUDABLE = (
    LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    SEARCH_RESULTS,
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)

Input = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[InputItem], Field(max_length=MAX_ITEMS), Tag("~items")],
    Discriminator(lambda value: "~items" if isinstance(value, list) else "~string"),
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(Part):
    effort: Effort | None = None
    summary: Annotated[Literal["auto", "concise", "detailed"] | None, IGNORED] = None
    generate_summary: Annotated[Literal["auto", "concise", "detailed"] | None, IGNORED] = None
    context: Annotated[Literal["auto", "current_turn", "all_turns"] | None, IGNORED] = None
    mode: Annotated[str | None, Field(max_length=64), IGNORED] = None


def _conversation_id(value: Any) -> Any:
    return value["id"] if isinstance(value, Mapping) and isinstance(value.get("id"), str) else value


class InputSchema(RequestSchema):
    """The input items and instructions."""

    model: str
    input: Input | None = None
    instructions: str | None = Field(None, description="System message. Those of earlier responses are not used.")
    previous_response_id: ItemId | None = Field(None, description="Response to continue.")


class PromptSchema(InputSchema):
    """All fields that determine the prompt."""

    conversation: Annotated[ItemId | None, BeforeValidator(_conversation_id)] = Field(
        None, description="Conversation to continue; the response is added to it. Its id, or {`id`}."
    )
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto: drop the oldest items until the rest fits the model's context."
    )
    chat_template_kwargs: TemplateKwargs | None = None

    NEEDS_INPUT: ClassVar[bool] = True

    def check_together(self) -> None:
        super().check_together()
        if self.previous_response_id is not None and self.conversation is not None:
            raise invalid(
                "Send either `previous_response_id` or `conversation`.",
                param="previous_response_id",
            )
        self._check_file_search()
        self._check_mcp()
        continues = self.previous_response_id is not None or self.conversation is not None
        if self.NEEDS_INPUT and not self.input and not continues:
            raise invalid("`input` is required.", param="input", code="missing_required_parameter")

    def _check_file_search(self) -> None:
        """Allow one file search, with a filter of limited size and a name that no function has."""
        search = self.file_search
        if search is None:
            return
        place, tool = search
        names = [each.name for _, each in self.callable_tools]
        if names.count(FILE_SEARCH) > 1:
            message = "`tools` must have at most one `file_search` tool, and no function of that name."
            raise invalid(message, param="tools")
        if tool.filters is not None:
            size, depth = size_of(tool.filters)
            if size > MAX_PARTS or depth > MAX_DEPTH:
                message = f"`filters` must have at most {MAX_PARTS} conditions on at most {MAX_DEPTH} levels."
                raise invalid(message, param=f"tools[{place}].filters")

    def _check_mcp(self) -> None:
        labels = [tool.server_label for _, tool in self.mcp_tools]
        for place, tool in self.mcp_tools:
            if labels.count(tool.server_label) > 1:
                raise invalid("`server_label` must be different for each server.", param=f"tools[{place}].server_label")

    @property
    def functions(self) -> list[tuple[int, OfferedFunction]]:
        """The client's functions, with their indices in ``tools``."""
        return [(place, tool) for place, tool in enumerate(self.tools or ()) if isinstance(tool, OfferedFunction)]

    @property
    def callable_tools(self) -> list[tuple[int, OfferedFunction | FileSearchTool]]:
        """All tools that the model may call, with their indices in ``tools``."""
        return [
            (place, tool)
            for place, tool in enumerate(self.tools or ())
            if isinstance(tool, OfferedFunction | FileSearchTool)
        ]

    @property
    def mcp_tools(self) -> list[tuple[int, McpTool]]:
        """The MCP servers whose tools the model may call, with their indices in ``tools``."""
        return [(place, tool) for place, tool in enumerate(self.tools or ()) if isinstance(tool, McpTool)]

    @property
    def file_search(self) -> tuple[int, FileSearchTool] | None:
        """The file search tool with its index in ``tools``."""
        found = [(place, tool) for place, tool in self.callable_tools if isinstance(tool, FileSearchTool)]
        return found[0] if found else None

    @classmethod
    def ignored_in(cls, body: Mapping[str, Any]) -> list[str]:
        kinds = {f"tools[{tool['type']}]": None for tool in body.get("tools") or () if is_hosted(tool.get("type"))}
        return [*super().ignored_in(body), *kinds, *_ignored_parts(body)]


class ResponseStreamOptions(Part):
    include_obfuscation: Annotated[bool | None, IGNORED] = None


class ResponseRequest(PromptSchema, DrawingSchema, GrammarExtensions):
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS, description="Includes reasoning.")
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    include: list[Literal[INCLUDABLE]] | None = Field(None, max_length=len(INCLUDABLE))  # type: ignore[valid-type]
    store: bool | None = Field(
        None, description="Store the response, so that it can be retrieved and continued. Default: true."
    )
    background: bool | None = Field(
        None, description="Return immediately and generate in the background. Requires `store`."
    )
    metadata: Metadata | None = None

    reasoning_budget: ReasoningBudget = None

    max_tool_calls: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Maximum number of calls that this server runs: file_search and mcp."
    )
    prompt_cache_key: Annotated[str | None, Field(max_length=512), IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None
    prompt_cache_retention: Annotated[Literal["in_memory", "24h"] | None, IGNORED] = None
    safety_identifier: Annotated[str | None, Field(max_length=512), IGNORED] = None
    service_tier: Annotated[str | None, Field(max_length=64), IGNORED] = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        **ChatRequest.REFUSED,
        "access_programs": (),
        "add_generation_prompt": (True,),
        "context_management": ([],),
        "continue_final_message": (False,),
        "image": (),
        "logprobs": (False,),
        "max_completion_tokens": (),
        "max_tokens": (),
        "messages": (),
        "n": (1,),
        "prompt": (),
        "prompt_logprobs": (),
        "reasoning_effort": (),
        "response_format": ({"type": "text"},),
        "return_activations": (False,),
    }
    REMEDIES: ClassVar[Mapping[str, str]] = {
        "function_call": "Use `tool_choice` instead.",
        "functions": "Use `tools` instead.",
        "logprobs": "Use `top_logprobs`, or `message.output_text.logprobs` in `include`.",
        "max_completion_tokens": "Use `max_output_tokens` instead.",
        "max_tokens": "Use `max_output_tokens` instead.",
        "messages": "Use `input` instead.",
        "n": "Send several requests instead.",
        "prompt": "This server has no stored prompts. Use `instructions` and `input`.",
        "reasoning_effort": "Use `reasoning.effort` instead.",
        "response_format": "Use `text.format` instead.",
        "return_activations": "Use /v1/chat/completions.",
    }

    def check_together(self) -> None:
        super().check_together()
        if self.background and self.store is False:
            raise invalid("`store` must be true if `background` is true.", param="store")
        if self.background:
            self._check_no_secrets()

    def _check_no_secrets(self) -> None:
        """Raise MillmError 400 for secrets of MCP servers: they are never stored, so a job would not have them."""
        for place, tool in self.mcp_tools:
            for name in SECRETS:
                if getattr(tool, name):
                    message = f"Background responses cannot send `{name}` to MCP servers, because it is not stored."
                    raise invalid(message, param=f"tools[{place}].{name}", code="unsupported_parameter")

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def wants_search_results(self) -> bool:
        return SEARCH_RESULTS in (self.include or ())

    @property
    def num_logprobs(self) -> int | None:
        """The number of alternatives per token; None if log-probabilities are not requested."""
        wants = LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        return (self.top_logprobs or 0) if wants else None

    def parameters(self) -> dict[str, Any]:
        parameters = super().parameters()
        for text in ("instructions", "metadata"):
            parameters.pop(text, None)
        return parameters


class CompactionRequest(InputSchema, SteeredSchema):
    prompt_cache_key: Annotated[str | None, Field(max_length=512), IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None
    prompt_cache_retention: Annotated[Literal["in_memory", "24h"] | None, IGNORED] = None
    service_tier: Annotated[str | None, Field(max_length=64), IGNORED] = None


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


class TokenCountRequest(PromptSchema):
    model: Annotated[
        str, BeforeValidator(_or_empty), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})
    ] = Field("", description="Default: the default generation model, or the only one.")

    NEEDS_INPUT = False
    personality: Annotated[str | None, Field(max_length=64), IGNORED] = None


def _ignored_parts(body: Mapping[str, Any]) -> list[str]:
    """Return the names of nested fields that have no effect."""
    parts: dict[str, type[Part]] = {"reasoning": Reasoning, "text": TextConfig}
    names = [
        f"{name}.{field}"
        for name, part in parts.items()
        for field, value in (body.get(name) or {}).items()
        if value is not None and (field not in part.model_fields or IGNORED in part.model_fields[field].metadata)
    ]
    return [*names, *(f"include[{name}]" for name in body.get("include") or () if name not in HONOURED_INCLUDES)]


MAX_NEW_ITEMS = 20

NewItems = Annotated[list[InputItem], Field(max_length=MAX_NEW_ITEMS)]


class ConversationSchema(RequestSchema):
    def parameters(self) -> dict[str, Any]:
        """Return nothing: the content of conversations is not logged."""
        return {}


class ConversationRequest(ConversationSchema):
    items: NewItems | None = None
    metadata: Metadata | None = None


class ConversationUpdate(ConversationSchema):
    metadata: Metadata | None


class ConversationItemsRequest(ConversationSchema):
    items: Annotated[NewItems, Field(min_length=1)]
