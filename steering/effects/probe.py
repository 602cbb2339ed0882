"""Measure the effects of features and vectors in the engine: many at once, as rows of one batch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from inference.captures import AllFeatures, CaptureSpec, FeatureValues
from inference.client import (
    CaptureEvent,
    DivergenceEvent,
    EngineClient,
    Event,
    FailedEvent,
    GenerationRequest,
    PromptLogprobsEvent,
    SamplingParams,
    ScoresEvent,
    Scoring,
    TokensEvent,
)
from inference.interventions import Site
from inference.registry.model_card import ModelCard
from inference.runs import JOB_PRIORITY, Run, SequenceFailedError
from inference.steering_refs import PublishedVersion, SAERef, SAESource, SteeringRef, SteeringSpec
from steering.effects.output_tokens import NUM_BASE, NUM_STEERED, PUSH, Distribution, output_tokens
from steering.effects.recipe import OPENINGS, EffectRecipe, EffectResult, Sample, output_score
from steering.effects.strength_search import StrengthSearch
from steering.errors import EvaluationError, SAENotMeasuredError
from steering.profiles.compilation import get_compiler
from steering.spec.edit import EditSpec, FeatureTarget, VectorTarget
from steering.spec.rendering import edits_to_json, fingerprint
from steering.spec.units import push
from steering.spec.wording import describe_target

AT_ONCE = 15
"""Features or vectors in one batch: with the unsteered text, the number that the engine runs at once by default."""
NUM_UNSTEERED = 8
"""Unsteered samples of each prompt. The first one is shown beside the steered one."""
FIRST_PUSH = 0.3
_UNSTABLE = frozenset({"steering_unstable"})
_SCORED = "effect"


@dataclass(frozen=True, slots=True)
class MeasuredDirection:
    """A feature or vector to measure, and the ids of a feature's first tokens in the logit lens (empty if unknown)."""

    target: FeatureTarget | VectorTarget
    lens: tuple[int, ...] = ()

    @property
    def index(self) -> int | None:
        """The index of the feature; None for a vector."""
        return self.target.index if isinstance(self.target, FeatureTarget) else None


@dataclass(frozen=True, slots=True)
class _Text:
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Written:
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class _Reread:
    """A text read by the unsteered model: negative log-probabilities, and mean activations on ``num_read`` tokens."""

    nll: tuple[float, ...] = ()
    activations: tuple[float, ...] = ()
    num_read: int = 0


