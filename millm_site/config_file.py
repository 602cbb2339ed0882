"""Settings from a TOML file, with the names of millm_site/env.py in lower case and without the prefix."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

PREFIX = "MILLM_"
VARIABLE = f"{PREFIX}CONFIG"
MAX_BYTES = 2**20


class ConfigFileError(Exception):
    """The file cannot be used. The message names it and says why."""


def config_path() -> Path | None:
    """Return the path of the file, or None without one."""
    given = os.environ.get(VARIABLE, "")
    return Path(given).expanduser() if given else None


def read_config(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Return the values of the file by setting. ``names`` are those that a file may set. Raise ConfigFileError."""
    values = _parse(path)
    problems = [_unknown(name, names) for name in values if name not in names]
    if problems:
        raise ConfigFileError("\n".join(f"{path}: {problem}" for problem in problems))
    return values


def _parse(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise ConfigFileError(f"{path}: {'is not a file' if path.exists() else 'does not exist'} ({VARIABLE}).")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigFileError(f"{path}: cannot be read ({error.strerror}).") from None
    if len(data) > MAX_BYTES:
        raise ConfigFileError(f"{path}: is larger than {MAX_BYTES} bytes, so it is not a file of settings.")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigFileError(f"{path}: is not valid TOML: {error}.") from None


def _unknown(name: str, names: Collection[str]) -> str:
    plain = name.lower().removeprefix(PREFIX.lower())
    similar = [plain] if plain in names else difflib.get_close_matches(plain, names, n=1)
    hint = f"Did you mean `{similar[0]}`?" if similar else "docs/settings.md lists all settings."
    return f"There is no setting `{name[:100]}`. {hint}"
