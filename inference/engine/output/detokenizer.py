"""Token ids to text, incrementally, with stop strings.

Text is emitted once it is certain: characters split over tokens are held until they are whole, and the beginning of
a possible stop string until it is decided. Work per token does not grow with the sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from inference.engine.messages import TokenLogprob
from inference.text.dialects.text_buffer import first_mark, open_end

CONTEXT_TOKENS = 6  # of the prompt, so that a first token keeps its leading space
MAX_OPEN_TOKENS = 8  # more without a whole character are not UTF-8 at all
MAX_WINDOW = 4  # tokens; a longer one costs more a step, a shorter one is cut, and so decoded twice, more often
INCOMPLETE = "\ufffd"


class TextTokenizer(Protocol):
    """The part of ``tokenizers.Tokenizer`` that is used here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...  # noqa: FBT001, FBT002 - theirs


class TokenDecoder:
    """The text that each further token completes; special tokens have none, unless they are not skipped, and
    ``hidden_token_ids`` neither.

    A window of the last tokens is decoded, once a token: what it said before is known from the step before. It is cut
    to its last piece when it has grown to :data:`MAX_WINDOW`.
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
        ]  # the window: tokens known, then tokens still open
        self._known = len(self._ids)
        self._sent = len(self._decode())  # characters of the window's text that are given out

    def step(self, token_id: int) -> str:
        """Text that is certain with this token; empty while a character is incomplete."""
        if token_id in self._hidden:
            return ""
        self._ids.append(token_id)
        text = self._decode()
        is_full = len(self._ids) - self._known >= MAX_OPEN_TOKENS
        if text.endswith(INCOMPLETE) and not is_full:
            return self._give(text.rstrip(INCOMPLETE))
        if len(text) == self._sent and (self._sent or is_full or self._is_skipped(token_id)):
            self._ids.pop()  # a token without text, which therefore is no context for the next one either
            return ""
        if len(text) < self._sent and not is_full:
            return ""
        new = self._give(text)
        self._settle(len(text))
        return new

    def _is_skipped(self, token_id: int) -> bool:
        """Whether it is a special token, and not a first space that the tokenizer leaves out, on which more depends."""
        return self._skip_special and self._tokenizer.decode([token_id], skip_special_tokens=False) != ""

    def _give(self, text: str) -> str:
        """The part of the window's text that was not given out yet."""
        new = text[self._sent :]
        self._sent += len(new)
        return new

    def _settle(self, length: int) -> None:
        """All tokens are known; ``length`` is that of the window's text."""
        self._sent = length
        if len(self._ids) >= MAX_WINDOW:
            del self._ids[: self._known]
            self._sent = len(self._decode())
        self._known = len(self._ids)

    def _decode(self) -> str:
        return self._tokenizer.decode(self._ids, self._skip_special) if self._ids else ""


@dataclass(slots=True)
class _Pending:
    """A token whose text, from ``start`` in the sequence's whole text on, is not emitted yet."""

    token_id: int
    logprob: TokenLogprob | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What can be sent now. ``stop`` is the stop string that was found; nothing follows then."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    stop: str = ""


@dataclass(slots=True)
class Detokenizer:
    """One sequence's text. Nothing after a ``stop`` string reaches the output, nor does it itself.

    With ``include_stop`` it does, and so does the text of a stop token. Stop strings count from the text of the token
    after the first ``min_tokens`` on.
    """

    decoder: TokenDecoder
    stop: Sequence[str] = ()
    _: KW_ONLY
    min_tokens: int = 0
    include_stop: bool = False
    _num_tokens: int = 0
    _held: str = ""  # text not emitted yet
    _emitted: int = 0  # characters emitted
    _pending: list[_Pending] = field(default_factory=list)

    def push(self, token_id: int, logprob: TokenLogprob | None = None) -> Piece:
        """Add a token; returns the text and tokens that are certain now."""
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
        """The sequence ended otherwise: what was held for a stop string goes out."""
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
    """Tokens go out with the last of their characters; textless ones with what surrounds them."""
    if not has_held:
        return len(pending)
    return next((i for i, p in enumerate(pending) if p.end > emitted), len(pending))
