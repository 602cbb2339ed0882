"""Typed access to the fields of an untrusted configuration."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping

from steering.saes.errors import InvalidSAEError

Config = Mapping[str, object]

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 100
_SHOWN.maxlevel = 2


def shown(value: object) -> str:
    """Return a value of the file for a message, shortened, because a few bytes of YAML can expand to a huge value."""
    return _SHOWN.repr(value)


def read_int(config: Config, name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSAEError(f"{name} in the configuration must be an integer, got {shown(value)}.")
    return value


def read_bool(config: Config, name: str, *, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise InvalidSAEError(f"{name} in the configuration must be true or false, got {shown(value)}.")
    return value


def read_optional_bool(config: Config, name: str) -> bool | None:
    """Return the value, or None if the field is missing or null."""
    return None if config.get(name) is None else read_bool(config, name, default=False)


def read_text(config: Config, name: str, default: str = "") -> str:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise InvalidSAEError(f"{name} in the configuration must be a string, got {shown(value)}.")
    return value


def read_positive(config: Config, name: str) -> float:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidSAEError(f"{name} must be a finite number above 0, got {shown(value)}.")
    return float(value)


def read_object(config: Config, name: str) -> Config:
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidSAEError(f"{name} in the configuration must be an object, got {shown(value)}.")
    return value


def read_size(config: Config, name: str, width: int, factor: str) -> int:
    """Return the number of features: the field ``name``, or ``width`` times the field ``factor``."""
    if config.get(name):
        return read_int(config, name)
    size = width * read_positive(config, factor)
    if size > 1 << 53 or int(size) != size:
        raise InvalidSAEError(f"{factor} times the width is {size!r}, which is not a whole number of features.")
    return int(size)


def read_choice(config: Config, name: str, choices: Mapping[str, str], default: str = "") -> str:
    """Return the entry of ``choices`` for the value of the field. Raise InvalidSAEError with the supported values."""
    value = read_text(config, name, default)
    if value not in choices:
        raise InvalidSAEError(f"{name} {shown(value)} is not supported. Supported: {', '.join(choices)}.")
    return choices[value]
