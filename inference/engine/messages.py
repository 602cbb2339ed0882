"""The messages between the engine and its clients: requests in, events out.

Frozen dataclasses without weights or tensors, so that a remote engine could use the same ones. Times are seconds;
``*_at`` are values of ``time.monotonic()`` in the engine's process.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from inference.analyses import AnalysisEvent, AnalysisRequest
from inference.captures import ActivationCapture, CaptureSpec
from inference.interventions import InertEdit, Intervention, Removal, Site
from inference.segments import ANSWER_ONLY, SegmentRules
from inference.steering_refs import SteeringRef
from inference.text.grammar import Grammar

GREEDY_BELOW = 1e-5  # at this temperature only the best token is left; smaller ones overflow float32
BACKGROUND_PRIORITY = -(2**20)  # below that of any key
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One text to embed or classify. ``index`` is its place in the request.

    ``token_type_ids`` distinguishes the two texts of a pair, for models that use them; empty for a single text.
    ``priority``: texts with at most BACKGROUND_PRIORITY run after all others.
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
    """The vector of a text, or the scores of a classifier by label: float32, little endian. A FinishedEvent with the
    usage follows.
    """

    index: int
    values: bytes


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """A limit on reasoning: after ``max_tokens`` tokens since ``start_id`` only ``end_id`` is allowed.

    ``has_begun``: the prompt ends with the start token.
    """

    max_tokens: int
    start_id: int
    end_id: int
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a request. Values are validated at the HTTP edge and trusted here.

    ``temperature`` below :data:`GREEDY_BELOW` is greedy, and so is ``top_k`` 1. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0
    and ``typical_p`` 1 are off. ``presence_penalty`` and ``frequency_penalty`` are OpenAI's additive penalties over
    generated tokens; ``repetition_penalty`` is multiplicative over prompt and generated tokens (1 is off).
    ``bad_words`` are token sequences that must not appear; ``allowed_token_ids`` None allows all. Before ``min_tokens``
    generated tokens, end and stop tokens are excluded and stop strings are ignored. ``logprobs``: None for none,
    otherwise k >= 0 for the sampled token's and those of the k most likely tokens; ``prompt_logprobs`` likewise for the
    prompt. ``seed`` and the request's index determine the random numbers. The output matches ``grammar`` if it ends
    with reason ``stop``, unless a stop string or stop token cut it.
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
    shown_token_ids: tuple[int, ...] = ()  # special tokens to include in the text anyway
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    thinking: ThinkingBudget | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether sampling is greedy. Of tied tokens, the first in the vocabulary is chosen."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Scoring:
    """A given continuation to score: its tokens are scored as if generated, and none are generated.

    Two requests of one submission with the same ``pair`` and tokens are compared: the divergence of the subject's
    distribution from that of the request that ``is_reference``, at each token. Their prompts may differ. One of them
    may be compared with several: one unsteered subject with many steered references, or the reverse. It has that many
    ``num_partners``, and its partners have one each.
    """

    token_ids: tuple[int, ...]
    pair: str = ""
    is_reference: bool = False
    num_partners: int = 1


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. ``index`` is the choice's index within its :class:`EventStream`.

    ``priority``: higher ones run first under the ``priority`` scheduler policy; those of at most BACKGROUND_PRIORITY
    run last under every policy. CaptureEvents answer ``captures``. ``segment_rules`` separate the segments of the text,
    for edits that act on some of them only. Cached prefixes are shared only among requests with the same
    ``cache_salt``.

    ``intervention`` is the compiled ``steering``. The client fills it in on the engine's side; a program that runs the
    engine itself may set it instead of ``steering``.
    """

    request_id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    steering: SteeringRef | None = None
    index: int = 0
    priority: int = 0
    captures: tuple[CaptureSpec, ...] = ()
    scoring: Scoring | None = None  # with sampling.max_tokens 0
    segment_rules: SegmentRules = ANSWER_ONLY
    cache_salt: str = ""
    intervention: Intervention | None = None

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of what steers the sequence, if anything does."""
        steering = self.intervention or self.steering
        return None if steering is None else steering.fingerprint

    @property
    def continuation(self) -> tuple[int, ...]:
        """The given tokens after the prompt."""
        return () if self.scoring is None else self.scoring.token_ids

    @property
    def max_events(self) -> int:
        """The maximum number of events: one per generated token, and with captures one per token run."""
        num_tokens = self.sampling.max_tokens + len(self.continuation)
        return 2 * num_tokens + len(self.prompt_token_ids) if self.captures else num_tokens


Request = GenerationRequest | EmbeddingRequest | AnalysisRequest


@dataclass(frozen=True, slots=True)
class Counts:
    """A number of sequences at one moment, and how many of them have the lowest priority."""

    all: int = 0
    background: int = 0

    @classmethod
    def of(cls, requests: Collection[Request]) -> Counts:
        return cls(len(requests), sum(is_background(request) for request in requests))

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.all + other.all, self.background + other.background)


def is_background(request: Request) -> bool:
    """Return whether all other requests run first."""
    return not isinstance(request, AnalysisRequest) and request.priority <= BACKGROUND_PRIORITY


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (nats) of a token, and of the most likely tokens at its place, best first.

    ``rank`` is 1 for the most likely token; 0 if it was not determined.
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
    """The effect of steering at one site: the profile acted on ``num_tokens`` tokens and changed ``num_changed`` of
    them. ``change`` is the sum of ``|h' - h| / |h|``.
    """

    site: Site
    num_tokens: int
    num_changed: int
    change: float


@dataclass(frozen=True, slots=True)
class SteeringReceipt:
    """Proof that steering ran: the number of layer applications expected from the profile, and that of the hooks.

    ``effects``: the resulting changes. ``removals`` and ``inert`` are those of the intervention.
    """

    fingerprint: str
    expected: int
    applied: int
    effects: tuple[SiteEffect, ...] = ()
    removals: tuple[Removal, ...] = ()
    inert: tuple[InertEdit, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from submission until the first forward pass, the first token, and the end."""

    queue_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PromptLogprobsEvent:
    """Log-probabilities of the prompt's tokens; None for the first token. Precedes any TokensEvent."""

    index: int
    logprobs: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True)
