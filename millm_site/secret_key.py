"""Django's secret key: given by the environment, or generated once and kept."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from millm_site.env import Environment


def secret_key(env: Environment) -> str:
    return env.secret_key.get_secret_value() or kept_key(env.home / "secret_key")


def kept_key(path: Path) -> str:
    """Return the key in ``path``. The first process creates it, with mode 600."""
    try:
        key = path.read_text().strip() if path.exists() else _create_key(path)
    except PermissionError as error:
        raise SystemExit(
            f"{path.parent} cannot be used by this user: {error}. Run as the user who owns it, or set MILLM_HOME to "
            "another folder."
        ) from None
    if len(key) < 50:
        raise SystemExit(f"{path} holds no usable key. Delete it and a new one is made; everyone must log in again.")
    return key


def _create_key(path: Path) -> str:
    """Link a finished file into place: another process sees the whole key or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(secrets.token_urlsafe(48) + "\n")
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text().strip()
