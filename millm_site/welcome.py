"""What the server says when it is up."""

from __future__ import annotations

import json
import shlex
from typing import Any

from django.conf import settings

from millm_site.first_run import Login

SEED = 6  # the same for both, so that the stories can be compared


def welcome(url: str, login: Login | None) -> str:
    """Addresses, the login, and two requests to paste."""
    lines = [
        f"miLLM serves on {url}",
        "",
        f"  Console   {url}/admin/",
        f"  API       {url}/v1",
        f"  API docs  {url}/docs",
    ]
    if login is not None:
        lines += [f"  Login     {login.user}, {_password(login)}"]
    lines += ["", *_curls(url), "", "Ctrl-C stops the server."]
    return "\n".join(lines)


def curl(url: str, **extra: Any) -> str:
    """One line for a shell: the demo tells a story, streamed."""
    messages = [{"role": "user", "content": "Tell me a story."}]
    body = json.dumps({"model": "demo", "stream": True, **extra, "messages": messages}, separators=(",", ":"))
    words = ["curl", "-N", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body]
    key = ' -H "Authorization: Bearer $MILLM_API_KEY"' if settings.MILLM_AUTH == "required" else ""
    return shlex.join(words) + key


def _curls(url: str) -> list[str]:
    lines = [
        "Try it in another terminal, unsteered and steered:",
        "",
        f"  {curl(url, seed=SEED)}",
        f"  {curl(url, seed=SEED, profile='gloomy')}",
    ]
    if settings.MILLM_AUTH == "required":
        lines[1:1] = ["(MILLM_AUTH=required: make a key in the console and put it into MILLM_API_KEY.)"]
    return lines


def _password(login: Login) -> str:
    return f"password {login.password} (shown this once)" if login.password else "password as set before"