@dataclass(frozen=True, slots=True)
class EffectProbe:
    """Measures features of one SAE, or vectors, on one model, whose unsteered texts :meth:`prepare` has generated."""

    client: EngineClient
    model: ModelCard
    sae: SAERef | None
    site: Site | None
    """Where the SAE reads."""
    recipe: EffectRecipe
    texts: tuple[_Text, ...] = ()
    before: tuple[_Written, ...] = ()
    nll: tuple[float, ...] = ()
    """Of each token of the unsteered samples."""
    activations: tuple[float, ...] = ()
    """Of each feature, the mean over the tokens of the unsteered samples."""
    base: tuple[dict[int, tuple[float, int]], ...] = ()
    """By opening: log-probability and rank of each token after it, without steering."""
    unsteered: tuple[dict[int, float], ...] = ()
    """Log-probabilities of the most likely tokens at each place of the answers in ``texts``, without steering."""

    @classmethod
    async def prepare(
        cls,
        client: EngineClient,
        model: ModelCard,
        recipe: EffectRecipe,
        source: SAESource | None = None,
        site: Site | None = None,
    ) -> EffectProbe:
        """Generate the unsteered texts: for an SAE that writes at ``site``, or for vectors, without ``source``.

        Raise EvaluationError if the model answers nothing.
        """
        bare = cls(client, model, None, None, recipe)
        if source is not None and site is not None:
            weights = get_compiler().sae(source)
            bare = replace(bare, sae=SAERef(source, weights.d_sae), site=weights.read_site(site))
        prompts = [bare.encode(prompt) for prompt in recipe.prompts]
        answers = await bare._write(prompts, None, recipe.max_tokens)
        texts = tuple(_Text(p, a.token_ids) for p, a in zip(prompts, answers, strict=True) if a and a.token_ids)
        if not texts:
            raise EvaluationError("The unsteered model gave no answer to any of the prompts; choose other prompts.")
        repeated = prompts[: recipe.num_samples] * NUM_UNSTEERED
        written = await bare._write(repeated, None, recipe.sample_tokens)
        read = await bare._reread(repeated, written)
        base = tuple([await bare._distribution(opening) for opening in OPENINGS])
        bare = replace(bare, texts=texts)
        (unsteered,) = await bare._top_tokens([None], NUM_BASE)
        return replace(
            bare,
            unsteered=tuple(dict(place) for place in unsteered),
            before=tuple(one or _Written((), "") for one in written[: recipe.num_samples]),
            nll=tuple(x for part in read for x in part.nll),
            activations=_mean_activations(read),
            base=base,
        )

    async def measure(self, features: Sequence[MeasuredDirection]) -> list[EffectResult]:
        """Return the effect of each one, in their order. Those unstable at every strength get strength 0."""
        searches = [self._search(feature.target) for feature in features]
        while pending := [n for n, search in enumerate(searches) if not search.is_finished]:
            refs = [await self._steer(features[n].target, searches[n].guess) for n in pending]
            for n, kl in zip(pending, await self._divergences(refs), strict=True):
                searches[n].note(kl)
        best = [search.best or (0.0, 0.0) for search in searches]
        steered = [
            await self._steer(feature.target, raw) if raw else None
            for feature, (raw, _) in zip(features, best, strict=True)
        ]
        samples = await asyncio.gather(*map(self._sampled, features, steered))
        scores = await self._output_scores(features, steered)
        return [
            EffectResult(
                index=feature.index,
                strength=raw,
                kl=kl,
                push=push(raw, feature.target.scales) or 0.0,
                is_capped=search.is_capped,
                output_score=score,
                base_output_score=base,
                steered_activation=activation,
                base_activation=self._relative(self.activations, feature.target),
                fluency=fluency,
                curve=tuple(sorted(search.points)),
                samples=some,
            )
            for feature, search, (raw, kl), (fluency, activation, some), (score, base) in zip(
                features, searches, best, samples, scores, strict=True
            )
        ]

    async def output_tokens(self, features: Sequence[FeatureTarget | VectorTarget]) -> list[list[tuple[str, float]]]:
        """Return the output tokens of each one as text, with their parts; none where steering is unstable."""
        refs = [await self._steer(feature, PUSH / self._size(feature)) for feature in features]
        found = await self._top_tokens(refs, NUM_STEERED)
        text = self.model.text
        return [
            [(text.decode([token_id]), part) for token_id, part in output_tokens(self.unsteered, places)]
            if places
            else []
            for places in found
        ]

    async def _top_tokens(self, refs: Sequence[SteeringRef | None], count: int) -> list[list[Distribution]]:
        """Return the most likely tokens at each place of the answers in ``texts``; empty where steering is unstable."""
        params = SamplingParams(max_tokens=0, prompt_logprobs=count)
        results: list[list[Distribution]] = []
        requests = [
            self._request((*text.prompt, *text.answer), params, ref, index)
            for index, (ref, text) in enumerate(product(refs, self.texts))
        ]
        read = iter(await self._events(requests))
        for _ in refs:
            answers = [_tops(next(read))[-len(text.answer) :] for text in self.texts]
            results.append([place for places in answers for place in places] if all(answers) else [])
        return results

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Return the tokens of a prompt: as a user message if the model has a chat template, else as plain text."""
        text = self.model.text
        if text.has_chat_template:
            return tuple(text.render_chat([{"role": "user", "content": prompt}]))
        return tuple(text.encode(prompt))

    def _search(self, target: FeatureTarget | VectorTarget) -> StrengthSearch:
        size = self._size(target)
        return StrengthSearch(self.recipe.target, self.recipe.push_cap / size, FIRST_PUSH / size)

    def _size(self, target: FeatureTarget | VectorTarget) -> float:
        """Return the relative size of a step of raw strength 1. Raise SAENotMeasuredError."""
        size = push(1.0, target.scales)
        if not size:
            raise SAENotMeasuredError(
                f"The relative size of {describe_target(_added(target, 1.0))} is unknown, so its strength cannot be "
                "capped. Measure the SAE first."
            )
        return size

    async def _steer(self, target: FeatureTarget | VectorTarget, raw: float) -> SteeringRef:
        """Return the compiled edit that profiles and requests get by default: ``add`` on all tokens."""
        edits = (_added(target, raw),)
        sources = () if self.sae is None else (self.sae.source,)
        version = PublishedVersion(describe_target(edits[0]), 0, fingerprint(edits), edits_to_json(edits), sources)
        return await self.client.compile(SteeringSpec((version,), skip_token_ids=self.model.text.special_token_ids))

    async def _divergences(self, refs: Sequence[SteeringRef]) -> list[float | None]:
        """Return KL(unsteered || steered), the mean over the tokens of all texts; None where steering is unstable."""
        sums: list[float | None] = [0.0] * len(refs)
        num_tokens = sum(len(text.answer) for text in self.texts)
        for text in self.texts:
            requests = [self._scored(text, None, 0, len(refs))]
            requests += [self._scored(text, ref, n, 1) for n, ref in enumerate(refs, 1)]
            events = await self._events(requests)
            found = {event.index: event.kl for some in events for event in some if isinstance(event, DivergenceEvent)}
            for n in range(len(refs)):
                total, kl = sums[n], math.fsum(found.get(n + 1, (math.nan,)))
                sums[n] = None if total is None or not math.isfinite(kl) else total + kl
        return [None if total is None else total / num_tokens for total in sums]

    def _scored(self, text: _Text, ref: SteeringRef | None, index: int, num_partners: int) -> GenerationRequest:
        scoring = Scoring(text.answer, _SCORED, is_reference=ref is not None, num_partners=num_partners)
        return self._request(text.prompt, SamplingParams(max_tokens=0), ref, index, scoring)

    async def _sampled(
        self, feature: MeasuredDirection, ref: SteeringRef | None
    ) -> tuple[float | None, float | None, tuple[Sample, ...]]:
        """Return fluency, the feature's activation and samples at a steering."""
        if ref is None:
            return None, None, ()
        prompts = [self.encode(prompt) for prompt in self.recipe.sample_prompts]
        written = await self._write(prompts, ref, self.recipe.sample_tokens)
        read = await self._reread(prompts, written, feature.index)
        return self._fluency(read), self._relative(_mean_activations(read), feature.target), self._pairs(written)

    def _relative(self, activations: Sequence[float], target: FeatureTarget | VectorTarget) -> float | None:
        """Return the activation of a feature, relative to its maximum. ``activations``: its own only, or of all."""
        if not isinstance(target, FeatureTarget) or not activations or not target.scales.max_activation:
            return None
        return activations[0 if len(activations) == 1 else target.index] / target.scales.max_activation

    def _fluency(self, texts: Sequence[_Reread]) -> float | None:
        """Return the perplexity of tokens over that of the unsteered samples; None without tokens."""
        values = [value for text in texts for value in text.nll]
        if not values or not self.nll:
            return None
        difference = math.fsum(values) / len(values) - math.fsum(self.nll) / len(self.nll)
        return math.exp(min(difference, 100.0))

    def _pairs(self, written: Sequence[_Written | None]) -> tuple[Sample, ...]:
        return tuple(
            Sample(prompt, before.text, after.text)
            for prompt, before, after in zip(self.recipe.sample_prompts, self.before, written, strict=True)
            if after is not None
        )

    async def _write(
        self, prompts: Sequence[tuple[int, ...]], ref: SteeringRef | None, max_tokens: int
    ) -> list[_Written | None]:
        """Generate an answer to each prompt; None where steering is unstable.

        The random numbers depend on the number of the prompt, not on the steering.
        """
        params = SamplingParams(max_tokens=max_tokens, temperature=self.recipe.temperature, seed=self.recipe.seed)
        requests = [self._request(prompt, params, ref, number) for number, prompt in enumerate(prompts)]
        return [_written(events) for events in await self._events(requests)]

    async def _reread(
        self, prompts: Sequence[tuple[int, ...]], texts: Sequence[_Written | None], feature: int | None = None
    ) -> list[_Reread]:
        """Read texts with the unsteered model, and the activations of one feature of the SAE or of all on them.

        Empty texts give nothing.
        """
        captures = () if self.sae is None or self.site is None else (self._capture(self.sae, self.site, feature),)
        requests = [
            replace(
                self._request(prompt, SamplingParams(max_tokens=0), None, index, Scoring(one.token_ids)),
                captures=captures,
            )
            for index, (prompt, one) in enumerate(zip(prompts, texts, strict=True))
            if one is not None and one.token_ids
        ]
        found = [_Reread() for _ in texts]
        for events in await self._events(requests):
            for event in events:
                match event:
                    case ScoresEvent():
                        nll = tuple(-logprob for logprob in event.logprobs)
                        found[event.index] = replace(found[event.index], nll=nll)
                    case CaptureEvent():
                        (read,) = event.captures
                        values = tuple(read.values[0].tolist())
                        found[event.index] = replace(found[event.index], activations=values, num_read=read.num_tokens)
        return found

    def _capture(self, sae: SAERef, site: Site, feature: int | None) -> CaptureSpec:
        """Return the capture of mean activations on the tokens of an answer."""
        return CaptureSpec(
            site=site,
            probe=AllFeatures(sae) if feature is None else FeatureValues(sae, (feature,)),
            phase="generation",
            pooling="mean",
            skip_token_ids=frozenset(self.model.text.special_token_ids),
        )

    async def _output_scores(
        self, features: Sequence[MeasuredDirection], refs: Sequence[SteeringRef | None]
    ) -> list[tuple[float | None, float | None]]:
        """Return the output scores with and without steering, the mean over the openings."""
        requests = [
            self._request(
                tuple(self.model.text.encode(opening)),
                SamplingParams(
                    max_tokens=1, temperature=0.0, logprobs=0, allowed_token_ids=feature.lens, ignore_eos=True
                ),
                ref,
                n * len(OPENINGS) + place,
            )
            for n, (feature, ref) in enumerate(zip(features, refs, strict=True))
            if ref is not None and feature.lens
            for place, opening in enumerate(OPENINGS)
        ]
        vocab_size = len(self.base[0])
        steered = {
            event.index: output_score(event.logprobs[0].logprob, event.logprobs[0].rank, vocab_size)
            for events in await self._events(requests)
            for event in events
            if isinstance(event, TokensEvent) and event.logprobs
        }
        results: list[tuple[float | None, float | None]] = []
        for n, feature in enumerate(features):
            own = [steered.get(n * len(OPENINGS) + place) for place in range(len(OPENINGS))]
            if any(score is None for score in own):
                results.append((None, None))
                continue
            base = [output_score(*min((known[i] for i in feature.lens), key=_rank), vocab_size) for known in self.base]
            results.append((math.fsum(s for s in own if s is not None) / len(own), math.fsum(base) / len(base)))
        return results

    async def _distribution(self, opening: str) -> dict[int, tuple[float, int]]:
        """Return log-probability and rank of every token after a text."""
        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=self.model.vocab_size, ignore_eos=True)
        (events,) = await self._events([self._request(tuple(self.model.text.encode(opening)), params, None, 0)])
        (event,) = (event for event in events if isinstance(event, TokensEvent) and event.logprobs)
        top = event.logprobs[0].top
        return {token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(top, 1)}

    def _request(
        self,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        ref: SteeringRef | None,
        index: int,
        scoring: Scoring | None = None,
    ) -> GenerationRequest:
        return GenerationRequest(
            f"effect/{index}", self.model.record.name, prompt, sampling, ref, index, JOB_PRIORITY, scoring=scoring
        )

    async def _events(self, requests: Sequence[GenerationRequest]) -> list[list[Event]]:
        """Return the events of each request. A pair's sequences are submitted together. Raise EvaluationError."""
        if not requests:
            return []
        size = None if requests[0].scoring is not None and requests[0].scoring.pair else AT_ONCE + 1
        try:
            run = Run(self.client, requests, group_size=size, waits=True, halves=size is not None, tolerated=_UNSTABLE)
            return await run.collect()
        except SequenceFailedError as error:
            raise EvaluationError(f"The engine rejected the measurement ({error.code}): {error}") from error


def _added(target: FeatureTarget | VectorTarget, raw: float) -> EditSpec:
    return EditSpec(target, "add", raw, "raw")


def _tops(events: Iterable[Event]) -> list[Distribution]:
    """Return the most likely tokens at each place of a prompt; empty where steering is unstable."""
    prompts = (event.logprobs for event in events if isinstance(event, PromptLogprobsEvent))
    return [one.top for one in next(prompts, ()) if one is not None]


def _rank(found: tuple[float, int]) -> int:
    return found[1]


def _mean_activations(texts: Sequence[_Reread]) -> tuple[float, ...]:
    """Return the mean over all tokens of the texts; empty without tokens."""
    read = [text for text in texts if text.num_read]
    num_tokens = sum(text.num_read for text in read)
    columns = zip(*(text.activations for text in read), strict=True)
    return tuple(
        math.fsum(mean * text.num_read for mean, text in zip(column, read, strict=True)) / num_tokens
        for column in columns
    )


def _written(events: Iterable[Event]) -> _Written | None:
    token_ids: list[int] = []
    text = ""
    for event in events:
        match event:
            case TokensEvent():
                token_ids.extend(event.token_ids)
                text += event.text
            case FailedEvent():
                return None
    return _Written(tuple(token_ids), text)
