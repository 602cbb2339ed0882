"""The output of a response as it grows: items, and the events for each change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from core.ids import new_id
from inference.text.dialects.events import (
    AnswerEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_api.responses.file_search import Annotation, CitationReader, Results, queries_of
from openai_api.responses.items import output_text
from openai_api.responses.mcp import RemoteTool, RemoteTools, Result, call_item
from openai_api.responses.schemas.bodies import Event, Item
from openai_api.responses.schemas.tools import FILE_SEARCH

Logprobs = list[Any]


class OpenMessage:
    """An open message, optionally with log-probabilities of its tokens."""

    def __init__(self, place: int, sources: Sequence[Mapping[str, Any]] = ()) -> None:
        self.place = place
        self.id = new_id("msg_")
        self._texts: list[str] = []
        self._logprobs: Logprobs = []
        self._citations = CitationReader(sources)
        self._annotations: list[Annotation] = []

    def item(self, status: str) -> Item:
        part = self._part()
        content = [part] if status != "in_progress" else []
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}

    def begin(self) -> Iterator[Event]:
        yield self._event("response.content_part.added", part=output_text(""))

    def add(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        self._logprobs.extend(logprobs)
        parts = list(self._citations.feed(text))
        if not any(isinstance(part, str) for part in parts) and (logprobs or not text):
            parts.append("")  # keeps the log-probabilities of tokens without text
        for part in parts:
            if isinstance(part, str):
                yield self._delta(part, logprobs)
                logprobs = []
            else:
                yield self._event(
                    "response.output_text.annotation.added",
                    annotation=part,
                    annotation_index=len(self._annotations),
                )
                self._annotations.append(part)

    def end(self) -> Iterator[Event]:
        for rest in self._citations.finish():
            yield self._delta(rest, [])
        text = "".join(self._texts)
        yield self._event("response.output_text.done", text=text, logprobs=self._logprobs)
        yield self._event("response.content_part.done", part=self._part())

    def _delta(self, text: str, logprobs: Logprobs) -> Event:
        self._texts.append(text)
        return self._event("response.output_text.delta", delta=text, logprobs=logprobs)

    def _part(self) -> dict[str, Any]:
        return {**output_text("".join(self._texts), self._logprobs), "annotations": list(self._annotations)}

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.id, "output_index": self.place, "content_index": 0, **fields}


class OpenReasoning:
    """An open reasoning item."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.id = new_id("rs_")
        self._texts: list[str] = []

    def item(self, status: str) -> Item:
        content = [] if status == "in_progress" else [self._part()]
        return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status}

    def begin(self) -> Iterator[Event]:
        yield self._event("response.content_part.added", part={"type": "reasoning_text", "text": ""})

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield self._event("response.reasoning_text.delta", delta=text)

    def end(self) -> Iterator[Event]:
        yield self._event("response.reasoning_text.done", text="".join(self._texts))
        yield self._event("response.content_part.done", part=self._part())

    def _part(self) -> dict[str, str]:
        return {"type": "reasoning_text", "text": "".join(self._texts)}

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.id, "output_index": self.place, "content_index": 0, **fields}


class OpenCall:
    """An open function call."""

    def __init__(self, place: int, call_id: str, name: str) -> None:
        self.place = place
        self.id = new_id("fc_")
        self._call_id = call_id
        self._name = name
        self._texts: list[str] = []

    def item(self, status: str) -> Item:
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._texts),
            "status": status,
        }

    def begin(self) -> Iterator[Event]:
        return iter(())

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield self._event("response.function_call_arguments.delta", delta=text)

    def end(self) -> Iterator[Event]:
        arguments = "".join(self._texts)
        yield self._event("response.function_call_arguments.done", arguments=arguments, name=self._name)

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.id, "output_index": self.place, **fields}


