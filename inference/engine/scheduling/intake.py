"""Validate requests against a model and build their sequences."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from inference.captures import MAX_VALUES, num_values
from inference.engine.messages import GenerationRequest, SamplingParams, Scoring
from inference.engine.models.loader import LoadedModel
from inference.engine.output.detokenizer import Detokenizer, TokenDecoder
from inference.engine.output.segments import SequenceSegments
from inference.engine.sampling.token_masks import GrammarMatcher, Matcher, ThinkingMatcher
from inference.engine.scheduling.sequence import Sequence
from inference.text.token_bytes import TokenBytes

PLAIN_SEEDS = 2**32  # seeds that torch distinguishes
_WORDS = 624  # of 32 bits: the Mersenne Twister's state
_BEFORE_WORDS = 24  # bytes of torch's form of it: the seed, how many words are left, whether it is seeded, the next one
_LEFT = slice(8, 12)
MAX_COMPARED_BYTES = 256 << 20  # of distributions that one side of a pair may have to store


class RequestIntake:
    """The intake of one model. ``seed`` determines the seeds of requests without one; None is random."""

    def __init__(
        self,
        loaded: LoadedModel,
        max_seq_len: int,
        seed: int | None,
        max_compared_bytes: int = MAX_COMPARED_BYTES,
    ) -> None:
        self._max_compared_bytes = max_compared_bytes
        self._loaded = loaded
        self._max_seq_len = max_seq_len
        self._width = int(loaded.module.config.get_text_config().hidden_size)  # type: ignore[union-attr, operator]
        self._decode_tokenizer = loaded.tokenizer.backend_tokenizer
        self._token_bytes = TokenBytes(self._decode_tokenizer)
        self._seeds = torch.Generator()
        if seed is None:
            self._seeds.seed()
        else:
            self._seeds.manual_seed(seed)

    def validate(self, request: GenerationRequest) -> tuple[str, str] | None:
        """Return the error code and message of a request that cannot run; None if it can."""
        ids = request.prompt_token_ids
        if not ids:
            return "invalid_prompt", "The prompt has no tokens."
        if min(ids) < 0 or max(ids) >= self._loaded.vocab_size:
            return "invalid_prompt", f"Token ids must be between 0 and {self._loaded.vocab_size - 1}."
        if len(ids) + min(request.sampling.max_tokens, 1) > self._max_seq_len:
            return (
                "context_length_exceeded",
                f"The prompt has {len(ids)} tokens, but the model accepts at most {self._max_seq_len}.",
            )
        if request.scoring is not None and (problem := self._scoring_problem(request, request.scoring)):
            return problem
        num_tokens = min(len(ids) + len(request.continuation) + request.sampling.max_tokens, self._max_seq_len)
        size = num_values(request.captures, self._width, len(ids), num_tokens)
        if size > MAX_VALUES:
            return "reading_too_large", f"The request would capture up to {size} values; the limit is {MAX_VALUES}."
        return None

    def _scoring_problem(self, request: GenerationRequest, scoring: Scoring) -> tuple[str, str] | None:
        ids, num_prompt = scoring.token_ids, len(request.prompt_token_ids)
        if not ids or request.sampling.max_tokens:
            return (
                "invalid_scoring",
                "A scoring request must have a continuation of at least one token, and must not generate any.",
            )
        if min(ids) < 0 or max(ids) >= self._loaded.vocab_size:
            return "invalid_scoring", f"Token ids must be between 0 and {self._loaded.vocab_size - 1}."
        if num_prompt + len(ids) > self._max_seq_len:
            text = (
                f"Prompt and continuation have {num_prompt + len(ids)} tokens, but the model accepts at most "
                f"{self._max_seq_len}."
            )
            return "context_length_exceeded", text
        size = 4 * len(ids) * self._loaded.vocab_size
        if scoring.pair and size > self._max_compared_bytes:
            most = self._max_compared_bytes // (4 * self._loaded.vocab_size)
            return (
                "scoring_too_large",
                f"The continuation has {len(ids)} tokens; this model can compare at most {most} at once.",
            )
        return None

    def build_sequence(self, request: GenerationRequest, sink: object, submitted_at: float) -> Sequence:
        """Build the sequence of a request. Raise GrammarError if its grammar cannot be compiled."""
        params = request.sampling
        eos = frozenset() if params.ignore_eos else self._loaded.eos_token_ids
        decoder = TokenDecoder(
            self._decode_tokenizer,
            request.prompt_token_ids,
            skip_special_tokens=params.skip_special_tokens and not params.shown_token_ids,
            hidden_token_ids=self._hidden_ids(params),
        )
        return Sequence(
            request=request,
            sink=sink,
            submitted_at=submitted_at,
            max_tokens=min(params.max_tokens, self._max_seq_len - len(request.prompt_token_ids)),
            detokenizer=Detokenizer(
                decoder, params.stop, min_tokens=params.min_tokens, include_stop=params.include_stop
            ),
            generator=self._generator(request),
            stop_ids=eos | frozenset(params.stop_token_ids),
            matcher=self._matcher(params),
            segments=self._segments(request),
        )

    def _segments(self, request: GenerationRequest) -> SequenceSegments | None:
        if request.intervention is None or not request.intervention.depends_on_segments:
            return None
        return SequenceSegments(request.segment_rules, self._token_bytes)

    def _hidden_ids(self, params: SamplingParams) -> frozenset[int]:
        """Return the special tokens that stay hidden while others are shown."""
        if not (params.skip_special_tokens and params.shown_token_ids):
            return frozenset()
        return self._loaded.special_token_ids.difference(params.shown_token_ids)

    def _matcher(self, params: SamplingParams) -> Matcher | None:
        grammar = None
        if params.grammar is not None:
            assert self._loaded.grammars is not None, "every generation model has a grammar compiler"
            grammar = GrammarMatcher(self._loaded.grammars.template(params.grammar))
        return grammar if params.thinking is None else ThinkingMatcher(params.thinking, grammar)

    def _generator(self, request: GenerationRequest) -> torch.Generator:
        """Return the request's own generator. Choices of a seeded request differ, and repeat exactly."""
        if request.sampling.seed is None:
            return derived_generator(int(torch.randint(2**62, (1,), generator=self._seeds)), request.index)
        return seeded_generator(request.sampling.seed, request.index)


def seeded_generator(seed: int, choice: int) -> torch.Generator:
    """Return the generator of one choice of a request, determined by the request's seed and the choice's index.

    torch seeds its CPU generator with 32 bits, so a sum or hash of seed and choice would give some choices the numbers
    of other seeds. Only the first choice of a small seed uses torch's own seeding; all others set the whole state.
    """
    if choice == 0 and 0 <= seed < PLAIN_SEEDS:
        return torch.Generator().manual_seed(seed)
    return derived_generator(seed, choice)


def derived_generator(seed: int, choice: int) -> torch.Generator:
    """Return a generator that is unique to the seed, of any size, and the choice."""
    digest = hashlib.shake_256(f"miLLM {seed} {choice}".encode()).digest(4 * _WORDS)
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    words = np.frombuffer(digest, "<u4").astype(np.uint64)
    words[0] |= np.uint64(2**31)  # an all-zero state would never change
    state[_BEFORE_WORDS : _BEFORE_WORDS + 8 * _WORDS] = torch.from_numpy(words.view(np.uint8))
    # No words are left, so torch mixes them before the first number.
    state[_LEFT] = torch.from_numpy(np.array([1], np.int32).view(np.uint8))
    generator.set_state(state)
    return generator
