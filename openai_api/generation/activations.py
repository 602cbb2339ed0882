"""Feature activations at the tokens of a generation: from request fields to captures, and from events to bodies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inference.captures import (
    EVERYWHERE,
    ActivationCapture,
    CaptureSpec,
    FeatureValues,
    Pooling,
    Probe,
    Projections,
    Residuals,
    Span,
    TopFeatures,
)
from inference.client import CaptureEvent, Event, FinishedEvent, TokensEvent
from inference.interventions import Phase, Site
from inference.registry.model_card import ModelCard
from inference.text.model_text import ModelText
from openai_api.backend import get_backend
from openai_api.generation.run import Plan
from openai_api.generation.target import Target
from openai_api.http.errors import invalid
from openai_api.schemas.activations import DEFAULT_TOP_K, CaptureFields, TokenSelection
from openai_api.schemas.bodies import FeatureActivationBody, TokenActivationsBody
from steering.errors import SteeringError
from steering.sae_registry.loaded_sae import LoadedSAE

MAX_VALUES = 200_000  # limit of one response
RESIDUALS = Residuals()

_PHASES: dict[str, Phase] = {"prompt": "prompt", "completion": "generation", "both": "both"}


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """A plan whose sequences capture activations, and the SAE that is used."""

    plan: Plan
    sae: LoadedSAE


async def plan_captures(target: Target, plan: Plan, fields: CaptureFields, *, param: str) -> CapturePlan:
    """Add the captures to the plan. Raises MillmError; ``param`` is the path of ``fields`` in the body, empty for the
    body.

    Choices of one prompt share it, so only the first of them captures the prompt's tokens.
    """
    prefix = f"{param}." if param else ""
    sae = await find_loaded_sae(target.model, fields.sae, param=f"{prefix}sae")
    if fields.features is not None and fields.top_k is not None:
        raise invalid("`features` and `top_k` cannot be combined.", param=f"{prefix}top_k")
    read = read_of(fields, sae, target.model.text.special_token_ids, param=f"{prefix}features")
    others = {"prompt": (), "both": (dataclasses.replace(read, phase="generation"),), "generation": (read,)}[read.phase]
    captures = [others if number % plan.per_prompt else (read,) for number in range(len(plan.prompt_of_sequence))]
    check_size(plan, captures, param=param or ("features" if fields.features else "top_k"))
    return CapturePlan(dataclasses.replace(plan, captures=captures, sae=sae.name), sae)


async def find_loaded_sae(model: ModelCard, name: str | None, *, param: str) -> LoadedSAE:
    try:
        return await get_backend().features().readable(model.record.name, name)
    except SteeringError as error:
        raise error.with_param(param) from None


def read_of(fields: CaptureFields, sae: LoadedSAE, special_token_ids: frozenset[int], *, param: str) -> CaptureSpec:
    worst = max(fields.features or (0,))
    if worst >= sae.encoder.d_sae:
        last = sae.encoder.d_sae - 1
        raise invalid(f"Features of {sae.name} must be 0 to {last}, got {worst}.", param=param, code="invalid_feature")
    count = min(fields.top_k or DEFAULT_TOP_K, sae.encoder.d_sae)
    probe = FeatureValues(sae.ref, tuple(fields.features)) if fields.features else TopFeatures(sae.ref, count)
    return capture_spec(fields, sae.read_site, special_token_ids, probe=probe)


def capture_spec(
    fields: TokenSelection,
    site: Site,
    special_token_ids: frozenset[int],
    *,
    probe: Probe = RESIDUALS,
    pooling: Pooling = "none",
) -> CaptureSpec:
    """Return the capture of the tokens that ``fields`` select."""
    spans = tuple(Span(*ends) for ends in fields.ranges) if fields.ranges else EVERYWHERE
    return CaptureSpec(
        site=site,
        probe=probe,
        pooling=pooling,
        stage=fields.stage or "post",
        phase=_PHASES[fields.phase or "both"],
        spans=spans,
        skip_token_ids=frozenset() if fields.special_tokens else special_token_ids,
    )


def check_size(plan: Plan, captures: Sequence[tuple[CaptureSpec, ...]], *, param: str) -> None:
    total = 0
    for prompt, of_sequence in zip(plan.prompt_of_sequence, captures, strict=True):
        num_prompt = len(plan.prompts[prompt])
        for read in of_sequence:
            width = read.probe.count if isinstance(read.probe, TopFeatures) else len(_asked(read.probe))
            total += width * read.num_places(num_prompt, num_prompt + plan.params[prompt].max_tokens)
    if total > MAX_VALUES:
        raise invalid(
            f"The response could contain {total} activations; the limit is {MAX_VALUES}. Read fewer tokens or "
            "features, or generate less.",
            param=param,
            code="reading_too_large",
        )


class ActivationLog:
    """Captured activations, sent no earlier than their token and never for tokens that a stop string removed."""

    def __init__(self, text: ModelText, plan: Plan) -> None:
        self._text = text
        self._plan = plan
        self._features = next((_asked(captures[0].probe) for captures in plan.captures if captures), ())
        self._prompts = [plan.prompts[prompt] for prompt in plan.prompt_of_sequence]
        self._generated: list[list[int]] = [[] for _ in self._prompts]
        self._waiting: list[list[ActivationCapture]] = [[] for _ in self._prompts]

    def take(self, event: Event) -> list[TokenActivationsBody]:
        """Return what can be sent after the event."""
        if isinstance(event, TokensEvent):
            self._generated[event.index].extend(event.token_ids)
        elif isinstance(event, CaptureEvent):
            own = range(min(1, len(self._plan.captures_of(event.index))))  # others are directions
            self._waiting[event.index].extend(reading for reading in event.captures if reading.number in own)
        elif isinstance(event, FinishedEvent):
            told = list(self._tell(event.index))
            self._waiting[event.index].clear()
            return told
        else:
            return []
        return list(self._tell(event.index))

    def _tell(self, index: int) -> Iterator[TokenActivationsBody]:
        waiting, prompt, generated = self._waiting[index], self._prompts[index], self._generated[index]
        num_known = len(prompt) + len(generated)
        while waiting and (places := waiting[0].places) is not None and places[-1] < num_known:
            reading = waiting.pop(0)
            for row, place in enumerate(places):
                is_prompt = place < len(prompt)
                token = prompt[place] if is_prompt else generated[place - len(prompt)]
                yield {
                    "index": index,
                    "place": place,
                    "phase": "prompt" if is_prompt else "completion",
                    "id": token,
                    "token": self._text.token_text(token),
                    "features": [*self._activations(reading, row)],
                }

    def _activations(self, reading: ActivationCapture, row: int) -> Iterator[FeatureActivationBody]:
        """Return the requested features, or of the strongest those that are active; none of directions."""
        if isinstance(self._plan.captures_of(0)[0].probe, Projections):
            return
        indices = self._features if reading.features is None else reading.features[row].tolist()
        for index, value in zip(indices, reading.values[row].tolist(), strict=True):
            if reading.features is None or value > 0:
                yield {"index": index, "value": value}


def _asked(probe: Probe) -> tuple[int, ...]:
    return probe.features if isinstance(probe, FeatureValues) else ()
