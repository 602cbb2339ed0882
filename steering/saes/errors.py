"""Errors in the files of an SAE."""

from __future__ import annotations

from core.errors import MillmError


class InvalidSAEError(MillmError, ValueError):
    """The files of an SAE are damaged, unsafe or not supported. The message is a full sentence."""

    code = "invalid_source"
    param = "source"
    names_files = True
