"""Generates texts for evaluations, and compares two interventions token by token on the same texts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inference.captures import CaptureSpec, FeatureValues
from inference.client import (
    CaptureEvent,
    DivergenceEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    SamplingParams,
    ScoresEvent,
    Scoring,
    TokensEvent,
    get_client,
)
from inference.models import LanguageModel
from inference.registry.model_card import ModelCard
from inference.registry.registry import get_registry
from inference.runs import JOB_PRIORITY, Run, SequenceFailedError
from inference.segments import ANSWER_ONLY, SegmentRules
from inference.steering_refs import PublishedVersion, SAERef, SAESource, SteeringRef
from inference.text.chat_template import ChatTemplateError
from inference.text.dialects.dialect import answer_segment_rules
from inference.text.model_text import thinking_state
from steering.errors import EvaluationError, ScopeNotSupportedError
from steering.models import SAE, ProfileVersion
from steering.profiles.compilation import get_compiler
from steering.profiles.resolver import check_scopes, get_resolver
from steering.profiles.snapshot import source_of, version_of
from steering.spec.edit import EditSpec, FeatureTarget
from steering.spec.factor import combined_pushes, largest_push, with_factor
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edits_to_json, fingerprint
from steering.spec.wording import describe_edit, describe_target

AT_ONCE = 4  # prompts per batch, so that requests find room in the engine
COUNTED = frozenset({"steering_unstable", "steering_not_applied"})  # failures of one answer; others end the job
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TextPiece:
    """The text of some tokens; empty if they end within a character."""

    text: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """A generated answer, or the reason for its failure (``failure``)."""

    token_ids: tuple[int, ...] = ()
    pieces: tuple[TextPiece, ...] = ()
    finish_reason: str = ""
    failure: str = ""

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """Two interventions compared on one text, token by token; ``activations`` were captured under the second one."""

    kl: tuple[float, ...] = ()
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    activations: tuple[float, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of the answers."""

    max_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0

    def params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Speaker:
    """What answers: a version, or the unsteered model; with a system prompt, or without."""

    version: PublishedVersion | None = None
    system: str = ""


UNSTEERED = Speaker()


@dataclass(frozen=True)
class EvaluationRunner:
    """A synchronous client of the engine. Each call runs its own event loop; jobs report progress between calls."""

    model: str
    ids: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)  # by system prompt and prompt

    def generate(
        self, prompts: Sequence[str], speaker: Speaker, sampling: Sampling, *, first: int = 0
    ) -> list[GeneratedAnswer]:
        """Generate an answer to each prompt, in one batch; ``first`` is the number of the first prompt.

        A prompt's seed depends on its number alone, not on the speaker.
        """
        return _run(self._generate(prompts, speaker, sampling, first))

    def compare(
        self,
        texts: Sequence[tuple[str, GeneratedAnswer]],
        ours: Speaker,
        theirs: Speaker,
        read: CaptureSpec | None = None,
    ) -> list[AnswerComparison]:
        """Compute KL(ours || theirs) at each token of each answer, and the answer's log-probabilities under both.

        An answer without tokens yields a comparison with the answer's failure, if there was one.
        """
        return _run(self._compare(texts, ours, theirs, read))

    def score(
        self, prompt: str, texts: Sequence[str], speaker: Speaker, *, at_answer: bool = False
    ) -> list[list[float]]:
        """Return the log-probabilities (nats) of the tokens of each text as an answer to the prompt.

        A text has none if the steered model was unstable. With ``at_answer``, reasoning that the chat template opens is
        closed first, as if the model had answered without it.
        """
        return _run(self._score(prompt, texts, speaker, closes_thinking=at_answer))

    async def _score(
        self, prompt: str, texts: Sequence[str], speaker: Speaker, *, closes_thinking: bool
    ) -> list[list[float]]:
        ready = await self._ready()
        steering = await self._steering(ready, speaker.version)
        ids = await self._prompt(ready, prompt, speaker.system)
        if closes_thinking:
            ids = _without_thinking(ready, ids)
        requests = [
            GenerationRequest(
                f"evaluation/{n}",
                ready.record.name,
                ids,
                SamplingParams(max_tokens=0),
                steering,
                n,
                JOB_PRIORITY,
                scoring=Scoring(tuple(ready.text.encode_plain(text))),
                segment_rules=_segment_rules(ready, ids, steering),
            )
            for n, text in enumerate(texts)
        ]
        collected = await _events(requests)
        return [
            [p for event in events if isinstance(event, ScoresEvent) for p in event.logprobs] for events in collected
        ]

    async def _generate(
        self, prompts: Sequence[str], speaker: Speaker, sampling: Sampling, first: int
    ) -> list[GeneratedAnswer]:
        ready = await self._ready()
        steering = await self._steering(ready, speaker.version)
        requests = [
            GenerationRequest(
                f"evaluation/{n}",
                ready.record.name,
                ids,
                sampling.params(),
                steering,
                n,
                JOB_PRIORITY,
                segment_rules=_segment_rules(ready, ids, steering),
            )
            for n, ids in enumerate([await self._prompt(ready, prompt, speaker.system) for prompt in prompts], first)
        ]
        return [_answer(events) for events in await _events(requests)]

    async def _compare(
        self,
        texts: Sequence[tuple[str, GeneratedAnswer]],
        ours: Speaker,
        theirs: Speaker,
        read: CaptureSpec | None,
    ) -> list[AnswerComparison]:
        ready = await self._ready()
        sides = [(one, await self._steering(ready, one.version)) for one in (ours, theirs)]
        results = []
        for prompt, answer in texts:
            if not answer.token_ids:
                results.append(AnswerComparison(failure=answer.failure))
                continue
            prompts = [await self._prompt(ready, prompt, speaker.system) for speaker, _ in sides]
            requests = [
                GenerationRequest(
                    f"evaluation/{side}",
                    ready.record.name,
                    ids,
                    SamplingParams(max_tokens=0),
                    steering,
                    side,
                    JOB_PRIORITY,
                    captures=(read,) if read is not None and side else (),
                    scoring=Scoring(answer.token_ids, "pair", is_reference=bool(side)),
                    segment_rules=_segment_rules(ready, ids, steering),
                )
                for side, (ids, (_, steering)) in enumerate(zip(prompts, sides, strict=True))
            ]
            results.append(_compared(await _events(requests)))
        return results

    async def _ready(self) -> ModelCard:
        ready = await get_registry().ready(self.model)
        if ready.kind != "generation":
            raise EvaluationError(f"The model {self.model} cannot generate text; it is for {ready.kind}.")
        return ready

    async def _steering(self, ready: ModelCard, version: PublishedVersion | None) -> SteeringRef | None:
        if version is None:
            return None
        steering = await get_resolver().compiled(version, special_token_ids=ready.text.special_token_ids)
        try:
            check_scopes(steering, ready.text.dialect)
        except ScopeNotSupportedError as error:
            raise EvaluationError(error.message) from error
        return steering

    async def _prompt(self, ready: ModelCard, prompt: str, system: str = "") -> tuple[int, ...]:
        """Return the prompt's tokens: as a user message if the model has a chat template, else as plain text."""
        if (system, prompt) not in self.ids:
            self.ids[system, prompt] = tuple(await asyncio.to_thread(_encode, ready, prompt, system))
        return self.ids[system, prompt]


