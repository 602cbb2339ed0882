"""The job that computes vectors from pairs of prompts: read both sides, compute directions, save them as a set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from inference.interventions import SITE_KINDS, Site, SiteKind
from inference.models import LanguageModel
from jobs.models import Job
from jobs.running_job import RunningJob
from jobs.services import enqueue_job
from steering.errors import IncompatibleSAEError
from steering.exchange.documents import read_document
from steering.model_shape import read_model_shape
from steering.models import VectorSet
from steering.residuals import EnginePromptReader, PromptReader, ordinary_tokens
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.fields import Fields, describe
from steering.vectors.directions import METHODS, Method, direction
from steering.vectors.services import NewVector, save_vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_PAIRS = 1000
MAX_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class PromptPair:
    positive: str
    negative: str


def read_pairs(data: bytes, name: str) -> tuple[PromptPair, ...]:
    """Read a JSON list of ``{"positive", "negative"}``. Raise InvalidSpecError with every invalid field."""
    return parse_pairs(read_document(data, name).value)


def parse_pairs(value: object) -> tuple[PromptPair, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_PAIRS:
        message = f"Expected a list of 1 to {MAX_PAIRS} pairs, got {describe(value)}."
        raise InvalidSpecError([Problem("pairs", message)])
    problems: list[Problem] = []
    pairs = [_pair(Fields(item, f"pairs[{number}]", problems)) for number, item in enumerate(value)]
    if problems:
        raise InvalidSpecError(problems)
    return tuple(pairs)


def _pair(fields: Fields) -> PromptPair:
    pair = PromptPair(fields.text("positive", max_length=MAX_CHARS), fields.text("negative", max_length=MAX_CHARS))
    fields.refuse_others()
    for name, text in (("positive", pair.positive), ("negative", pair.negative)):
        if not text.strip() and isinstance(fields.value(name), str):  # others were reported
            fields.report(name, "The prompt must not be empty.")
    return pair


KIND = "steering.extract"
MAX_SITES = 64
PAIRS_AT_ONCE = 8
Position = Literal["last", "mean"]
POSITIONS: tuple[Position, ...] = ("last", "mean")


@dataclass(frozen=True, slots=True)
class ExtractionParams:
    """Parameters of an extraction. ``position`` selects the last token of a prompt, or the mean over its tokens.

    Special tokens are ignored, and attention sinks are ignored in means.
    """

    name: str
    model: LanguageModel
    pairs: tuple[PromptPair, ...]
    sites: tuple[Site, ...]
    method: Method = "mean_difference"
    position: Position = "last"
    chat: bool = True
    description: str = ""


def request_extraction(*, params: ExtractionParams, user: User | None = None) -> Job:
    """Queue the job. Raise ValidationError or IncompatibleSAEError for parameters that cannot work."""
    check_params(params)
    job_params = {
        "name": params.name,
        "model": params.model.name,
        "pairs": [{"positive": pair.positive, "negative": pair.negative} for pair in params.pairs],
        "sites": [[site.layer, site.kind] for site in params.sites],
        "method": params.method,
        "position": params.position,
        "chat": params.chat,
        "description": params.description,
    }
    return enqueue_job(kind=KIND, params=job_params, owner=user, title=f"Vectors {params.name} of {params.model}")


def check_params(params: ExtractionParams) -> None:
    VectorSet(name=params.name, model=params.model).full_clean(exclude=["created_by", "origin", "checksum"])
    if params.method not in METHODS or params.position not in POSITIONS:
        raise ValidationError(
            f"`method` must be one of {', '.join(METHODS)}, and `position` one of {', '.join(POSITIONS)}."
        )
    if not 1 <= len(params.sites) <= MAX_SITES or len(set(params.sites)) < len(params.sites):
        raise ValidationError(f"Expected 1 to {MAX_SITES} different sites, got {len(params.sites)}.")
    if params.method == "pca" and len(params.pairs) < 2:
        raise ValidationError("`pca` needs at least two pairs; use `mean_difference` for one.")
    shape = read_model_shape(params.model)
    for site in params.sites:
        if site.kind not in SITE_KINDS or not 0 <= site.layer < shape.num_layers:
            raise IncompatibleSAEError(
                f"{params.model} has layers 0 to {shape.num_layers - 1}, got layer {site.layer}."
            )


def run_extraction(job: RunningJob, reader: PromptReader | None = None) -> dict[str, Any]:
    """Run the job. After a crash it may run again: a set that was saved before is found by the id of the job."""
    origin = f"job {job.id}"
    saved = VectorSet.objects.filter(origin__startswith=origin).first()
    if saved is None:
        params = _stored_params(job.params)
        vectors = _extract(job, params, reader or EnginePromptReader())
        user = User.objects.filter(pk=job.owner_id).first() if job.owner_id else None
        text = f"{origin}: {params.method} of {len(params.pairs)} pairs, {params.position} token"
        saved = save_vectors(
            name=params.name,
            model=params.model,
            vectors=vectors,
            origin=text,
            description=params.description,
            user=user,
        )
    norms = {str(vector.place): vector.norm for vector in saved.vectors.defer("data")}
    return {"vector_set": saved.name, "norms": norms}


def _stored_params(stored: dict[str, Any]) -> ExtractionParams:
    return ExtractionParams(
        name=stored["name"],
        model=LanguageModel.objects.get(name=stored["model"]),
        pairs=parse_pairs(stored["pairs"]),
        sites=tuple(Site(int(layer), cast("SiteKind", kind)) for layer, kind in stored["sites"]),
        method=stored["method"],
        position=stored["position"],
        chat=bool(stored["chat"]),
        description=stored["description"],
    )


@dataclass(slots=True)
class _Sides:
    """Residuals at one site, one row per pair, and the sum of norms of tokens that are not attention sinks."""

    positive: list[NDArray[np.float32]]
    negative: list[NDArray[np.float32]]
    norm_sum: float = 0.0
    num_tokens: int = 0


def _extract(job: RunningJob, params: ExtractionParams, reader: PromptReader) -> list[NewVector]:
    sides = [_Sides([], []) for _ in params.sites]
    for start in range(0, len(params.pairs), PAIRS_AT_ONCE):
        job.progress(start, len(params.pairs), "reading prompts")
        pairs = params.pairs[start : start + PAIRS_AT_ONCE]
        prompts = [prompt for pair in pairs for prompt in (pair.positive, pair.negative)]
        found = reader.read(params.model.name, prompts, params.sites, chat=params.chat)
        for number, side in enumerate(sides):
            _add(side, [one.sites[number] for one in found], params.position)
    job.progress(len(params.pairs), len(params.pairs), "computing directions")
    return [_vector(site, side, params.method) for site, side in zip(params.sites, sides, strict=True)]


def _add(side: _Sides, rows: Sequence[NDArray[np.float32]], position: Position) -> None:
    """Add residuals ``[tokens, d]`` of prompts, positive and negative ones alternating."""
    for number, values in enumerate(rows):
        if not len(values):
            raise ValueError(
                f"The prompt {number // 2} has only special tokens, or only a first token, so nothing can be captured "
                "from it."
            )
        is_ordinary, norms = ordinary_tokens(values)
        side.norm_sum += float(norms.sum())
        side.num_tokens += len(norms)
        one = values[-1] if position == "last" else values[is_ordinary].mean(axis=0)
        (side.positive if number % 2 == 0 else side.negative).append(one)


def _vector(site: Site, side: _Sides, method: Method) -> NewVector:
    import numpy as np

    found = direction(np.stack(side.positive), np.stack(side.negative), method)
    return NewVector(site, tuple(found.astype(np.float32).tolist()), side.norm_sum / side.num_tokens)
