"""Times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def ago_text(at: datetime, now: datetime) -> str:
    """Return how long ago it was: "3 min ago", or the day after a week."""
    seconds = (now - at).total_seconds()
    if seconds >= 7 * 86_400:
        return f"{at.astimezone(UTC):%Y-%m-%d}"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now" if seconds < 1 else f"{seconds:.0f} s ago"


def utc_text(at: datetime) -> str:
    """Format the time to the second, for comparison with other machines' logs."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
