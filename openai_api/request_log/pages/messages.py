"""Logged prompts and answers as messages, and excerpts of them. Logged text is always escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Case, F, Func, IntegerField, Q, TextField, Value, When
from django.db.models.functions import Left, Right
from django.db.models.lookups import GreaterThan, LessThanOrEqual
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from openai_api.models import RequestLog
from openai_api.request_log.summary import visible_text


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a prompt, or one of several texts. ``role`` is "" where there is only one text."""

    role: str
    text: str


def pretty_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def messages(text: str) -> list[Message]:
    """Return a chat's messages by role, several texts by number, anything else as it is."""
    return list(_messages(_parsed(text))) or [Message("", text)] if text else []


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text.startswith(("[", "{")) else None
    except (ValueError, RecursionError):
        return None


def _messages(value: Any) -> Iterator[Message]:
    """Yield the messages of a list of them, or of an object of named prompts such as ``instructions`` and ``input``."""
    if isinstance(value, list) and all(isinstance(item, dict) and _role(item) for item in value):
        for item in value:
            yield Message(_role(item), _message_text(item))
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        for number, item in enumerate(value):
            yield Message(f"#{number}", item)
    elif isinstance(value, dict):
        for name, item in value.items():
            found = [] if isinstance(item, str) else list(_messages(item))
            yield from found or [Message(name, item if isinstance(item, str) else pretty_json(item))]


def _role(item: dict[str, Any]) -> str:
    """Return the role of a message, or the type of another item such as a tool call."""
    return str(item.get("role") or item.get("type") or "")


def _message_text(message: dict[str, Any]) -> str:
    """Return the content and any other fields of a message."""
    rest = {name: value for name, value in message.items() if name not in {"role", "content"} and value is not None}
    if rest.get("type") == "message" or "role" not in message:
        rest.pop("type", None)
    texts = [*_content(message.get("content")), *([pretty_json(rest)] if rest else [])]
    return "\n".join(text for text in texts if text)


def _content(content: Any) -> Iterator[str]:
    if isinstance(content, list):
        for part in content:
            is_text = isinstance(part, dict) and isinstance(part.get("text"), str)
            yield part["text"] if is_text else pretty_json(part)
    elif content is not None:
        yield content if isinstance(content, str) else pretty_json(content)


MAX_SHOWN = 160  # characters of an excerpt
BEFORE = 40  # characters before the first match
FETCHED = 4_000  # characters of the start and of the end of each text
FETCHED_BY_SEARCH = 8_000  # the index has no more: see migration 0007
MAX_TAIL_BYTES = 256 * 1024  # of a longer text only the start is fetched, since its end would have to be decompressed
ELLIPSIS = "…"
USER = "user"
_USER_TEXT = re.compile(
    r'"role": ?"user", ?"content": ?(?:\[\{"type": ?"(?:input_)?text", ?"text": ?)?"((?:[^"\\]|\\.)*)'
)
_TERM = re.compile(r'(?P<minus>-?)(?:"(?P<phrase>[^"]*)"?|(?P<word>[^\s"]+))')
_WHITESPACE_ESCAPE = re.compile(r"\\[nrtbf]")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What the list shows of a request's texts, each "" if it has none."""

    prompt: SafeString
    answer: SafeString


def fetch_excerpts(ids: Sequence[str], search: str = "") -> dict[str, Excerpt]:
    """Return excerpts by id, for rows that have texts. The caller checks access to texts. One query.

    They show a user's last message and the start of the answer, or the first match of ``search`` in each.
    """
    size = FETCHED_BY_SEARCH if search else FETCHED
    rows = RequestLog.objects.filter(pk__in=ids).exclude(prompt="", completion="").order_by()
    columns = [Left("prompt", size), _tail("prompt", size), Left("completion", size), _tail("completion", size)]
    words = _words(search)
    return {
        pk: Excerpt(*(_excerpt(head, tail if len(head) == size else "", words) for head, tail in (prompt, answer)))
        for pk, *texts in rows.values_list("pk", *columns)
        for prompt, answer in [(texts[:2], texts[2:])]
    }


def _tail(name: str, size: int) -> Case:
    """Select the end of a text of more than ``size`` bytes, if that is cheap."""
    num_bytes = Func(F(name), function="octet_length", output_field=IntegerField())
    is_long = Q(GreaterThan(num_bytes, size)) & Q(LessThanOrEqual(num_bytes, MAX_TAIL_BYTES))
    return Case(When(is_long, then=Right(name, size)), default=Value(""), output_field=TextField())


def _words(search: str) -> re.Pattern[str] | None:
    """Return a pattern of the words that a search looks for, None if there are none."""
    terms = (term for term in _TERM.finditer(search) if not term["minus"])
    words = {word for term in terms for word in re.findall(r"\w+", term["phrase"] or term["word"] or "")} - {"or"}
    if not words:
        return None
    longest_first = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(rf"(?<!\w)({longest_first})(?!\w)", re.IGNORECASE)


def _excerpt(head: str, tail: str, words: re.Pattern[str] | None) -> SafeString:
    shown = " ".join(_spoken(head, tail).split())
    match = words.search(shown) if words else None
    if words and match is None:  # it is in another message
        everything = " ".join(_WHITESPACE_ESCAPE.sub(" ", f"{head} {ELLIPSIS} {tail}" if tail else head).split())
        if match := words.search(everything):
            shown = everything
    start = match.start() - BEFORE if match and match.start() > MAX_SHOWN - BEFORE else 0
    end = start + MAX_SHOWN
    text = f"{ELLIPSIS * (start > 0)}{shown[start:end]}{ELLIPSIS * (len(shown) > end)}"
    return _marked(visible_text(text), words)


def _spoken(head: str, tail: str) -> str:
    """Return the last message of a user, or of several texts the first. ``tail`` is the end of a text that is cut."""
    value = None if tail else _parsed(head)
    found = list(_messages(value))
    if found:
        by_users = [message for message in found if message.role == USER]
        return (by_users or (found[:1] if found[0].role.startswith("#") else found))[-1].text
    if not head.startswith(("[", "{")):
        return head
    cut = [*_USER_TEXT.finditer(head), *_USER_TEXT.finditer(tail)]
    return _unescaped(cut[-1][1] if cut else head)


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return _WHITESPACE_ESCAPE.sub(" ", text)


def _marked(text: str, words: re.Pattern[str] | None) -> SafeString:
    """Escape the text, with its matches in ``<mark>``."""
    pieces = words.split(text) if words else [text]
    return format_html_join(
        "", "{}", ((format_html("<mark>{}</mark>", p) if n % 2 else p,) for n, p in enumerate(pieces))
    )
