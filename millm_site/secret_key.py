"""Django's secret key: from the environment, or generated once and stored."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from millm_site.env import Environment


def secret_key(env: Environment) -> str:
    return env.secret_key.get_secret_value() or stored_key(env.home / "secret_key")


def stored_key(path: Path) -> str:
    """Return the key in ``path``. The first process creates the file with mode 600."""
    try:
        key = path.read_text().strip() if path.exists() else _create_key(path)
    except PermissionError as error:
        raise SystemExit(
            f"This user cannot use {path.parent}: {error}. Run as the user who owns it, or set MILLM_HOME to another "
            "folder."
        ) from None
    if len(key) < 50:
        raise SystemExit(
            f"{path} does not contain a valid key. Delete it to generate a new one; all users must then log in again."
        )
    return key


def _create_key(path: Path) -> str:
    """Write the key to another file and link that into place, so that other processes never see a partial key."""
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
