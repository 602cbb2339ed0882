"""The reason why an analysis is not possible."""

from __future__ import annotations


class AnalysisError(Exception):
    """``code`` is stable, the message is a sentence for users."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
