"""Two texts as one, with what only one of them has marked."""

from __future__ import annotations

from difflib import SequenceMatcher

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString


def word_diff(one: str, other: str) -> SafeString:
    """Words that only one of them has, in their places."""
    before, after = one.split(), other.split()
    parts = []
    for tag, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            parts.append(format_html("<span>{}</span> ", " ".join(before[a:b])))
        if tag in ("delete", "replace"):
            parts.append(format_html("<del>{}</del> ", " ".join(before[a:b])))
        if tag in ("insert", "replace"):
            parts.append(format_html("<ins>{}</ins> ", " ".join(after[c:d])))
    return format_html_join("", "{}", ((part,) for part in parts))
