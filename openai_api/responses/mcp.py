"""Tools of remote MCP servers: list them, offer them to the model as functions, and run its calls.

The client is the official SDK, over Streamable HTTP. Each list and each call is a connection of its own. A request may
name the servers of MILLM_MCP_SERVERS only; connections go to addresses that were checked, as for images
(:mod:`core.outbound`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from django.conf import settings

from core.database import in_thread
from core.errors import MillmError
from core.ids import new_id
from core.outbound import (
    OutboundError,
    OutboundRules,
    checked_address,
    is_public_or_private,
    parse_url,
)
from openai_api.http.call import Call
from openai_api.http.errors import invalid, timed_out
from openai_api.responses.schemas.bodies import Item
from openai_api.responses.schemas.request import PromptSchema
from openai_api.responses.schemas.tools import MAX_DESCRIPTION, MAX_TOOLS, SECRETS, McpTool

if TYPE_CHECKING:
    import httpx2
    from mcp import Client

logger = logging.getLogger(__name__)
ANY_PUBLIC = "*"
TIMEOUT_S = 60.0  # of a list or a call, with its connection
MAX_BYTES = 8 * 2**20  # of one answer of a server
MAX_OUTPUT = 2**18  # characters of a result that the model reads
MAX_SCHEMA = 2**16  # characters of a tool's schema
MAX_PAGES = 16
MAX_NAME = 64
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
T = TypeVar("T")


class McpServerError(MillmError):
    """A server could not be reached, or did not answer as it should."""

    status = 424
    code = "mcp_server_error"


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool of a server. ``function``: the name by which the model calls it."""

    function: str
    server: McpServer
    name: str
    needs_approval: bool
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.server.tool.server_label


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server that a request names; ``place`` is its index in ``tools``."""

    tool: McpTool
    place: int

    def rules(self) -> OutboundRules:
        """Return which addresses the server may have. Raises MillmError 400 if requests may not name it."""
        param = f"tools[{self.place}].server_url"
        try:
            parts = parse_url(self.tool.server_url)
        except OutboundError as error:
            raise error.with_param(param) from None
        hosts: Sequence[str] = settings.MILLM_MCP_SERVERS
        if parts.netloc.lower() in hosts or (parts.hostname or "") in hosts:
            return OutboundRules(is_allowed=is_public_or_private, ports=None, timeout_s=TIMEOUT_S)
        if ANY_PUBLIC in hosts:
            return OutboundRules(timeout_s=TIMEOUT_S)
        raise invalid("This server does not connect to that MCP server (MILLM_MCP_SERVERS).", param=param)

    async def list_tools(self, call: Call) -> list[dict[str, Any]]:
        """Return the allowed tools in OpenAI's form. Raises MillmError 400 and 424."""

        async def read(client: Client) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            cursor: str | None = None
            for _ in range(MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += [_listed(tool) for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    break
            return found

        try:
            tools = await self._connected(call, read)
        except McpFailure as failure:
            message = f"The tools of the MCP server `{self.tool.server_label}` could not be listed: {failure}"
            raise McpServerError(message, param=f"tools[{self.place}]") from None
        return [tool for tool in tools if self.tool.allows(tool["name"], is_read_only=_is_read_only(tool))]

    async def run(self, call: Call, name: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool. A failure is a result, too: the model reads it. Raises MillmError 504."""
        try:
            found = await self._connected(call, lambda client: client.call_tool(name, dict(arguments)))
        except McpFailure as failure:
            return Result.failed(str(failure), code=failure.code, is_http=failure.is_http)
        if found.is_error:
            content = [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in found.content]
            return Result(error={"type": "mcp_tool_execution_error", "content": content})
        return Result(_text_of(found))

    async def _connected(self, call: Call, act: Callable[[Client], Awaitable[T]]) -> T:
        """Connect and act. Raise McpFailure, and MillmError 504 at the request's deadline."""
        import httpx2
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client

        rules = self.rules()
        try:
            async with (
                asyncio.timeout_at(call.deadline),
                asyncio.timeout(TIMEOUT_S),
                httpx2.AsyncClient(transport=_transport(rules), headers=self._headers(), timeout=TIMEOUT_S) as http,
                Client(streamable_http_client(self.tool.server_url, http_client=http)) as client,
            ):
                return await act(client)
        except TimeoutError:
            if call.deadline is not None and asyncio.get_running_loop().time() >= call.deadline:
                raise timed_out(call.timeout_s, call.timeout_setting) from None
            raise McpFailure(f"It did not answer within {TIMEOUT_S:g} s.") from None
        except Exception as error:  # whatever the SDK's tasks raise, in groups
            raise _failure(error) from error

    def _headers(self) -> dict[str, str]:
        headers = {name: value.get_secret_value() for name, value in (self.tool.headers or {}).items()}
        if self.tool.authorization is not None:
            headers["Authorization"] = f"Bearer {self.tool.authorization.get_secret_value()}"
        return headers


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave: a text, or an error in OpenAI's form."""

    output: str | None = None
    error: Mapping[str, Any] | None = None

    @classmethod
    def failed(cls, message: str, *, code: int = -32000, is_http: bool = False) -> Result:
        kind = "http_error" if is_http else "mcp_protocol_error"
        return cls(error={"type": kind, "code": code, "message": message})


class McpFailure(Exception):
    """A server could not be reached or broke the protocol. ``code`` is that of HTTP or of JSON-RPC."""

    def __init__(self, message: str, *, code: int = -32000, is_http: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_http = is_http


class RemoteTools:
    """The MCP tools of one response. ``new_items`` are lists and approved calls that precede its output.

    ``taken``: names of the other functions that the model may call.
    """

    def __init__(self, servers: Sequence[McpServer] = (), taken: Iterable[str] = ()) -> None:
        self._servers = servers
        self._taken = frozenset(taken)
        self._tools: dict[str, RemoteTool] = {}  # by the model's name
        self._known: dict[str, Sequence[Mapping[str, Any]]] = {}  # the lists of earlier responses, by label
        self.new_items: list[Item] = []

    @classmethod
    def of(cls, request: PromptSchema) -> RemoteTools:
        servers = [McpServer(tool, place) for place, tool in request.mcp_tools]
        return cls(servers, (tool.name for _, tool in request.callable_tools))

    def order(self) -> dict[str, Any]:
        """Return what a background job needs to use the prepared tools, empty without servers. See :meth:`ordered`."""
        if not self._servers:
            return {}
        servers = [
            {"place": one.place, "tool": one.tool.model_dump(mode="json", exclude_none=True, exclude=set(SECRETS))}
            for one in self._servers
        ]
        return {"servers": servers, "taken": sorted(self._taken), "known": self._known, "items": self.new_items}

    @classmethod
    def ordered(cls, order: Mapping[str, Any]) -> RemoteTools:
        """Return the tools of :meth:`order`. Nothing is listed again."""
        if not order:
            return cls()
        servers = [McpServer(McpTool.model_validate(one["tool"]), one["place"]) for one in order["servers"]]
        tools = cls(servers, order["taken"])
        tools._known, tools.new_items = order["known"], order["items"]
        tools._offer()
        return tools

    def find(self, function: str) -> RemoteTool | None:
        """Return the tool that the model calls by a name."""
        return self._tools.get(function)

    def functions(self) -> list[dict[str, Any]]:
        """Return the tools as the chat offers functions."""
        return [
            {"name": tool.function, "description": tool.description or None, "parameters": dict(tool.parameters)}
            for tool in self._tools.values()
        ]

    def names(self, label: str, name: str | None, *, param: str) -> list[str]:
        """Return the model's names of a server's tools, or of one. Raises MillmError 400."""
        found = [tool.function for tool in self._tools.values() if tool.label == label and name in {None, tool.name}]
        if not found:
            what = f"server `{label}`" if name is None else f"tool `{name[:MAX_NAME]}` of the server `{label}`"
            raise invalid(f"There is no MCP {what} among the tools.", param=param)
        return found

    async def prepare(self, call: Call, items: Sequence[Item]) -> None:
        """List the tools of all servers. Lists of earlier responses are used again. Raises MillmError."""
        lists = _lists(items)
        labels = {server.tool.server_label for server in self._servers}
        self._known = {label: tools for label, tools in lists.items() if label in labels}
        fresh = [server for server in self._servers if server.tool.server_label not in lists]
        for server in self._servers:
            server.rules()
        for server, tools in zip(fresh, await asyncio.gather(*(one.list_tools(call) for one in fresh)), strict=True):
            label = server.tool.server_label
            self.new_items.append(
                {"id": new_id("mcpl_"), "type": "mcp_list_tools", "server_label": label, "tools": tools, "error": None}
            )
        self._offer()

    async def run_approved(self, call: Call, items: Sequence[Item]) -> bool:
        """Run the calls that the input approves, and return whether there were some. Raises MillmError."""
        approved = approved_calls(items)
        for item in approved:
            self.new_items.append(await self._approved(call, item))
        return bool(approved)

    def _offer(self) -> None:
        names, lists = set(self._taken), {**self._known, **_lists(self.new_items)}
        for server in self._servers:
            for tool in lists[server.tool.server_label]:
                is_read_only = _is_read_only(tool)
                if not server.tool.allows(tool["name"], is_read_only=is_read_only):
                    continue
                function = _function_name(server.tool.server_label, tool["name"], names)
                names.add(function)
                self._tools[function] = RemoteTool(
                    function,
                    server,
                    tool["name"],
                    server.tool.needs_approval(tool["name"], is_read_only=is_read_only),
                    (tool.get("description") or "")[:MAX_DESCRIPTION],
                    tool.get("input_schema") or {},
                )
        if len(self._tools) > MAX_TOOLS:
            message = f"The MCP servers have {len(self._tools)} tools; at most {MAX_TOOLS} can be used. "
            raise invalid(f"{message}Choose with `allowed_tools`.", param=f"tools[{self._servers[0].place}]")

    async def _approved(self, call: Call, request: Item) -> Item:
        """Run a call that the user has approved, and return its item."""
        tool = next(
            (
                each
                for each in self._tools.values()
                if (each.label, each.name) == (request["server_label"], request["name"])
            ),
            None,
        )
        if tool is None:
            message = f"The tool `{request['name']}` of the approved call is not among the tools."
            raise invalid(message, param="input")
        result = await run_call(call, tool, request["arguments"])
        return call_item(new_id("mcp_"), tool, request["arguments"], result, approval=request["id"])


def _lists(items: Iterable[Item]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the tools of each server that the items list."""
    return {item["server_label"]: item["tools"] for item in items if item["type"] == "mcp_list_tools"}


def approved_calls(items: Sequence[Item]) -> list[Item]:
    """Return the approval requests that are approved and whose calls have not been made."""
    requests = {item["id"]: item for item in items if item["type"] == "mcp_approval_request"}
    done = {item.get("approval_request_id") for item in items if item["type"] == "mcp_call"}
    given = [item for item in items if item["type"] == "mcp_approval_response"]
    for item in given:
        if item["approval_request_id"] not in requests:
            message = f"There is no approval request `{item['approval_request_id'][:MAX_NAME]}` in the conversation."
            raise invalid(message, param="input")
    approved = [item["approval_request_id"] for item in given if item["approve"]]
    return [requests[one] for one in dict.fromkeys(approved) if one not in done]


async def run_call(call: Call, tool: RemoteTool, arguments: str) -> Result:
    """Run the model's call. Raises MillmError 504."""
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        return Result.failed("The arguments are not a JSON object.", code=-32602)
    return await tool.server.run(call, tool.name, given)


def call_item(
    item_id: str,
    tool: RemoteTool,
    arguments: str,
    result: Result | None,
    *,
    status: str = "",
    approval: str | None = None,
) -> Item:
    """Return the item of a call, without a result while it is in progress."""
    ended = "failed" if result is not None and result.error is not None else "completed"
    return {
        "id": item_id,
        "type": "mcp_call",
        "server_label": tool.label,
        "name": tool.name,
        "arguments": arguments,
        "approval_request_id": approval,
        "output": None if result is None else result.output,
        "error": None if result is None or result.error is None else dict(result.error),
        "status": status or ended,
    }


def function_name(item: Item) -> str:
    """Return the name by which the model sees the tool of an item of an earlier turn."""
    return _UNFIT.sub("_", str(item["name"]))[:MAX_NAME] or "tool"


def output_of(item: Item) -> str:
    """Return what the model reads of a call."""
    error = item.get("error")
    if not error:
        return str(item.get("output") or "")
    if error.get("type") == "mcp_tool_execution_error":
        texts = [str(part.get("text") or "") for part in error.get("content") or () if isinstance(part, Mapping)]
        return "Error: " + "\n".join(filter(None, texts))
    return f"Error: {error.get('message') or 'The tool failed.'}"


def _function_name(label: str, name: str, taken: set[str]) -> str:
    """Return a free name for the model: the tool's own, if no other tool has it."""
    own = _UNFIT.sub("_", name)[:MAX_NAME] or "tool"
    for candidate in (own, f"{label}_{own}"[:MAX_NAME]):
        if candidate not in taken:
            return candidate
    return next(each for n in range(2, 10**6) if (each := f"{own[: MAX_NAME - 8]}_{n}") not in taken)


def _listed(tool: Any) -> dict[str, Any]:
    schema = tool.input_schema
    if len(json.dumps(schema)) > MAX_SCHEMA:
        raise McpFailure(f"The schema of its tool `{tool.name[:MAX_NAME]}` is too large.")
    annotations = tool.annotations
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": schema,
        "annotations": None
        if annotations is None
        else annotations.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def _is_read_only(tool: Mapping[str, Any]) -> bool:
    return bool((tool.get("annotations") or {}).get("readOnlyHint"))


def _text_of(result: Any) -> str:
    """Return the text of a result, or what is structured as JSON."""
    texts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(texts)[:MAX_OUTPUT]


def _failure(error: BaseException) -> Exception:
    """Return what went wrong, in words that tell nothing about this server's network."""
    for each in _leaves(error):
        if isinstance(each, MillmError | McpFailure):
            return each if isinstance(each, McpFailure) else McpFailure(each.message)
    import httpx2
    from mcp import MCPError

    for each in _leaves(error):
        if isinstance(each, httpx2.HTTPStatusError):
            status = each.response.status_code
            return McpFailure(f"It answered with HTTP {status}.", code=status, is_http=True)
        if isinstance(each, MCPError):
            return McpFailure(each.error.message[:500] or "It answered with an error.", code=each.error.code)
    logger.info("An MCP server failed: %r", error)
    leaf = next(iter(_leaves(error)), error)
    return McpFailure(f"The connection failed: {type(leaf).__name__}.")


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in _leaves(each)]


def _transport(rules: OutboundRules) -> httpx2.AsyncBaseTransport:
    """Return a transport that connects to checked addresses only and reads limited answers."""
    import httpx2

    class Limited(httpx2.AsyncByteStream):
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for block in self._inner:
                size += len(block)
                if size > MAX_BYTES:
                    raise McpFailure(f"It sent more than {MAX_BYTES >> 20} MiB.")
                yield block

        async def aclose(self) -> None:
            await self._inner.aclose()

    class Checked(httpx2.AsyncBaseTransport):
        def __init__(self) -> None:
            self._inner = httpx2.AsyncHTTPTransport()

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            url = request.url
            port = url.port or (443 if url.scheme == "https" else 80)
            address = await in_thread(checked_address, url.host, port, rules)
            response = await self._inner.handle_async_request(
                httpx2.Request(
                    request.method,
                    url.copy_with(host=address),
                    headers=request.headers,  # with the host's name
                    stream=request.stream,
                    extensions={**request.extensions, "sni_hostname": url.host},
                )
            )
            response.stream = Limited(response.stream)
            return response

        async def aclose(self) -> None:
            with suppress(Exception):
                await self._inner.aclose()

    return Checked()


def shown_url(url: str) -> str:
    """Return the URL as a response shows it, without what may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"
