"""One generation model on the engine thread: its scheduler, runner and sequences."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from inference.analyses import AnalysisRequest
from inference.captures import ActivationCapture
from inference.engine.analysis.queue import AnalysisQueue
from inference.engine.cache.plan import make_cache
from inference.engine.cache.policy import CacheCounts, Growth
from inference.engine.config import EngineConfig
from inference.engine.kernels.accelerator import Accelerate, accelerate
from inference.engine.kernels.step_graphs import StepGraphs
from inference.engine.messages import (
    CaptureEvent,
    Counts,
    Delivery,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    GenerationRequest,
    PromptLogprobsEvent,
    TokenLogprob,
    TokensEvent,
)
from inference.engine.model_runner import ModelRunner, StepOutput
from inference.engine.models.loader import LoadedModel
from inference.engine.models.sites import SiteError
from inference.engine.output.comparisons import Comparisons
from inference.engine.output.detokenizer import Piece
from inference.engine.output.scoring import Scores
from inference.engine.sampling.sampler import note_token
from inference.engine.scheduling.admission import Admission, ContinuousAdmission, StaticAdmission
from inference.engine.scheduling.chunk_isolation import chunk_isolation
from inference.engine.scheduling.intake import RequestIntake
from inference.engine.scheduling.rotation import BACKGROUND_WEIGHT, Rotation
from inference.engine.scheduling.scheduler import Chunk, Scheduler
from inference.engine.scheduling.sequence import Sequence, SequenceFault, SequenceState, blaming
from inference.engine.stats import ModelLimits, ModelStats
from inference.text.grammar import GrammarError

logger = logging.getLogger(__name__)

UNEXPECTED = "The server failed on this request."
BATCH, ANALYSES = "batch", "analyses"
ALL_FORBIDDEN = "No token is allowed at this position: the request's constraints forbid the whole vocabulary."


class ModelEngine:
    """One generation model. Used by the engine thread only.

    Analyses run in units between the steps of the batch, with a background share of the time.
    """

    request_type = GenerationRequest | AnalysisRequest

    def __init__(self, loaded: LoadedModel, config: EngineConfig, accelerate: Accelerate = accelerate) -> None:
        self._loaded = loaded
        config = config.on(torch.device(loaded.device).type)
        cache = make_cache(loaded, config, min(config.max_seq_len or loaded.max_model_len, loaded.max_model_len))
        self._cache = cache.policy
        self.max_seq_len = self._cache.max_seq_len
        self._limits = ModelLimits(
            loaded.device,
            loaded.dtype,
            torch.get_num_threads(),
            self.max_seq_len,
            self._cache.num_free_rows,
            cache.backend,
            cache.num_bytes,
            cache.num_tokens,
            config.max_prefill_tokens,
            config.min_prefill_tokens,
        )
        accelerator = accelerate(loaded, cache, config)
        # Drafts decide what the next step is.
        self._runner = ModelRunner(
            loaded,
            cache,
            accelerator,
            looks_ahead=config.speculative_method == "none",
            max_chunk=config.max_prefill_tokens,
        )
        self._memory_ahead = cache.ahead
        self._captures_graphs = accelerator is not None and accelerator.prepares
        if self._captures_graphs:
            self._runner.prepare()
        self._steps = chunk_isolation(self._runner.run)
        self._scheduler = Scheduler(config, self._cache, _admission(config))
        self._intake = RequestIntake(loaded, self.max_seq_len, config.seed)
        self._prompt_logprobs: dict[Sequence, list[TokenLogprob | None]] = {}
        self._comparisons = Comparisons()
        self._analyses = AnalysisQueue(loaded)
        self._rotation = Rotation()

    @property
    def has_work(self) -> bool:
        return bool(self._has_sequences or self._analyses)

    @property
    def _has_sequences(self) -> bool:
        return bool(self._scheduler.num_running or self._scheduler.num_waiting)

    @property
    def is_in_background(self) -> bool:
        return self._scheduler.is_in_background

    def use_idle_time(self) -> bool:
        """Do some of what would hold up traffic later: allocate memory, or capture a steered step.

        Return whether there was something.
        """
        if self._memory_ahead is not None and self._memory_ahead.allocate_some():
            return True
        if not self._captures_graphs:
            return False
        try:
            return self._runner.prepare_steered_graph()
        except Exception:  # such steps run without graphs, or fail alone
            logger.exception("Steered steps cannot be captured in idle time.")
            self._captures_graphs = False
            return False

    def seconds_to_wait(self) -> float:
        """Return the seconds until a step can run: 0 unless static batching waits for its batch to fill."""
        return 0.0 if self._analyses else self._scheduler.seconds_to_wait()

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    def running_counts(self) -> Counts:
        """Return the number of running sequences. Callable from any thread."""
        return Counts.of([sequence.request for sequence in self._scheduler.running])

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions for lack of memory since the start."""
        return self._scheduler.num_preemptions

    @property
    def graphs(self) -> StepGraphs | None:
        """CUDA graphs of decode steps; None on a CPU."""
        return self._runner.graphs

    @property
    def steps_ahead(self) -> int:
        """The number of steps that had started before their tokens were known on the host."""
        return self._runner.steps_ahead

    @property
    def cache_counts(self) -> CacheCounts:
        return self._cache.counts

    @property
    def kv_used_ratio(self) -> float:
        """Share of the memory for keys and values that running sequences hold."""
        return self._cache.used_ratio

    @property
    def num_free_slots(self) -> int:
        return self._cache.num_free_rows

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting + len(self._analyses)

    def stats(self) -> ModelStats:
        """Return statistics. Callable from any thread."""
        counters, drafts = self._steps.counters, self._scheduler.draft_counts
        return ModelStats(
            name=self._loaded.name,
            limits=self._limits,
            running=self.num_running,
            waiting=self.num_waiting,
            kv_used_ratio=self.kv_used_ratio,
            kv_unwritten_bytes=self._kv_unwritten_bytes(),
            prefix_queries=self.cache_counts.looked_up,
            prefix_hits=self.cache_counts.found,
            preemptions=self.num_preemptions,
            drafts=drafts.drafts,
            draft_tokens=drafts.tokens,
            accepted_draft_tokens=drafts.accepted,
            steering_rows=self._runner.steering.num_rows,
            step_seconds=counters.seconds.read(),
            step_sequences=counters.sequences.read(),
            step_tokens=counters.tokens.read(),
            step_faults=dict(counters.faults),
            kernels=self._runner.kernels,
        )

    def _kv_unwritten_bytes(self) -> int:
        """Return the cache memory that is not allocated yet. A GPU's memory is allocated at once."""
        if self._limits.device != "cpu":
            return 0
        unused = int(self._limits.kv_bytes * self._cache.unwritten_ratio)
        return unused if self._memory_ahead is None else max(0, unused - self._memory_ahead.num_bytes)

    def limit_growth(self, growth: Growth) -> None:
        """Set which sequences may take more CPU memory; a GPU's memory is taken at once."""
        if self._limits.device == "cpu":
            self._scheduler.limit_growth(growth)

    def add(self, request: GenerationRequest | AnalysisRequest, sink: object, submitted_at: float) -> list[Delivery]:
        """Queue a request. Return its failure if it cannot run."""
        if not isinstance(request, GenerationRequest):
            return self._analyses.add(request, sink, submitted_at)
        try:
            problem = self._intake.validate(request)
            if problem is not None:
                return [(sink, FailedEvent.before_start(request, *problem))]
            sequence = self._intake.build_sequence(request, sink, submitted_at)
        except GrammarError as error:
            return [(sink, FailedEvent.before_start(request, "grammar_failed", str(error)))]
        except Exception:
            # Whatever a model's own tokenizer raises concerns this request only.
            logger.exception("A request could not be prepared.")
            return [(sink, FailedEvent.before_start(request, "server_error", "The request could not be prepared."))]
        try:
            self._attach(sequence)
        except SiteError as error:
            return [(sink, FailedEvent.before_start(request, "sae_mismatch", str(error)))]
        except Exception:
            # Whatever a profile's or an SAE's own code or tensors raise concerns this request only.
            logger.exception("A profile or capture could not be attached to the model.")
            return [(sink, FailedEvent.before_start(request, "server_error", "The profile could not be applied."))]
        self._scheduler.add(sequence)
        return []

    def cancel(self, sink: object) -> list[Delivery]:
        mine = self._scheduler.sequences_of(sink)
        cancelled = [d for s in mine for d in self._guarded(s, partial(self._finish, s, "cancelled"))]
        return [*cancelled, *self._analyses.cancel(sink)]

    def fail_all(self, code: str, text: str) -> list[Delivery]:
        failed = [d for s in list(self._scheduler.sequences()) for d in self._fail(s, code, text)]
        return [*failed, *self._analyses.fail_all(code, text)]

    def step(self) -> list[Delivery] | None:
        """Run one forward pass of the batch, or one unit of an analysis. Return None if nothing can run yet."""
        work = [name for name, waits in ((BATCH, self._has_sequences), (ANALYSES, self._analyses)) if waits]
        chosen = self._rotation.next(work) if work else BATCH
        began_at = time.perf_counter()
        deliveries = self._step_batch() if chosen == BATCH else self._analyses.step()
        if work:
            seconds = time.perf_counter() - began_at
            self._rotation.note(chosen, seconds if chosen == BATCH else BACKGROUND_WEIGHT * seconds)
        if deliveries is None and self._analyses:
            return self._analyses.step()  # the batch waits to fill
        return deliveries

    @torch.inference_mode()  # what a step makes, such as the counts for penalties, is updated after it
    def _step_batch(self) -> list[Delivery] | None:
        """Run one forward pass. An exception fails the sequences that cause it; the others continue."""
        try:
            chunks = self._scheduler.schedule()
        except SequenceFault as fault:
            return self._fail(fault.sequence, fault.code, str(fault))
        except Exception:
            # The cause is unknown; if the running sequences stayed, the next step would raise again.
            logger.exception("A step could not be scheduled.")
            concerned = list(self._scheduler.running) or list(self._scheduler.sequences())
            return self._fail_unexpectedly(concerned)
        return self._run(chunks) if chunks else None

    def _run(self, chunks: list[Chunk]) -> list[Delivery]:
        now = time.monotonic()
        for chunk in chunks:
            if chunk.sequence.first_run_at is None:
                chunk.sequence.first_run_at = now
        result = self._steps.run(chunks)
        faults = self._note_step(result.ran, time.monotonic() - now)
        deliveries = [d for f in result.failures for d in self._fail(f.item.sequence, f.code, f.message)]
        deliveries += [d for f in faults for d in self._fail(f.sequence, f.code, str(f))]
        for ran, output in result.attempts:
            events: list[Delivery] = []
            try:
                self._update(ran, output, events)
            except torch.AcceleratorError:
                raise
            except Exception:
                logger.exception("The output of a step could not be processed.")
                events += self._fail_unexpectedly([chunk.sequence for chunk in ran])
            deliveries += _merged(events) if any(chunk.drafts for chunk in ran) else events
        return deliveries

    def _note_step(self, ran: list[Chunk], seconds: float) -> list[SequenceFault]:
        try:
            return self._scheduler.note_step(ran, seconds)
        except Exception:
            # No single sequence raises here, so the bookkeeping of all sequences in the step may be incomplete.
            logger.exception("The scheduler could not be updated after a step.")
            return [SequenceFault(chunk.sequence, "server_error", UNEXPECTED) for chunk in ran]

    def check_integrity(self) -> None:
        """Raise AssertionError if slots, sequences and steering rows are inconsistent."""
        self._cache.check_integrity(self._scheduler.running)
        steered = {s.rows.fingerprint for s in self._scheduler.sequences() if s.rows is not None}
        assert self._runner.steering.num_interventions == len(steered), (
            "every attached intervention belongs to a steered sequence"
        )
        capturing = any(s.capture is not None for s in self._scheduler.sequences())
        assert bool(self._runner.captures.num_hooks) == capturing, "capture hooks exist exactly while sequences capture"
        scoring = any(s.scoring is not None for s in self._scheduler.sequences())
        assert scoring or not len(self._comparisons), "distributions are only stored while sequences score"
        assert all(not s.is_done for s in self._scheduler.sequences()), "no finished sequence is scheduled"
        assert self._prompt_logprobs.keys() <= set(self._scheduler.sequences()), (
            "prompt log-probabilities belong to scheduled sequences"
        )

    def close(self) -> None:
        self._runner.close()

    # Requests

    def _attach(self, sequence: Sequence) -> None:
        """Acquire steering and captures, both or neither. Raise SiteError if they do not fit the model."""
        request = sequence.request
        if sequence.capture is not None:
            self._runner.captures.acquire(request.captures)
        if request.intervention is not None:
            try:
                sequence.rows = self._runner.steering.acquire(request.intervention)
            except BaseException:
                if sequence.capture is not None:
                    self._runner.captures.release(request.captures)
                raise

    # After a step

    def _update(self, chunks: list[Chunk], output: StepOutput, deliveries: list[Delivery]) -> None:
        """Apply a step's output to the sequences and append their events to ``deliveries``."""
        self._note_drafts(chunks, output)
        for chunk in chunks:
            deliveries += self._guarded(chunk.sequence, partial(self._check_steering, chunk.sequence))
        for sequence in output.found:
            deliveries += self._guarded(sequence, partial(self._take_captures, sequence, output))
        for sequence, scores in output.scores.items():
            deliveries += self._guarded(sequence, partial(self._note_scores, sequence, scores))
        for sequence, logprobs in output.prompt_logprobs.items():
            deliveries += self._guarded(sequence, partial(self._note_prompt_logprobs, sequence, logprobs))
        sampled = output.sampled
        for sequence, token, logprob, finite, is_possible in zip(
            output.sequences, sampled.token_ids, sampled.logprobs, sampled.finite, sampled.is_possible, strict=True
        ):
            if sequence.num_pending_tokens:
                deliveries += self._guarded(sequence, partial(self._accept_draft, sequence, output))
            advance = partial(self._advance, sequence, token, logprob, finite=finite, is_possible=is_possible)
            deliveries += self._guarded(sequence, advance)

    def _guarded(self, sequence: Sequence, act: Callable[[], list[Delivery]]) -> list[Delivery]:
        """Return the events of ``act``, or the sequence's failure if it raises; nothing for a sequence that has
        finished.

        A tokenizer that fails on one sequence's tokens must not fail the others.
        """
        if sequence.is_done:
            return []
        try:
            with blaming(sequence, UNEXPECTED):
                return act()
        except SequenceFault as fault:
            return self._fail(sequence, fault.code, str(fault))

    def _fail_unexpectedly(self, sequences: list[Sequence]) -> list[Delivery]:
        return [d for s in sequences if not s.is_done for d in self._fail(s, "server_error", UNEXPECTED)]

    def _note_drafts(self, chunks: list[Chunk], output: StepOutput) -> None:
        if not any(chunk.drafts for chunk in chunks):
            return
        num_tokens = Counter(output.sequences)
        for chunk in chunks:
            if chunk.drafts:
                self._scheduler.note_drafts(chunk, num_tokens[chunk.sequence] - 1)

    def _accept_draft(self, sequence: Sequence, output: StepOutput) -> list[Delivery]:
        """Accept a drafted token: the step that checked the draft has already computed it."""
        self._scheduler.note_accepted(sequence)
        if sequence in output.draft_steering:
            next(output.draft_steering[sequence]).note(sequence)
        found = self._take_captures(sequence, output)
        return [*found, *self._guarded(sequence, partial(self._check_steering, sequence))]

    def _take_captures(self, sequence: Sequence, output: StepOutput) -> list[Delivery]:
        """Return the captures of tokens that will not be recomputed."""
        if sequence not in output.found:
            return []
        assert sequence.capture is not None, "only capturing sequences have captured rows"
        captures = sequence.capture.take(output.found[sequence], sequence.num_computed)
        if not all(np.isfinite(capture.values).all() for capture in captures):
            return self._fail_unstable(sequence, "activations are")
        return _capture_event(sequence, captures)

    def _check_steering(self, sequence: Sequence) -> list[Delivery]:
        if sequence.steering_applied == sequence.steering_expected:
            return []
        text = f"Steering was applied {sequence.steering_applied} times instead of {sequence.steering_expected}."
        return self._fail(sequence, "steering_not_applied", text)

    def _note_scores(self, sequence: Sequence, scores: Scores) -> list[Delivery]:
        events = self._comparisons.take(sequence, scores)
        if sequence.scoring is not None and not sequence.scoring.is_finite:
            return self._fail_unstable(sequence)
        return [(sequence.sink, event) for event in events]

    def _note_prompt_logprobs(self, sequence: Sequence, logprobs: tuple[TokenLogprob | None, ...]) -> list[Delivery]:
        if logprobs[0] is None:  # the prompt starts, possibly again after a preemption
            self._prompt_logprobs[sequence] = []
        known = self._prompt_logprobs[sequence]
        known.extend(logprobs)
        if len(known) < sequence.num_prompt:
            return []
        del self._prompt_logprobs[sequence]
        sequence.has_prompt_logprobs = True
        return [(sequence.sink, PromptLogprobsEvent(sequence.request.index, tuple(known)))]

    def _advance(
        self, sequence: Sequence, token: int, logprob: TokenLogprob | None, *, finite: bool, is_possible: bool
    ) -> list[Delivery]:
        """Append a sampled token to the sequence and return its events."""
        if sequence.max_tokens == 0:
            return self._finish(sequence, "length")
        if not finite:
            return self._fail_unstable(sequence)
        if not is_possible or (sequence.matcher is not None and sequence.matcher.error):
            return self._fail_without_token(sequence)
        if sequence.first_token_at is None:
            sequence.first_token_at = time.monotonic()
        sequence.state = SequenceState.DECODE
        sequence.token_ids.append(token)
        note_token(sequence, token)
        if token in sequence.stop_ids:
            included = sequence.detokenizer.push_stop(token, logprob)
            ending = None if included.token_ids else logprob
            return [*_tokens_event(sequence, included), *self._finish(sequence, "stop", ending=ending)]
        piece = sequence.detokenizer.push(token, logprob)
        events = _tokens_event(sequence, piece)
        if piece.stop:
            return [*events, *self._finish(sequence, "stop", stop=piece.stop)]
        if sequence.matcher is not None:
            sequence.matcher.accept(token)
            if sequence.matcher.is_finished:
                return [*events, *self._finish(sequence, "stop")]
        if sequence.num_generated >= sequence.max_tokens:
            return [*events, *self._finish(sequence, "length")]
        return events

    def _finish(
        self, sequence: Sequence, reason: FinishReason, *, stop: str = "", ending: TokenLogprob | None = None
    ) -> list[Delivery]:
        """Finish a sequence. Text after the stop string ``stop`` is not sent."""
        events = [] if stop else _tokens_event(sequence, sequence.detokenizer.finish())
        if sequence.capture is not None:
            events += _capture_event(sequence, sequence.capture.finish())
        self._remove(sequence, SequenceState.FINISHED)  # last: if the text cannot be completed, the sequence can fail
        ended = FinishedEvent(
            sequence.request.index,
            reason,
            sequence.usage(),
            sequence.timings(),
            receipt=sequence.receipt(),
            stop=stop,
            ending=ending,
        )
        return [*events, (sequence.sink, ended)]

    def _fail_unstable(self, sequence: Sequence, what: str = "output is") -> list[Delivery]:
        """Fail the sequence for values that are not finite. For a steered sequence, the steering is the cause."""
        if sequence.rows is None:
            return self._fail(sequence, "server_error", f"The model's {what} not finite.")
        return self._fail(
            sequence,
            "steering_unstable",
            "The model's output is not finite because of the steering. Lower the strength.",
        )

    def _fail_without_token(self, sequence: Sequence) -> list[Delivery]:
        """Fail the sequence because no token is allowed: by a grammar in error, or by the request's own constraints."""
        if sequence.matcher is not None and sequence.matcher.error:
            return self._fail(sequence, "grammar_failed", sequence.matcher.error)
        return self._fail(sequence, "no_token_allowed", ALL_FORBIDDEN)

    def _fail(self, sequence: Sequence, code: str, text: str) -> list[Delivery]:
        self._remove(sequence, SequenceState.FAILED)
        return [(sequence.sink, FailedEvent(sequence.request.index, code, text, sequence.usage(), sequence.timings()))]

    def _remove(self, sequence: Sequence, state: SequenceState) -> None:
        self._scheduler.remove(sequence)
        self._runner.forget_batch()
        sequence.state = state
        self._prompt_logprobs.pop(sequence, None)
        if sequence.rows is not None:
            self._runner.steering.release(sequence.rows)
        if sequence.capture is not None:
            self._runner.captures.release(sequence.request.captures)
        if sequence.scoring is not None and not self._scheduler.sequences_of(sequence.sink):
            self._comparisons.forget(sequence.sink)


def _admission(config: EngineConfig) -> Admission:
    if config.batching_mode == "static":
        return StaticAdmission(config.batch_wait_timeout_s, config.max_batch_size)
    return ContinuousAdmission()


def _merged(deliveries: list[Delivery]) -> list[Delivery]:
    """Merge a sequence's token events of one step into one."""
    merged: list[Delivery] = []
    for sink, event in deliveries:
        match merged[-1:], event:
            case [(last_sink, TokensEvent() as last)], TokensEvent() if last_sink is sink and last.index == event.index:
                merged[-1] = (sink, last.followed_by(event))
            case _:
                merged.append((sink, event))
    return merged


def _tokens_event(sequence: Sequence, piece: Piece) -> list[Delivery]:
    if not piece.token_ids and not piece.text:
        return []
    return [(sequence.sink, TokensEvent(sequence.request.index, piece.token_ids, piece.text, piece.logprobs))]


def _capture_event(sequence: Sequence, captures: tuple[ActivationCapture, ...]) -> list[Delivery]:
    return [(sequence.sink, CaptureEvent(sequence.request.index, captures))] if captures else []