class OpenSearch:
    """An open call of file_search, which this server runs. Its queries are known at its end."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.id = new_id("fs_")
        self._texts: list[str] = []

    @property
    def queries(self) -> list[str]:
        return queries_of("".join(self._texts))

    def item(self, status: str, results: Results | None = None) -> Item:
        return {
            "id": self.id,
            "type": "file_search_call",
            "status": status,
            "queries": [] if status == "in_progress" else self.queries,
            "results": results,
        }

    def begin(self) -> Iterator[Event]:
        yield self._event("response.file_search_call.in_progress")

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        return iter(())

    def end(self) -> Iterator[Event]:
        yield self._event("response.file_search_call.searching")

    def found(self) -> Event:
        return self._event("response.file_search_call.completed")

    def _event(self, kind: str) -> Event:
        return {"type": kind, "item_id": self.id, "output_index": self.place}


class OpenMcpCall:
    """An open call of an MCP server's tool, which this server runs."""

    def __init__(self, place: int, tool: RemoteTool) -> None:
        self.place = place
        self.id = new_id("mcp_")
        self.tool = tool
        self._texts: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self._texts)

    def item(self, status: str) -> Item:
        return call_item(self.id, self.tool, self.arguments, None, status=status)

    def ended(self, result: Result) -> Item:
        return call_item(self.id, self.tool, self.arguments, result)

    def begin(self) -> Iterator[Event]:
        yield self._event("response.mcp_call.in_progress")

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield self._event("response.mcp_call_arguments.delta", delta=text)

    def end(self) -> Iterator[Event]:
        yield self._event("response.mcp_call_arguments.done", arguments=self.arguments)

    def done(self, result: Result) -> Event:
        return self._event(f"response.mcp_call.{'completed' if result.error is None else 'failed'}")

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.id, "output_index": self.place, **fields}


class OpenApproval:
    """An open call of an MCP server's tool that the client has to approve. It is sent as a whole."""

    def __init__(self, place: int, tool: RemoteTool) -> None:
        self.place = place
        self.id = new_id("mcpr_")
        self._tool = tool
        self._texts: list[str] = []

    def item(self, status: str) -> Item:
        return {
            "id": self.id,
            "type": "mcp_approval_request",
            "server_label": self._tool.label,
            "name": self._tool.name,
            "arguments": "".join(self._texts),
        }

    def begin(self) -> Iterator[Event]:
        return iter(())

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        return iter(())

    def end(self) -> Iterator[Event]:
        return iter(())


OpenTool = OpenSearch | OpenMcpCall  # what this server runs
OpenItem = OpenMessage | OpenReasoning | OpenCall | OpenApproval | OpenTool


