"""A tool as grammars know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """``parameters`` is the JSON schema that the arguments follow."""

    name: str
    parameters: Mapping[str, Any]