class ScoresEvent:
    """Log-probabilities (nats) of a continuation's tokens."""

    index: int
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DivergenceEvent:
    """KL(subject || reference) in nats at each token of a pair's continuation, exact over the whole vocabulary.

    ``index`` is that of the sequence of the pair that finished last; of a sequence with several partners, the
    partner's.
    """

    index: int
    pair: str
    kl: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CaptureEvent:
    """The captures of one step, before the TokensEvent of its sampled token; pooled ones before the terminal event."""

    index: int
    captures: tuple[ActivationCapture, ...]


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """New tokens and the text that they complete (empty while a character or a possible stop string is incomplete)."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()

    def followed_by(self, other: TokensEvent) -> TokensEvent:
        """Return this event and a later one as one event."""
        return TokensEvent(
            self.index, self.token_ids + other.token_ids, self.text + other.text, self.logprobs + other.logprobs
        )


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """Terminal: the sequence finished. ``stop`` is the stop string that ended it, if any.

    ``ending`` is the end token, if log-probabilities were requested and no TokensEvent contains it.
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
        """Return the event for a request that never ran."""
        return cls(request.index, code, message, Usage(prompt_tokens=len(request.prompt_token_ids)), Timings())


Event = (
    PromptLogprobsEvent
    | ScoresEvent
    | DivergenceEvent
    | CaptureEvent
    | TokensEvent
    | EmbeddingEvent
    | AnalysisEvent
    | FinishedEvent
    | FailedEvent
)
TERMINAL_EVENTS = (FinishedEvent, FailedEvent)
Delivery = tuple[object, Event]  # an event and its sink
