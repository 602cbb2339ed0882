"""Why an SAE is refused."""

from __future__ import annotations


class InvalidSAEError(ValueError):
    """The files of an SAE are damaged, unsafe, or of a kind that is not supported; the message is a sentence."""

    code = "invalid_sae"
