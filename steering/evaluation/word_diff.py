"""Show the differences between two texts as HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

Words = Sequence[str]
MAX_PAIRS = 1_000_000  # of equal words; comparing them takes about half a second


def word_diff(one: str, other: str) -> SafeString:
    """Return both texts merged, with marked insertions and deletions."""
    before, after = one.split(), other.split()
    parts = []
    for tag, a, b, c, d in _opcodes(before, after):
        if tag == "equal":
            parts.append(format_html("<span>{}</span> ", " ".join(before[a:b])))
        if tag in ("delete", "replace"):
            parts.append(format_html("<del>{}</del> ", " ".join(before[a:b])))
        if tag in ("insert", "replace"):
            parts.append(format_html("<ins>{}</ins> ", " ".join(after[c:d])))
    return format_html_join("", "{}", ((part,) for part in parts))


def _opcodes(before: Words, after: Words) -> Iterator[tuple[str, int, int, int, int]]:
    """Return difflib's opcodes. A common prefix and suffix are handled first, for speed."""
    start = _num_common(before, after)
    end = _num_common(before[start:][::-1], after[start:][::-1])
    stops = len(before) - end, len(after) - end
    if start:
        yield ("equal", 0, start, 0, start)
    for tag, *places in _between(before[start : stops[0]], after[start : stops[1]]):
        a, b, c, d = (place + start for place in places)
        yield (tag, a, b, c, d)
    if end:
        yield ("equal", stops[0], len(before), stops[1], len(after))


def _between(before: Words, after: Words) -> list[tuple[str, int, int, int, int]]:
    """Compare the words. Texts that would take minutes, such as one repeated word, are replaced as a whole."""
    if _num_pairs(before, after) > MAX_PAIRS:
        return [("replace", 0, len(before), 0, len(after))]
    return list(SequenceMatcher(None, before, after, autojunk=False).get_opcodes())


def _num_common(before: Words, after: Words) -> int:
    pairs = zip(before, after, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))


def _num_pairs(before: Words, after: Words) -> int:
    counts = Counter(after)
    return sum(counts[word] for word in before)
