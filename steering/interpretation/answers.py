"""What a model's answers are worth: usable labels, and decisions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

MAX_WORDS = 10
MAX_CHARS = 100
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_PREFIX = re.compile(r"^(?:the\s+)?(?:name|label|topic|function|answer|explanation)\s*(?:is|:)\s*", re.IGNORECASE)
_REFUSAL = re.compile(
    r"\b(?:i['’]?m sorry|i am sorry|sorry,|i can(?:not|['’]t)|as an ai|i don['’]t|unable to|i['’]?m (?:not|just))\b",
    re.IGNORECASE,
)
_ECHO = re.compile(
    r"<<|>>|\b(?:two to six words|as specific as possible|these texts|the name|the words between|topic or function)\b",
    re.IGNORECASE,
)
STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be but by for from had has have he her his i in is it its me my no not of on or our she so "
        "that the their them there they this to up us was we were what when which who will with you your"
    )
)


def read_label(answer: str, texts: Collection[str]) -> str | None:
    """Return the label in an answer, or None for nonsense.

    Nonsense is: nothing, a refusal, a text that is too long, an echo of the prompt or of one of the example ``texts``,
    a list of mostly stop words, and one word over and over.
    """
    line = next((line for line in answer.strip().splitlines() if line.strip()), "")
    label = _PREFIX.sub("", line.strip().strip("*#- ")).strip(" \"'`“”.:*")
    words = [word.casefold() for word in _WORD.findall(label)]
    meaningful = [word for word in words if word not in STOP_WORDS and not word.isdecimal()]
    if not meaningful or len(label) > MAX_CHARS or len(words) > MAX_WORDS:
        return None
    if _REFUSAL.search(label) or _ECHO.search(label):
        return None
    is_list = label.count(",") >= 2
    if len(set(words)) * 2 < len(words) or (is_list and len(meaningful) * 2 < len(words)):
        return None
    if len(words) > 4 and any(label.casefold() in text.casefold() for text in texts):
        return None
    return label


def read_decision(answer: str) -> bool | None:
    """Return whether an answer says yes; None if it says neither yes nor no."""
    found = re.match(r"\W*(yes|no)\b", answer, re.IGNORECASE)
    return None if found is None else found[1].lower() == "yes"


def detection_score(positive: Sequence[bool | None], negative: Sequence[bool | None]) -> float | None:
    """Return the balanced accuracy of detection: the mean of both sides' shares of right decisions; 0.5 is chance.

    An answer that is no decision counts as wrong. None without a decision on either side. As the detection score of
    Paulo, Mallen, Juang and Belrose, "Automatically Interpreting Millions of Features in Large Language Models" (2024,
    arXiv:2410.13928), with one text for each question.
    """
    if not positive or not negative or all(one is None for one in (*positive, *negative)):
        return None
    right = sum(one is True for one in positive) / len(positive), sum(one is False for one in negative) / len(negative)
    return sum(right) / 2
