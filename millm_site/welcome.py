"""What the server says when it is up."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from console.example_request import curl
from millm_site.first_run import Login

SEED = 9  # the same for both, so that the stories can be compared


_KEYS = {
    "loopback": "not needed for requests from this machine (MILLM_AUTH=loopback)",
    "required": "needed for every request (MILLM_AUTH=required)",
}


def welcome(url: str, login: Login | None, *, password_file: Path | None = None) -> str:
    """Addresses, the login, and two requests to paste. ``password_file`` holds a password that is not shown."""
    lines = [
        f"miLLM serves on {url}",
        "",
        f"  Console   {url}/admin/",
        f"  API       {url}/v1",
        f"  API docs  {url}/docs",
        f"  API keys  {_KEYS[settings.MILLM_AUTH]}",
    ]
    if login is not None:
        lines += [f"  Login     {login.user}, {_password(login, password_file)}"]
    lines += ["", *_curls(url), "", "Ctrl-C stops the server."]
    return "\n".join(lines)


def _curls(url: str) -> list[str]:
    lines = [
        "Try it in another terminal, unsteered and steered:",
        "",
        f"  {curl(url, seed=SEED)}",
        f"  {curl(url, seed=SEED, profile='gloomy')}",
    ]
    if settings.MILLM_AUTH == "required":
        lines[1:1] = ["(Create an API key in the console and put it into MILLM_API_KEY.)"]
    return lines


def _password(login: Login, file: Path | None) -> str:
    if login.password and file is not None:
        return f"password in {file} (read it, then delete the file)"
    return f"password {login.password} (shown this once)" if login.password else "password as set before"
