"""Cells of a CSV file that no spreadsheet takes for a formula."""

from __future__ import annotations

_STARTS = (
    "=",
    "+",
    "-",
    "@",
    "＝",
    "＋",
    "－",
    "＠",
)  # the wide ones count as well where Chinese and Japanese are written
_BLANKS = ("\t", "\r", "\n")


def safe_cell(value: object) -> object:
    """A text that begins like a formula, after blanks too, gets an apostrophe; numbers stay numbers."""
    if not isinstance(value, str) or not value:
        return value
    if value.startswith(_BLANKS) or value.lstrip().startswith(_STARTS):
        return f"'{value}"
    return value
