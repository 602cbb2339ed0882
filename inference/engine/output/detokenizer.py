"""Token ids to text, incrementally, with stop strings.

Text is emitted once it is certain: characters split over tokens are held until they are complete, and the start of a
possible stop string until it is decided. Work per token does not grow with the sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from inference.engine.messages import TokenLogprob
from inference.text.dialects.text_buffer import first_mark, open_end

CONTEXT_TOKENS = 6  # of the prompt, so that a first token keeps its leading space
MAX_OPEN_TOKENS = 8  # more tokens without a complete character are not UTF-8
MAX_WINDOW = 4  # tokens; a longer window costs more per step, a shorter one is decoded again more often
INCOMPLETE = "\ufffd"


class TextTokenizer(Protocol):
    """The used part of ``tokenizers.Tokenizer``."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...  # noqa: FBT001, FBT002 - theirs


class TokenDecoder:
    """Returns the text that each new token completes. Skipped special tokens and ``hidden_token_ids`` have no text.

    A window of the last tokens is decoded once per token, and compared with its previous text. It is shortened when it
    reaches :data:`MAX_WINDOW` tokens.
    """

    __slots__ = ("_hidden", "_ids", "_known", "_sent", "_skip_special", "_tokenizer")

    def __init__(
        self,
        tokenizer: TextTokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        hidden_token_ids: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._hidden = hidden_token_ids
        self._ids = [
            i for i in prompt_token_ids[-CONTEXT_TOKENS:] if i not in hidden_token_ids
        ]  # the window: complete tokens, then incomplete ones
        self._known = len(self._ids)
        self._sent = len(self._decode())  # emitted characters of the window's text

    def step(self, token_id: int) -> str:
        """Add a token and return the text that is certain now; empty while a character is incomplete."""
        if token_id in self._hidden:
            return ""
        self._ids.append(token_id)
        text = self._decode()
        is_full = len(self._ids) - self._known >= MAX_OPEN_TOKENS
        if text.endswith(INCOMPLETE) and not is_full:
            return self._give(text.rstrip(INCOMPLETE))
        if len(text) == self._sent and (self._sent or is_full or self._is_skipped(token_id)):
            self._ids.pop()  # a token without text is no context for the next one
            return ""
        if len(text) < self._sent and not is_full:
            return ""
        new = self._give(text)
        self._settle(len(text))
        return new

    def _is_skipped(self, token_id: int) -> bool:
        """Return whether a token without text is a special token, not a first space that the tokenizer omits."""
        return self._skip_special and self._tokenizer.decode([token_id], skip_special_tokens=False) != ""

    def _give(self, text: str) -> str:
        """Return the part of the window's text that is not emitted yet."""
        new = text[self._sent :]
        self._sent += len(new)
        return new

    def _settle(self, length: int) -> None:
        """Mark all tokens as complete. ``length``: that of the window's text."""
        self._sent = length
        if len(self._ids) >= MAX_WINDOW:
            del self._ids[: self._known]
            self._sent = len(self._decode())
        self._known = len(self._ids)

    def _decode(self) -> str:
        return self._tokenizer.decode(self._ids, self._skip_special) if self._ids else ""


@dataclass(slots=True)
class _Pending:
    """A token whose text, which starts at ``start`` in the whole text, is not emitted yet."""

    token_id: int
    logprob: TokenLogprob | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Output that can be sent now. ``stop`` is the stop string found, if any; nothing follows then."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    stop: str = ""


@dataclass(slots=True)
class Detokenizer:
    """The text of one sequence. The output ends before a ``stop`` string.

    With ``include_stop`` it includes the stop string or the text of a stop token. Stop strings are ignored in the first
    ``min_tokens`` tokens.
    """

    decoder: TokenDecoder
    stop: Sequence[str] = ()
    _: KW_ONLY
    min_tokens: int = 0
    include_stop: bool = False
    _num_tokens: int = 0
    _held: str = ""  # not emitted yet
    _emitted: int = 0  # number of emitted characters
    _pending: list[_Pending] = field(default_factory=list)

    def push(self, token_id: int, logprob: TokenLogprob | None = None) -> Piece:
        """Add a token. Returns the text and tokens that are certain now."""
        self._add(token_id, logprob)
        if self._num_tokens <= self.min_tokens:
            return self._take(len(self._held))
        found = first_mark(self._held, self.stop)
        if found is not None:
            start, end = found
            return self._take(end if self.include_stop else start, stop=self._held[start:end])
        return self._take(len(self._held) - open_end(self._held, self.stop))

    def push_stop(self, token_id: int, logprob: TokenLogprob | None = None) -> Piece:
        """Add the token that ends the sequence."""
        if not self.include_stop:
            return Piece()
        self._add(token_id, logprob)
        return self._take(len(self._held), everything=True)

    def finish(self) -> Piece:
        """Return the held text, because the sequence ended without a stop string."""
        return self._take(len(self._held), everything=True)

    def _add(self, token_id: int, logprob: TokenLogprob | None) -> None:
        text = self.decoder.step(token_id)
        start = self._emitted + len(self._held)
        self._pending.append(_Pending(token_id, logprob, start, start + len(text)))
        self._held += text
        self._num_tokens += 1

    def _take(self, length: int, *, stop: str = "", everything: bool = False) -> Piece:
        text, self._held = self._held[:length], self._held[length:]
        self._emitted += length
        if stop:
            ready = [p for p in self._pending if p.start < self._emitted]
            self._pending = []
        elif everything:
            ready, self._pending = self._pending, []
        else:
            count = _num_ready(self._pending, self._emitted, has_held=bool(self._held))
            ready, self._pending = self._pending[:count], self._pending[count:]
        return Piece(
            text, tuple(p.token_id for p in ready), tuple(p.logprob for p in ready if p.logprob is not None), stop
        )


def _num_ready(pending: list[_Pending], emitted: int, *, has_held: bool) -> int:
    """Return the tokens whose last character is emitted. Tokens without text follow the text around them."""
    if not has_held:
        return len(pending)
    return next((i for i, p in enumerate(pending) if p.end > emitted), len(pending))
