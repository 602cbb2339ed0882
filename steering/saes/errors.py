"""Errors in the files of an SAE."""

from __future__ import annotations


class InvalidSAEError(ValueError):
    """The files of an SAE are damaged, unsafe or not supported. The message is a full sentence."""

    code = "invalid_sae"
