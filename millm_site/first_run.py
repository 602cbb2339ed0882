"""Setup before the first start (schema, demo, first user), and the welcome text with the first request."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from console.first_steps import curl
from millm_site.database import as_owner
from steering.demo.install import default_demo

PASSWORD_FILE = "first_password"  # noqa: S105 - a name, in MILLM_HOME, where the output is kept by something else
SETUP_LOCK = 0x6D694C4C4D  # an arbitrary number that no other program on this database uses


@dataclass(frozen=True, slots=True)
class Login:
    """The superuser. ``password`` is only set if it was just generated; it cannot be read later."""

    user: str
    password: str


def set_up(*, measure_demo: bool = False) -> Login:
    """Migrate, install the demo and create the first superuser. Idempotent. Concurrent processes take turns."""
    with as_owner(), turn():
        call_command("migrate", verbosity=0, interactive=False)
        call_command("install_demo", measure=measure_demo, verbosity=0)
        return ensure_superuser()


def keep_first_password(password: str, folder: Path) -> Path:
    """Write the password to a file that only its owner can read, because a container's output is often widely
    readable."""
    path = folder / PASSWORD_FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(password + "\n")
    return path


def is_migrated() -> bool:
    executor = MigrationExecutor(connection)
    return not executor.migration_plan(executor.loader.graph.leaf_nodes())


@contextmanager
def turn() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [SETUP_LOCK])
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [SETUP_LOCK])


def ensure_superuser() -> Login:
    """Return the first superuser; create it from MILLM_ADMIN_* if there is none."""
    users = get_user_model()
    existing = users.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if existing is not None:
        return Login(existing.get_username(), password="")
    given = settings.MILLM_ADMIN_PASSWORD
    password = given or secrets.token_urlsafe(12)
    user = users.objects.create_superuser(settings.MILLM_ADMIN_USER, settings.MILLM_ADMIN_EMAIL, password)
    return Login(user.get_username(), password="" if given else password)


_KEYS = {
    "loopback": "not needed for requests from this machine (MILLM_AUTH=loopback)",
    "required": "needed for every request (MILLM_AUTH=required)",
}


def welcome(url: str, login: Login | None, *, password_file: Path | None = None, ollama_url: str = "") -> str:
    """Return the text with the addresses, the login and two requests to paste.

    ``url`` is the address that the server listens on; the others begin with MILLM_PUBLIC_URL if it is set.
    ``password_file`` holds a password that is not shown. ``ollama_url`` is where Ollama's API has its own port.
    """
    lines = [f"miLLM serves on {url}", ""]
    url = settings.MILLM_PUBLIC_URL or url
    lines += [
        f"  Console   {url}/admin/",
        f"  API       {url}/v1",
        *([f"  Ollama    {ollama_url}"] if ollama_url else []),
        f"  API docs  {url}/docs",
        f"  API keys  {_KEYS[settings.MILLM_AUTH]}",
    ]
    if login is not None:
        lines += [f"  Login     {login.user}, {_password(login, password_file)}"]
    lines += ["", *_curls(url), "", "Ctrl-C stops the server."]
    return "\n".join(lines)


def _curls(url: str) -> list[str]:
    demo = default_demo()
    lines = [
        "Try it in another terminal, unsteered and steered:",
        "",
        f"  {curl(url, seed=demo.seed)}",
        f"  {curl(url, seed=demo.seed, profile=demo.profile)}",
    ]
    if settings.MILLM_AUTH == "required":
        lines[1:1] = ["(Create an API key in the console and set MILLM_API_KEY to it.)"]
    return lines


def _password(login: Login, file: Path | None) -> str:
    if login.password and file is not None:
        return f"password in {file} (read it, then delete the file)"
    return f"password {login.password} (shown only once)" if login.password else "password as set before"
