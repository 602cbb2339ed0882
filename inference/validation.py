"""Validate a model's names, device, source, chat template and default sampling, without downloading or loading it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError

from inference.files.sources import ModelSource, SourceError, check_within_roots, local_directory, resolve_source
from inference.text.chat_template import ChatTemplate, ChatTemplateError
from inference.text.generic_templates import template_source

MODEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/@+:-]*[A-Za-z0-9._/@+-])?")
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def name_problems(names: Sequence[str]) -> list[str]:
    problems = [
        f"{name!r} is not a valid model name: use letters, digits and . _ / @ + : - only, start with a letter or "
        "digit, and do not end with a colon."
        for name in names
        if not MODEL_NAME.fullmatch(name) or ".." in name
    ]
    if len(set(names)) < len(names):
        problems.append("A name or alias is listed twice.")
    return problems


def device_problems(device: str) -> list[str]:
    return [] if DEVICE.fullmatch(device) else [f"The device must be auto, cpu, cuda or cuda:N, got {device!r}."]


def source_problems(source: ModelSource) -> list[str]:
    """Return what is wrong with a source. A directory is checked as before loading, a Hub id only for its form."""
    try:
        if local_directory(source.source) is not None:
            resolve_source(source)
    except SourceError as error:
        return [str(error)]
    return []


def within_roots(source: str) -> str:
    """Return a source from a form. Raise ValidationError for a path outside MILLM_MODEL_ROOTS."""
    try:
        check_within_roots(source)
    except SourceError as error:
        raise ValidationError(str(error)) from error
    return source


def template_problems(source: str) -> list[str]:
    try:
        if source:
            ChatTemplate(template_source(source))
    except ChatTemplateError as error:
        return [str(error)]
    return []


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two limits."""

    lower: float
    upper: float
    help: str
    is_integer: bool = False

    def problem(self, value: Any) -> str:
        kind = "an integer" if self.is_integer else "a number"
        kinds = (int,) if self.is_integer else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return f"must be {kind}, got {value!r}"
        if not self.lower <= value <= self.upper:
            return f"must be between {self.lower:g} and {self.upper:g}, got {value!r}"
        return ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that matches a pattern, which ``form`` describes."""

    pattern: str
    form: str
    help: str

    def problem(self, value: Any) -> str:
        is_valid = isinstance(value, str) and re.fullmatch(self.pattern, value, re.DOTALL)
        return "" if is_valid else f"must be {self.form}, got {value!r}"


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false."""

    help: str

    def problem(self, value: Any) -> str:
        return "" if isinstance(value, bool) else f"must be true or false, got {value!r}"


Parameter = Range | Text | Switch
SAMPLING: Mapping[str, Parameter] = {
    "temperature": Range(
        0, 2, "Randomness: 0 always takes the most likely token, 1 follows the model's probabilities."
    ),
    "top_p": Range(1e-6, 1, "Sample from the most likely tokens that together have this probability."),
    "top_k": Range(0, 1_000_000, "Sample from this many of the most likely tokens; 0: all.", is_integer=True),
    "min_p": Range(0, 1, "Exclude tokens less likely than this fraction of the most likely one."),
    "typical_p": Range(1e-6, 1, "Keep tokens about as surprising as expected, up to this probability; 1: all."),
    "presence_penalty": Range(
        -2, 2, "Makes tokens that occurred in the answer less likely; negative values, more likely."
    ),
    "frequency_penalty": Range(-2, 2, "Like presence_penalty, in proportion to how often the token occurred."),
    "repetition_penalty": Range(0.01, 10, "Divides the logits of tokens in prompt or answer; 1: no change."),
    "max_tokens": Range(1, 10_000_000, "Maximum length of an answer if the request sets none.", is_integer=True),
}
_RECOGNITION: Mapping[str, Parameter] = {
    "language": Text(r"[a-z]{2,3}", "a language code such as en", "Language of the audio. Default: detected."),
    "temperature": Range(0, 1, "Randomness of the transcript; 0 retries with more where a window fails."),
}
_DIFFUSION: Mapping[str, Parameter] = {
    "steps": Range(1, 1_000, "Number of steps. More are slower and often better.", is_integer=True),
    "guidance": Range(0, 100, "How closely the result follows the prompt."),
    "negative_prompt": Text(r".{0,2000}", "a text of at most 2000 characters", "What to avoid."),
    "size": Text(r"[1-9]\d{1,4}x[1-9]\d{1,4}", "WIDTHxHEIGHT", "Size in pixels, such as 512x512."),
    "vae_tiling": Switch("Decode in tiles: slower, and needs less memory. Applies at the next load."),
}
PARAMETERS: Mapping[str, Mapping[str, Parameter]] = {
    "generation": SAMPLING,
    "embedding": SAMPLING,
    "classification": SAMPLING,
    "transcription": _RECOGNITION,
    "translation": _RECOGNITION,
    "speech": {
        "voice": Text(r".{1,100}", "the name of a voice", "Voice of requests that name none."),
        "speed": Range(0.25, 4, "Speed of speech; 1 is the model's own."),
        "max_input_chars": Range(1, 1_000_000, "Maximum length of a request's text. Default: 4096.", is_integer=True),
    },
    "image": _DIFFUSION,
    "video": {
        **_DIFFUSION,
        "seconds": Range(1, 120, "Duration.", is_integer=True),
        "fps": Range(1, 120, "Frames per second.", is_integer=True),
    },
}


def parameter_problems(values: Any, kind: str) -> list[str]:
    """Return a sentence for each invalid default parameter of a model of that kind."""
    if not isinstance(values, dict):
        return [f'The default parameters must be a JSON object such as {{"temperature": 0.7}}, got {values!r}.']
    known = PARAMETERS[kind]
    return [found for name, value in values.items() if (found := _problem(name, value, known))]


def _problem(name: str, value: Any, known: Mapping[str, Parameter]) -> str:
    if name not in known:
        return f"{name} is not a parameter of this kind of model. Supported: {', '.join(known)}."
    problem = known[name].problem(value)
    return f"{name} {problem}." if problem else ""
