"""The residuals of one text at some sites, captured as the text is read (and steered) by the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from inference.captures import MAX_VALUES, ActivationCapture, CaptureSpec, Span, num_values
from inference.client import CaptureEvent, Event, GenerationRequest, Request, SamplingParams, Scoring
from inference.interventions import Site
from inference.runs import SequenceFailedError
from inference.segments import ANSWER_ONLY
from inference.text.dialects.dialect import answer_segment_rules
from inference.text.model_text import thinking_state
from openai_api.analysis.schemas import AnalysedTextRequest
from openai_api.endpoints.completions import encode_prompts
from openai_api.generation.prompt import prompt_ids
from openai_api.generation.run import collect_events
from openai_api.generation.sampling import check_token_ids
from openai_api.generation.stats import GenerationStats, millm_body
from openai_api.generation.target import Target
from openai_api.http.call import Call
from openai_api.http.errors import context_length_exceeded, invalid
from openai_api.schemas.bodies import MillmBody

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOO_LARGE = "reading_too_large"
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class TokenText:
    """A prompt and the tokens after it. ``param``: the field of the request that a message about it names."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    is_chat: bool
    param: str

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.prompt, *self.completion)


@dataclass(frozen=True, slots=True)
class CapturedText:
    """``residuals``: those at each site ``[places, d]``. ``steered``: the sites at which steering acted."""

    residuals: tuple[NDArray[np.float32], ...]
    steered: frozenset[Site]
    stats: GenerationStats
    millm: MillmBody | None


async def read_text(request: AnalysedTextRequest, target: Target) -> TokenText:
    """Return the tokens. Raises MillmError 400."""
    model, completion = target.model, request.completion_ids or []
    check_token_ids(completion, model.vocab_size, param="completion_ids", code="invalid_prompt")
    if request.input is not None:
        (prompt,) = await encode_prompts(model, [request.input], param="input")
    else:
        prompt = await prompt_ids(model.text, request.chat())
    text = TokenText(
        tuple(prompt),
        tuple(completion),
        is_chat=request.input is None,
        param="messages" if request.input is None else "input",
    )
    if len(text.ids) > model.max_model_len:
        raise context_length_exceeded(
            limit=model.max_model_len, prompt=len(prompt), completion=len(completion), param=text.param
        )
    return text


async def capture(
    call: Call, target: Target, text: TokenText, sites: Sequence[Site], spans: Sequence[Span]
) -> CapturedText:
    """Run the text, and return the residuals after steering. Raises MillmError."""
    specs = tuple(CaptureSpec(site=site, spans=tuple(spans)) for site in sites)
    width = target.model.sites[sites[0]]
    if (size := num_values(specs, width, len(text.prompt), len(text.ids))) > MAX_VALUES:
        message = f"The analysis needs {size} values of the residuals; the limit is {MAX_VALUES}. Use a shorter text."
        raise invalid(message, param=text.param, code=TOO_LARGE)
    request = _request(call, target, text, specs)
    stats = GenerationStats([len(text.prompt)], [0])
    await call.reserve_tokens(len(text.ids))
    found: list[ActivationCapture] = []

    def note(event: Event) -> None:
        stats.note(event)
        if isinstance(event, CaptureEvent):
            found.extend(event.captures)

    try:
        await collect_events(call, [request], observe=note)
    except SequenceFailedError as error:
        raise error.with_param(text.param) if error.status == 400 else error from None
    finally:
        call.outcome = stats.outcome()
    return CapturedText(
        tuple(np.concatenate([one.values for one in found if one.number == number]) for number in range(len(specs))),
        frozenset(effect.site for receipt in stats.receipts for effect in receipt.effects if effect.num_tokens),
        stats,
        None if target.profile is None else millm_body(target.profile, stats.receipts),
    )


def _request(call: Call, target: Target, text: TokenText, specs: tuple[CaptureSpec, ...]) -> GenerationRequest:
    model = target.model
    rules = ANSWER_ONLY
    if text.completion:
        thinking = thinking_state(model.text, text.prompt)
        rules = answer_segment_rules(model.text.dialect, thinking, "none" if text.is_chat else "marked")
    request = GenerationRequest(
        f"{call.id}/text",
        model.record.name,
        text.prompt,
        SamplingParams(max_tokens=0),
        target.profile.steering if target.profile else None,
        priority=call.priority,
        captures=specs,
        segment_rules=rules,
        cache_salt=call.cache_salt(model.record),
    )
    if not text.completion:
        return request
    # The last token of a continuation is not run, so one that does not matter follows.
    return dataclasses.replace(request, scoring=Scoring((*text.completion, text.completion[-1])))


async def analyse(call: Call, request: Request, kind: type[E]) -> E:
    """Return the result of an analysis. Raises MillmError."""
    (events,) = await collect_events(call, [request], observe=lambda _: None)
    return next(event for event in events if isinstance(event, kind))


def place_text(target: Target, ids: Sequence[int]) -> list[str]:
    """Return the text of each token."""
    return [target.model.text.token_text(one) for one in ids]