class Output:
    """Process an answer's events in order; at most one item is open."""

    def __init__(
        self,
        *,
        searches: bool = False,
        sources: Sequence[Mapping[str, Any]] = (),
        remote: RemoteTools | None = None,
    ) -> None:
        """Start the output. ``searches``: file_search runs on this server. ``sources`` may be cited; they may grow.
        ``remote``: MCP tools.
        """
        self.items: list[Item] = []
        self.pending: list[OpenTool] = []  # calls without results
        self._remote = remote or RemoteTools()
        self._searches = searches
        self._sources = sources
        self._open: OpenItem | None = None

    def take(self, event: AnswerEvent, logprobs: Logprobs) -> Iterator[Event]:
        """Process an event; ``logprobs`` belong to its tokens, and only a message's text keeps them."""
        if isinstance(event, ContentDelta):
            yield from self._say(event.text, logprobs)
        elif isinstance(event, ReasoningDelta):
            yield from self._think(event.text)
        elif isinstance(event, ToolCallStart):
            yield from self._begin(self._tool_item(event))
        elif isinstance(event, ToolCallArguments):
            assert isinstance(self._open, OpenCall | OpenApproval | OpenTool), "a call starts before its arguments"
            yield from self._open.add(event.text)
        elif isinstance(event, ToolCallEnd):
            yield from self.close("completed")

    def close(self, status: str) -> Iterator[Event]:
        """Close the open item, if any, as `completed` or `incomplete`."""
        if self._open is not None:
            open_item, self._open = self._open, None
            yield from open_item.end()
            if isinstance(open_item, OpenTool) and status == "completed":
                self.items.append(open_item.item("searching" if isinstance(open_item, OpenSearch) else "calling"))
                self.pending.append(open_item)
                return
            item = open_item.item(status)
            self.items.append(item)
            yield {"type": "response.output_item.done", "output_index": open_item.place, "item": item}

    def found(self, search: OpenSearch, results: Results | None) -> Iterator[Event]:
        """Complete a pending search; ``results`` None: they are not shown."""
        self.pending.remove(search)
        item = self.items[search.place] = search.item("completed", results)
        yield search.found()
        yield {"type": "response.output_item.done", "output_index": search.place, "item": item}

    def ran(self, call: OpenMcpCall, result: Result) -> Iterator[Event]:
        """Complete a pending call of an MCP tool."""
        self.pending.remove(call)
        item = self.items[call.place] = call.ended(result)
        yield call.done(result)
        yield {"type": "response.output_item.done", "output_index": call.place, "item": item}

    def precede(self, items: Sequence[Item]) -> Iterator[Event]:
        """Add items that were complete before the answer began: lists of MCP tools, and calls that were approved."""
        for item in items:
            place = len(self.items)
            self.items.append(item)
            about = {"item_id": item["id"], "output_index": place}
            yield {"type": "response.output_item.added", "output_index": place, "item": item}
            yield {"type": f"response.{item['type']}.in_progress", **about}
            if item["type"] == "mcp_call":
                yield {"type": "response.mcp_call_arguments.done", **about, "arguments": item["arguments"]}
            is_failed = item.get("error") is not None
            yield {"type": f"response.{item['type']}.{'failed' if is_failed else 'completed'}", **about}
            yield {"type": "response.output_item.done", "output_index": place, "item": item}

    def finish(self, status: str, logprobs: Logprobs) -> Iterator[Event]:
        """End the output. An answer without text becomes an empty message; ``logprobs``
        belong to tokens without text.
        """
        if not self._has_answer and self._open is None:
            yield from self._begin(OpenMessage(self._next_place(), self._sources))
        if isinstance(self._open, OpenMessage) and logprobs:
            yield from self._open.add("", logprobs)
        yield from self.close(status)
        while self.pending:  # the answer was cut off, so the results would not be read
            search = self.pending.pop(0)
            item = self.items[search.place] = search.item("incomplete")
            yield {"type": "response.output_item.done", "output_index": search.place, "item": item}

    @property
    def is_calling(self) -> bool:
        """Return whether the open item is a call that this server runs."""
        return isinstance(self._open, OpenTool)

    @property
    def _has_answer(self) -> bool:
        return any(item["type"] != "mcp_list_tools" for item in self.items)

    def snapshot(self) -> list[Item]:
        """Return the items, the open one as incomplete."""
        return [*self.items, *([self._open.item("incomplete")] if self._open is not None else ())]

    def _say(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        if not isinstance(self._open, OpenMessage):
            yield from self._begin(OpenMessage(self._next_place(), self._sources))
        assert isinstance(self._open, OpenMessage)
        yield from self._open.add(text, logprobs)

    def _think(self, text: str) -> Iterator[Event]:
        if not isinstance(self._open, OpenReasoning):
            yield from self._begin(OpenReasoning(self._next_place()))
        assert isinstance(self._open, OpenReasoning)
        yield from self._open.add(text)

    def _tool_item(self, event: ToolCallStart) -> OpenItem:
        place = self._next_place()
        tool = self._remote.find(event.name)
        if tool is not None:
            return OpenApproval(place, tool) if tool.needs_approval else OpenMcpCall(place, tool)
        is_search = self._searches and event.name == FILE_SEARCH
        return OpenSearch(place) if is_search else OpenCall(place, event.id, event.name)

    def _begin(self, item: OpenItem) -> Iterator[Event]:
        yield from self.close("completed")
        self._open = item
        yield {
            "type": "response.output_item.added",
            "output_index": item.place,
            "item": item.item("in_progress"),
        }
        yield from item.begin()

    def _next_place(self) -> int:
        return len(self.items) + (self._open is not None)
