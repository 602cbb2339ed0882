"""What crosses the border of the engine: requests in, events out.

Frozen dataclasses without tensors of the engine's own, so that a remote engine could exchange the same ones.
Times are seconds; ``*_at`` are captures of ``time.monotonic()`` in the engine's process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from inference.captures import ActivationCapture, CaptureSpec
from inference.interventions import InertEdit, Intervention, Removal, Site
from inference.segments import ANSWER_ONLY, SegmentRules
from inference.text.grammar import Grammar

GREEDY_BELOW = 1e-5  # a temperature this small leaves the best token alone, and smaller ones overflow float32
BACKGROUND_PRIORITY = -(2**20)  # lower than any key's
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One text to embed or to classify. ``index`` is its place in the request; several share a stream.

    ``token_type_ids`` tells the two texts of a pair apart where the model asks for it; empty: all of one text.
    ``priority``: texts with BACKGROUND_PRIORITY and less are behind all others.
    """

    request_id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    index: int = 0
    token_type_ids: tuple[int, ...] = ()
    priority: int = 0

    @property
    def max_events(self) -> int:
        """The vector and the terminal event."""
        return 2


@dataclass(frozen=True, slots=True)
class EmbeddingEvent:
    """The vector: ``[dimensions]`` float32 numbers, little endian; of a classifier its scores by label. A FinishedEvent
    with the usage follows.
    """

    index: int
    values: bytes


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """At most ``max_tokens`` tokens between ``start_id`` and ``end_id``, which then is the only one allowed.

    ``has_begun``: the prompt ends with the start.
    """

    max_tokens: int
    start_id: int
    end_id: int
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Values are validated at the HTTP edge and trusted here.

    ``temperature`` below :data:`GREEDY_BELOW` is greedy, and so is ``top_k`` 1. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0
    and ``typical_p`` 1 are off. ``presence_penalty`` and ``frequency_penalty`` are OpenAI's additive penalties over
    generated tokens; ``repetition_penalty`` is multiplicative over prompt and generated tokens (1 is off).
    ``bad_words`` are token sequences that must not appear; ``allowed_token_ids`` None allows all. Before ``min_tokens``
    generated tokens neither the model's end nor a stop token can be chosen, and stop strings are not looked for.
    ``logprobs`` None asks for none, k >= 0 for the chosen token's and the k most likely ones'. ``prompt_logprobs``
    likewise, for the prompt's tokens. ``seed`` and the request's index determine its random numbers.
    The output matches ``grammar`` if it ends with reason ``stop``, unless a stop string or stop token cut it.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False  # in the text
    ignore_eos: bool = False
    skip_special_tokens: bool = True  # in the text
    shown_token_ids: tuple[int, ...] = ()  # special tokens that the text has all the same
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    thinking: ThinkingBudget | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether no chance is left. Of tokens that tie, the first in the vocabulary is taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Scoring:
    """A continuation that is there already: its tokens are scored as if they had been generated, and none is.

    Two requests of one submission with the same ``pair`` (and the same prompt and tokens) are compared: how far the
    distributions of the one are from those of the one that ``is_reference``, at each token.
    """

    token_ids: tuple[int, ...]
    pair: str = ""
    is_reference: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. ``index`` is the choice's index within its :class:`EventStream`.

    ``priority``: under the ``priority`` scheduler policy higher ones run first. BACKGROUND_PRIORITY and less is behind
    all others under every policy. CaptureEvents answer ``captures``. ``segment_rules`` separate the segments of
    the text, for edits that act on some of them only. Cached prefixes are shared only among requests with the same
    ``cache_salt``.
    """

    request_id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    intervention: Intervention | None = None
    index: int = 0
    priority: int = 0
    captures: tuple[CaptureSpec, ...] = ()
    scoring: Scoring | None = None  # with sampling.max_tokens 0
    segment_rules: SegmentRules = ANSWER_ONLY
    cache_salt: str = ""

    @property
    def continuation(self) -> tuple[int, ...]:
        """Tokens behind the prompt that are given."""
        return () if self.scoring is None else self.scoring.token_ids

    @property
    def max_events(self) -> int:
        """One for each token to generate, and with captures one for each step that runs it or the prompt."""
        num_tokens = self.sampling.max_tokens + len(self.continuation)
        return 2 * num_tokens + len(self.prompt_token_ids) if self.captures else num_tokens


Request = GenerationRequest | EmbeddingRequest


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (nats) of a token, and of the most likely ones at its place, best first.

    ``rank`` counts from 1, the most likely token's; 0 where nobody counted.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class SiteEffect:
    """What steering did at one site: of ``num_tokens`` on which the profile acts there it changed ``num_changed``, and
    ``change`` is the sum over all of them of ``|h' - h| / |h|``.
    """

    site: Site
    num_tokens: int
    num_changed: int
    change: float


@dataclass(frozen=True, slots=True)
class SteeringReceipt:
    """Proof that steering ran: layer applications expected from the profile, and those that the hooks made.

    ``effects`` says what came of them; ``removals`` and ``inert`` are those of the intervention.
    """

    fingerprint: str
    expected: int
    applied: int
    effects: tuple[SiteEffect, ...] = ()
    removals: tuple[Removal, ...] = ()
    inert: tuple[InertEdit, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from submission: until the first forward pass, until the first token, until the end."""

    queue_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PromptLogprobsEvent:
    """Log-probabilities of the prompt's tokens; the first token has none. Precedes any TokensEvent."""

    index: int
    logprobs: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True)
class ScoresEvent:
    """Log-probabilities (nats) of a continuation's tokens."""

    index: int
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DivergenceEvent:
    """KL(subject || reference) in nats at each token of a pair's continuation: over the whole vocabulary, exact.

    ``index`` is that of the sequence of the pair that came to its end last.
    """

    index: int
    pair: str
    kl: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CaptureEvent:
    """What one step read, before the TokensEvent of the token that it sampled; and before the end, what was pooled."""

    index: int
    captures: tuple[ActivationCapture, ...]


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """New tokens and the text that they complete (may be empty while a character or a stop string is open)."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()

    def followed_by(self, other: TokensEvent) -> TokensEvent:
        """Both as one."""
        return TokensEvent(
            self.index, self.token_ids + other.token_ids, self.text + other.text, self.logprobs + other.logprobs
        )


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """Terminal: the sequence ended; ``stop`` is the stop string that ended it, if one did.

    ``ending`` is the token that did, where log-probabilities were asked for and no TokensEvent has it.
    """

    index: int
    reason: FinishReason
    usage: Usage
    timings: Timings
    receipt: SteeringReceipt | None = None
    stop: str = ""
    ending: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """Terminal: the sequence failed. ``code`` is stable, ``message`` is a sentence without internals."""

    index: int
    code: str
    message: str
    usage: Usage
    timings: Timings

    @classmethod
    def before_start(cls, request: Request, code: str, message: str) -> FailedEvent:
        """Of a request that never ran."""
        return cls(request.index, code, message, Usage(prompt_tokens=len(request.prompt_token_ids)), Timings())


Event = (
    PromptLogprobsEvent
    | ScoresEvent
    | DivergenceEvent
    | CaptureEvent
    | TokensEvent
    | EmbeddingEvent
    | FinishedEvent
    | FailedEvent
)
TERMINAL_EVENTS = (FinishedEvent, FailedEvent)
Delivery = tuple[object, Event]  # an event and the sink that gets it
