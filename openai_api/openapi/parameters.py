"""Parameters and forms of routes that no schema class describes."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _query(name: str, schema: Schema, **more: Any) -> Schema:
    return {"name": name, "in": "query", **more, "schema": schema}


PROFILE_HEADER: Schema = {
    "name": "x-millm-profile",
    "in": "header",
    "description": "Steering profile, for clients that cannot send extra fields. Empty: none.",
    "schema": {"type": "string"},
}
MODEL = (_query("model", {"type": "string"}),)
PROFILES = (
    _query(
        "profiles",
        {"type": "boolean"},
        description="Whether to list each model's profiles too, as `model:profile`. Default: MILLM_LIST_PROFILES.",
    ),
)
RESUMED_STREAM = (
    _query("stream", {"type": "boolean", "default": False}),
    _query("starting_after", {"type": "integer", "minimum": 0}),
)
SIGNED_LINK = (
    _query("expires", {"type": "integer"}, description="Of a signed link, which needs no key."),
    _query("signature", {"type": "string"}),
)
VIDEO_CONTENT = (
    _query("format", {"type": "string", "enum": ["mp4", "avi"], "default": "mp4"}),
    _query("variant", {"type": "string", "enum": ["video"], "default": "video"}),
)
LOGIT_LENS = (
    _query(
        "logit_lens",
        {"type": "boolean", "default": True},
        description="Whether to compute the tokens that the feature promotes and suppresses.",
    ),
)
NEIGHBOURS = (
    _query(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
        description="Number of features.",
    ),
)
FILE_FORM: Schema = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": ["assistants", "batch", "fine-tune", "user_data", "vision"]},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": 3_600, "maximum": 2_592_000},
    },
}
PART_FORM: Schema = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "format": "binary", "description": "At most 64 MiB."}},
}
