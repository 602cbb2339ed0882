"""Items as they are stored and sent: complete, with ids, in OpenAI's forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.ids import new_id
from openai_api.responses.schemas.bodies import Item
from openai_api.responses.schemas.items import (
    AnyItem,
    CompactionItem,
    FileSearchItem,
    FunctionCallItem,
    FunctionOutputItem,
    ItemText,
    McpApprovalItem,
    McpApprovalRequestItem,
    McpCallItem,
    McpItem,
    McpListItem,
    MessageItem,
    OwnItem,
    ReferenceItem,
    compaction_of,
    summary_in,
    text_of,
)
from openai_api.schemas.messages import RefusalPart

SUMMARY = "Summary of the conversation so far:\n"  # introduces a compaction's text to the model
_MCP_IDS = {
    "mcp_list_tools": "mcpl_",
    "mcp_call": "mcp_",
    "mcp_approval_request": "mcpr_",
    "mcp_approval_response": "mcpa_",
}
Content = str | list[ItemText | RefusalPart]


def items_of(items: str | Iterable[AnyItem] | None) -> list[Item | ReferenceItem]:
    """Return the items of an input; references are resolved later."""
    if items is None:
        return []
    if isinstance(items, str):
        return [user_message(items)]
    return [item if isinstance(item, ReferenceItem) else stored_item(item) for item in items]


def user_message(text: str) -> Item:
    return _message(new_id("msg_"), "user", [{"type": "input_text", "text": text}])


def compaction_item(item_id: str, summary: str) -> Item:
    return {"id": item_id, "type": "compaction", "encrypted_content": compaction_of(summary)}


def stored_item(item: OwnItem) -> Item:
    if isinstance(item, CompactionItem):
        return {"id": item.id or new_id("cmp_"), "type": "compaction", "encrypted_content": item.encrypted_content}
    if isinstance(item, McpListItem | McpCallItem | McpApprovalRequestItem | McpApprovalItem):
        return _mcp_item(item)
    status = item.status or "completed"
    if isinstance(item, MessageItem):
        return _message(item.id or new_id("msg_"), item.role, _parts(item.role, item.content), status)
    if isinstance(item, FunctionCallItem):
        return {
            "id": item.id or new_id("fc_"),
            "type": "function_call",
            "call_id": item.call_id,
            "name": item.name,
            "arguments": item.arguments,
            "status": status,
        }
    if isinstance(item, FileSearchItem):
        return {
            "id": item.id or new_id("fs_"),
            "type": "file_search_call",
            "queries": list(item.queries),
            "results": None if item.results is None else [result.model_dump() for result in item.results],
            "status": item.status or "completed",
        }
    if isinstance(item, FunctionOutputItem):
        return {
            "id": item.id or new_id("fco_"),
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": item.output if isinstance(item.output, str) else _input_parts(item.output),
            "status": status,
        }
    return {
        "id": item.id or new_id("rs_"),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": part.text} for part in item.summary],
        "content": [{"type": "reasoning_text", "text": part.text} for part in item.content or ()],
        "status": status,
    }


def _mcp_item(item: McpItem) -> Item:
    stored = {**item.model_dump(mode="json"), "id": item.id or new_id(_MCP_IDS[item.type])}
    if isinstance(item, McpCallItem):
        stored["status"] = item.status or "completed"
    return stored


def output_text(text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def item_text(item: Item) -> str:
    """Return the item's text, for logs and prompts."""
    if item["type"] == "function_call":
        return str(item["arguments"])
    if item["type"] == "file_search_call":
        return "\n".join(item["queries"])
    if item["type"] == "mcp_call":
        return str(item["arguments"])
    if item["type"] == "compaction":
        return f"{SUMMARY}{summary_in(item['encrypted_content'])}"
    content = item["output"] if item["type"] == "function_call_output" else item.get("content") or item.get("summary")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", part.get("refusal", ""))) for part in content or ())


def _message(item_id: str, role: str, content: list[dict[str, Any]], status: str = "completed") -> Item:
    return {"id": item_id, "type": "message", "role": role, "status": status, "content": content}


def _parts(role: str, content: Content) -> list[dict[str, Any]]:
    if role != "assistant":
        return _input_parts(content)
    if isinstance(content, str):
        return [output_text(content)]
    return [
        {"type": "refusal", "refusal": part.refusal} if isinstance(part, RefusalPart) else output_text(part.text)
        for part in content
    ]


def _input_parts(content: Content) -> list[dict[str, Any]]:
    texts = [text_of(content)] if isinstance(content, str) else [part.text for part in content]
    return [{"type": "input_text", "text": text} for text in texts]
