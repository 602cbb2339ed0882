"""Text of strangers as a page shows it: characters that act instead of being seen are named.

Escaping is the template's work; this keeps right-to-left overrides from reordering what stands beside them, and makes
a terminal's escape sequences seen.
"""

from __future__ import annotations

import re

_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def visible_text(text: str) -> str:
    return _ACTING.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)