def _encode(ready: ModelCard, prompt: str, system: str) -> list[int]:
    """Raise EvaluationError if the chat template rejects the system prompt."""
    if not ready.text.has_chat_template:
        return ready.text.encode(f"{system}\n\n{prompt}" if system else prompt)
    messages = [{"role": "user", "content": prompt}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    try:
        return ready.text.render_chat(messages)
    except ChatTemplateError as error:
        raise EvaluationError(f"The chat template of {ready.record.name} rejected the prompt: {error}") from error


def _without_thinking(ready: ModelCard, ids: tuple[int, ...]) -> tuple[int, ...]:
    marks = ready.text.dialect.thinking
    if marks is None or thinking_state(ready.text, ids) != "begun":
        return ids
    end = ready.text.token_of(marks.end)
    ended = ready.text.encode_plain(marks.end) if end is None else [end]
    return (*ids, *ended, *ready.text.encode_plain("\n\n"))


def _segment_rules(ready: ModelCard, ids: tuple[int, ...], steering: SteeringRef | None) -> SegmentRules:
    """Return the rules that split the answer into segments. Evaluations offer no tools."""
    if steering is None or not steering.depends_on_segments:
        return ANSWER_ONLY
    return answer_segment_rules(ready.text.dialect, thinking_state(ready.text, ids), "none")


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def _events(requests: Sequence[GenerationRequest]) -> list[list[Event]]:
    """Return the events of each request. Raise EvaluationError."""
    try:
        return await Run(get_client(), requests, waits=True, tolerated=COUNTED).collect()
    except SequenceFailedError as error:
        raise EvaluationError(f"The engine rejected the evaluation ({error.code}): {error}") from error


def _answer(events: Iterable[Event]) -> GeneratedAnswer:
    token_ids: list[int] = []
    pieces: list[TextPiece] = []
    reason = failure = ""
    for event in events:
        match event:
            case TokensEvent():
                token_ids.extend(event.token_ids)
                pieces.append(TextPiece(event.text, len(event.token_ids)))
            case FinishedEvent():
                reason = event.reason
            case FailedEvent():
                failure = event.message
    return GeneratedAnswer(tuple(token_ids), tuple(pieces), reason, failure)


def _compared(found: Iterable[Iterable[Event]]) -> AnswerComparison:
    kl: tuple[float, ...] = ()
    scores: dict[int, tuple[float, ...]] = {}
    activations: list[float] = []
    for events in found:
        for event in events:
            match event:
                case DivergenceEvent():
                    kl = event.kl
                case ScoresEvent():
                    scores[event.index] = event.logprobs
                case CaptureEvent():
                    activations.extend(float(v) for r in event.captures for v in r.values[:, 0])
                case FailedEvent():
                    return AnswerComparison(failure=event.message)
    return AnswerComparison(kl, scores[0], scores[1], tuple(activations))


@dataclass(frozen=True)
class UnpublishedEdits:
    """Edits to evaluate that were not published, as JSON of a version: the draft of a ``profile``, or edits of a
    request. ``model`` and ``profile`` are primary keys.
    """

    model: int
    label: str
    edits: Any
    profile: int | None = None


@dataclass(frozen=True)
class EvaluatedVersion:
    """The version or draft under evaluation: its edits at other strengths, and the feature that it steers."""

    model: str
    published: PublishedVersion
    edits: tuple[EditSpec, ...]

    @classmethod
    def find(cls, target: int | UnpublishedEdits | Mapping[str, Any]) -> EvaluatedVersion:
        """Return the version with this primary key, or unpublished edits; a mapping is theirs in a job's parameters.

        Raise EvaluationError if the version or an SAE does not exist.
        """
        if isinstance(target, Mapping):
            target = UnpublishedEdits(**target)
        if isinstance(target, UnpublishedEdits):
            return cls._unpublished(target)
        row = ProfileVersion.objects.select_related("profile__model").prefetch_related("saes").filter(pk=target).first()
        if row is None:
            raise EvaluationError(f"The profile version with the id {target} does not exist.")
        return cls(row.profile.model.name, version_of(row), parse_edits(row.edits))

    @classmethod
    def _unpublished(cls, target: UnpublishedEdits) -> EvaluatedVersion:
        model = LanguageModel.objects.filter(pk=target.model).first()
        if model is None:
            raise EvaluationError(f"The model of {target.label} does not exist any more.")
        edits = parse_edits(target.edits)
        needed = {sae.checksum: sae.name for edit in edits for sae in edit.saes}
        rows = {sae.checksum: sae for sae in SAE.objects.filter(model=model, checksum__in=needed)}
        if missing := sorted(needed.keys() - rows.keys()):
            raise EvaluationError(f"The SAE {needed[missing[0]]} of {target.label} does not exist any more.")
        sources = tuple(source_of(rows[checksum]) for checksum in sorted(rows))
        published = PublishedVersion(target.label, 0, fingerprint(edits), edits_to_json(edits), sources)
        return cls(model.name, published, edits)

    def at(self, factor: float) -> PublishedVersion:
        """Return the version with its strengths multiplied by a factor."""
        if factor == 1:
            return self.published
        edits = tuple(with_factor(edit, factor) for edit in self.edits)
        return PublishedVersion(
            f"{self.published.label} × {factor:g}", 0, fingerprint(edits), edits_to_json(edits), self.published.saes
        )

    def strengths(self, factor: float) -> list[str]:
        return [describe_edit(with_factor(edit, factor)) for edit in self.edits]

    def push(self, factor: float) -> float | None:
        """Return the relative size of the largest edit; None if no edit's size is known."""
        return largest_push([with_factor(edit, factor) for edit in self.edits])

    def pushes(self, factor: float) -> dict[str, float]:
        """Return the combined relative size of the edits at each site, by the site's name."""
        combined = combined_pushes(with_factor(edit, factor) for edit in self.edits)
        return {str(site): push for site, push in combined.items()}

    def source(self, checksum: str) -> SAESource:
        """Return the SAE with this checksum, which one of the edits uses."""
        return next(source for source in self.published.saes if source.checksum == checksum)

    @property
    def feature(self) -> EditSpec | None:
        """Return the first edit of a feature, or None."""
        return next((edit for edit in self.edits if isinstance(edit.target, FeatureTarget)), None)

    @property
    def feature_name(self) -> str:
        return "" if self.feature is None else describe_target(self.feature)

    def read(self) -> CaptureSpec | None:
        """Return the capture of the feature's activation on generated tokens; None without a readable feature."""
        edit = self.feature
        if edit is None or not isinstance(edit.target, FeatureTarget):
            return None
        source = self.source(edit.target.sae.checksum)
        sae = get_compiler().sae(source)
        probe = FeatureValues(SAERef(source, sae.d_sae), (edit.target.index,))
        return CaptureSpec(site=sae.read_site(edit.target.site), probe=probe, phase="generation")
