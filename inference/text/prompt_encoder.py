"""Encode text to token ids so that users' text never becomes a control token.

Control tokens are the tokenizer's special tokens and other added tokens that the chat template writes (the role markers
of some models are not flagged as special). Before rendering, texts of control tokens in messages are wrapped in two
private-use characters; after rendering, only unwrapped ones are control tokens. A single mark, left by a template that
splits content, has no meaning but separates the texts around it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from inference.text.fill_in_middle import find_fill_tokens
from inference.text.render_marks import END, MARKS, START


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    is_control: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts as one sequence of token ids. ``type_ids``: the text that each token belongs to."""

    ids: list[int]
    type_ids: list[int]


class PromptEncoder:
    """Encodes rendered chats and raw text with a ``tokenizers.Tokenizer``. Thread-safe.

    Uses the Rust tokenizer directly, because transformers' ``__call__`` changes its state (truncation, padding,
    ``encode_special_tokens``) on each call. ``template_text``: the literal text of the chat template.
    """

    def __init__(self, backend: Any, template_text: str = "") -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = False
        self._backend = backend
        self._plain = copy.deepcopy(backend)
        self._plain.encode_special_tokens = True  # split special tokens like any text
        added = backend.get_added_tokens_decoder()
        self._flags = {token.content: token for token in added.values()}
        self._special = {token.content: token_id for token_id, token in added.items() if token.special}
        self._control = self._special | {
            token.content: token_id
            for token_id, token in added.items()
            if token.content in template_text and not token.content.isspace()
        }
        self._special_pattern = _any_of(self._special)
        self._control_pattern = _any_of(self._control)
        token = self._control_pattern.pattern
        self._pieces_pattern = re.compile(f"{START}({token}){END}|[{START}{END}]|({token})")
        self._is_prefixed = self._prefixes_text_after_control()
        self._adds_space = self._adds_space_at_start()
        self._start = self._added_start()
        self.fill_tokens = find_fill_tokens(backend.token_to_id)
        self._fill_ids = frozenset[int]() if self.fill_tokens is None else self.fill_tokens.stop_ids

    @property
    def special_token_ids(self) -> frozenset[int]:
        return frozenset(self._special.values())

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        """Encode raw text, with BOS or EOS as the tokenizer's config says. Special tokens in it are plain text."""
        encoding = self._plain.encode(text, add_special_tokens=adds_special)
        ids, is_added = encoding.ids, encoding.special_tokens_mask
        if not any(i in self.special_token_ids and not added for i, added in zip(ids, is_added, strict=True)):
            return list(ids)
        start = is_added.index(0)
        end = len(ids) - is_added[::-1].index(0)
        return [*ids[:start], *self._encode_spelled(text, self._special_pattern), *ids[end:]]

    def encode_pair(self, first: str, second: str) -> Pair:
        """Encode two texts for a model that compares them. Special tokens in them are plain text."""
        encoding = self._plain.encode(first, second, add_special_tokens=True)
        pair = Pair(list(encoding.ids), list(encoding.type_ids))
        places = encoding.sequence_ids
        if not any(
            i in self.special_token_ids and place is not None for i, place in zip(pair.ids, places, strict=True)
        ):
            return pair
        for place, text in ((1, second), (0, first)):  # the vocabulary itself has such a token
            if place in places:
                start, end = places.index(place), len(places) - places[::-1].index(place)
                spelled = self._encode_spelled(text, self._special_pattern)
                pair.ids[start:end] = spelled
                pair.type_ids[start:end] = [pair.type_ids[start]] * len(spelled)
        return pair

    def encode_fill(self, prefix: str, suffix: str) -> list[int]:
        """Encode a prompt for the text between prefix and suffix. Control tokens in them are plain text.

        The prefix is encoded like text at the start and the suffix like text inside, as the models were trained.
        """
        assert self.fill_tokens is not None, "the caller has checked it"
        inside = self._encode_inside(suffix) if self._adds_space else self.encode_plain(suffix)
        before, after = self._without_marks(prefix, self.encode_plain(prefix)), self._without_marks(suffix, inside)
        return self.fill_tokens.prompt(self._start, before, after)

    def encode_plain(self, text: str) -> list[int]:
        """Encode text without special tokens, and without BOS and EOS."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def wrap_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Wrap control tokens in messages. Assistant messages may contain added tokens like ``<think>``, but no special
        ones.
        """
        return [self._wrap_message(message) for message in messages]

    def wrap(self, value: Any) -> Any:
        """Wrap control tokens in tools or template variables, also in keys."""
        return _wrap(value, self._control_pattern)

    def encode_chat(self, text: str) -> list[int]:
        """Encode a rendered chat. Without wrapped texts the result is exactly the tokenizer's."""
        if START not in text and END not in text:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        ids: list[int] = []
        for piece in self._pieces(text):
            ids += [self._control[piece.text]] if piece.is_control else self._encode_text(piece.text, is_first=not ids)
        return ids

    def _wrap_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        pattern = self._special_pattern if message.get("role") == "assistant" else self._control_pattern
        return {key: _wrap(value, pattern) for key, value in message.items()}

    def _pieces(self, text: str) -> list[_Piece]:
        """Split into control tokens and the text between them, without the marks."""
        pieces: list[_Piece] = []
        run: list[str] = []
        end = 0
        for match in self._pieces_pattern.finditer(text):
            run.append(text[end : match.start()])
            end = match.end()
            if match[2] is None:  # wrapped, or a mark separated by a template's split()
                run.append(match[1] or "")
            else:
                pieces += [_Piece("".join(run), is_control=False), _Piece(match[2], is_control=True)]
                run = []
        pieces.append(_Piece("".join(run) + text[end:], is_control=False))
        return [piece for piece in self._strip_spaces(pieces) if piece.text]

    def _strip_spaces(self, pieces: list[_Piece]) -> Iterable[_Piece]:
        """Strip spaces that added tokens absorb before or after them. Texts have even indices."""
        for place, piece in enumerate(pieces):
            text = piece.text
            if not piece.is_control and place > 0 and self._flags[pieces[place - 1].text].rstrip:
                text = text.lstrip()
            if not piece.is_control and place + 1 < len(pieces) and self._flags[pieces[place + 1].text].lstrip:
                text = text.rstrip()
            yield _Piece(text, piece.is_control)

    def _encode_text(self, text: str, *, is_first: bool) -> list[int]:
        ids = self.encode_plain(text) if is_first or self._is_prefixed else self._encode_inside(text)
        if not any(token_id in self._control_ids for token_id in ids):
            return ids
        return self._encode_spelled(text, self._control_pattern)

    def _encode_inside(self, text: str) -> list[int]:
        """Encode text inside a prompt, without the prefix that some tokenizers put before the first word."""
        line_break = self.encode_plain("\n")
        ids = self.encode_plain("\n" + text)
        return ids[len(line_break) :] if ids[: len(line_break)] == line_break else self.encode_plain(text)

    def _encode_spelled(self, text: str, pattern: re.Pattern[str]) -> list[int]:
        """Encode text that the vocabulary would turn into control tokens, character by character."""
        ids: list[int] = []
        for place, piece in enumerate(re.split(f"({pattern.pattern})", text)):
            for part in piece if place % 2 else [piece]:
                ids += self._encode_inside(part) if part else []
        return [token_id for token_id in ids if token_id not in self._control_ids]

    def _without_marks(self, text: str, ids: list[int]) -> list[int]:
        """Return ids without special tokens and marks, which some tokenizers have as ordinary tokens."""
        barred = self.special_token_ids | self._fill_ids
        if barred.isdisjoint(ids):
            return ids
        names = [self._backend.id_to_token(token_id) for token_id in sorted(barred)]
        return [token_id for token_id in self._encode_spelled(text, _any_of(names)) if token_id not in barred]

    def _adds_space_at_start(self) -> bool:
        """Return whether the tokenizer puts a space before a text (SentencePiece's prefix)."""
        first = self.encode_plain("ab")[:1]
        return bool(first) and str(self._backend.id_to_token(first[0])).startswith("\u2581")

    def _added_start(self) -> list[int]:
        """Return the tokens before every raw text: BOS, if the tokenizer's config adds it."""
        encoding = self._plain.encode("a", add_special_tokens=True)
        return list(takewhile(self.special_token_ids.__contains__, encoding.ids))

    @property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self._control.values())

    def _prefixes_text_after_control(self) -> bool:
        """Return whether text after a control token is encoded like text at the start (with SentencePiece's prefix)."""
        for text, token_id in self._special.items():
            ids = list(self._backend.encode(text + "ab", add_special_tokens=False).ids)
            if ids[:1] == [token_id]:
                return ids[1:] == self.encode_plain("ab")
        return True


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for the tokens, longest first. Without tokens it matches nothing."""
    return re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)")


def _wrap(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(rf"{START}\g<0>{END}", value.translate(MARKS))
    if isinstance(value, Mapping):
        return {_wrap(key, pattern): _wrap(item, pattern) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wrap(item, pattern) for item in value]
    return value
