"""The formats that can be imported, in the order of detection. At most one recognises a document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steering.exchange import goodfire, millm_v1, mistudio, neuronpedia, own
from steering.exchange.documents import Document, refusal
from steering.exchange.lm_eval import NAME as LM_EVAL
from steering.exchange.lm_eval import LmEvalReader, recognises
from steering.exchange.plan import ImportContext, ImportedProfile
from steering.models import SAE
from steering.profiles.compilation import get_compiler
from steering.profiles.snapshot import source_of


def bias_projection(sae: SAE, feature: int) -> float:
    """Return the decoder bias projected on the feature's unit row. Raise InvalidSAEError or SourceError if files are
    missing."""
    loaded = get_compiler().sae(source_of(sae))
    row = loaded.decoder_row(feature).double()
    return float(loaded.decoder_bias().double() @ row / row.norm())


@dataclass(frozen=True, slots=True)
class ProfileFormat:
    name: str
    recognises: Callable[[object], bool]
    read: Callable[[object, ImportContext], list[ImportedProfile]]


FORMATS = (
    ProfileFormat(own.NAME, own.recognises, own.read),
    ProfileFormat(mistudio.NAME, mistudio.recognises, mistudio.read),
    ProfileFormat(goodfire.NAME, goodfire.recognises, goodfire.read),
    ProfileFormat(neuronpedia.NAME, neuronpedia.recognises, neuronpedia.read),
    ProfileFormat(millm_v1.NAME, millm_v1.recognises, millm_v1.read),
    ProfileFormat(LM_EVAL, recognises, LmEvalReader(bias_projection).read),
)


def format_of(document: Document) -> ProfileFormat:
    """Return the format of a document. Raise InvalidSpecError if no format recognises it."""
    for known in FORMATS:
        if known.recognises(document.value):
            return known
    names = ", ".join(known.name for known in FORMATS)
    raise refusal(f"The format of the file is not supported. Supported: {names}.", "unknown_format")
