"""The request that shows a new user what the server does."""

from __future__ import annotations

import json
import shlex
from typing import Any

from django.conf import settings


def curl(url: str, **extra: Any) -> str:
    """One line for a shell: the demo tells a story, in one piece so that it can be read."""
    messages = [{"role": "user", "content": "Tell me a story."}]
    body = json.dumps({"model": "demo", **extra, "messages": messages}, separators=(",", ":"))
    words = ["curl", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body]
    key = ' -H "Authorization: Bearer $MILLM_API_KEY"' if settings.MILLM_AUTH == "required" else ""
    return shlex.join(words) + key
