"""Voices: read recordings and embeddings, save and delete with their audit events."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

from django.contrib.auth.models import User
from django.db import transaction

from audit.models import AuditEvent
from audit.record import Changes, changes_of, record, record_deleted, stored_fields
from core.errors import MillmError
from inference.registry.media import NEEDS_EXTRA, MediaUnavailableError
from inference.registry.registry import get_registry
from media.backend import is_installed
from media.decoder.process import RATE, decoded_audio
from media.messages import ModelFacts
from media.models import MAX_EMBEDDING, Voice

MAX_RECORDING_S = 30
_DATA = ("embedding", "reference")  # the audit trail has their sizes


@transaction.atomic
def save_voice(*, voice: Voice, user: User | None = None) -> Voice:
    """Validate and save a voice. Raise ValidationError."""
    before = stored_fields(voice)
    voice.full_clean()
    voice.save()
    changes = changes_of(voice, before, leave_out=_DATA) | _data_changes(voice, before or {})
    action = AuditEvent.Action.ADD if before is None else AuditEvent.Action.CHANGE
    if before is None or changes:
        record(action, voice, user=user, model=voice.model.name, changes=changes)
    return voice


@transaction.atomic
def delete_voices(*, voices: Iterable[Voice], user: User | None = None) -> None:
    for voice in voices:
        record_deleted(voice, user=user, model=voice.model.name)
        voice.delete()


def _data_changes(voice: Voice, before: dict[str, object]) -> Changes:
    found: Changes = {}
    for name in _DATA:
        old, new = before.get(name), getattr(voice, name)
        if _plain(old) != _plain(new):
            found[name] = [_size(old), _size(new)]
    return found


def _plain(data: object) -> object:
    return bytes(data) if isinstance(data, memoryview) else data or None


def _size(data: object) -> str | None:
    """Return how much data there is."""
    if not data:
        return None
    return f"{len(data)} numbers" if isinstance(data, list) else f"{len(bytes(data))} bytes"  # type: ignore[call-overload]


def read_recording(path: Path) -> bytes:
    """Return a recording in any format as FLAC. Raise DecodeError, and MediaUnavailableError without the packages."""
    if not is_installed():
        raise MediaUnavailableError(NEEDS_EXTRA)
    from media.worker.encoding import encode_audio  # its packages are an extra

    with decoded_audio(path, max_seconds=MAX_RECORDING_S) as audio:
        return encode_audio(audio.read(0, audio.num_samples), RATE, "flac")


def read_embedding(data: bytes, name: str) -> list[float]:
    """Return the vector in a file: NumPy's format, or a JSON list. Raise MillmError."""
    try:
        return _npy_vector(data) if name.lower().endswith(".npy") else _json_vector(data)
    except (ValueError, OverflowError, RecursionError):
        message = (
            f"The file must contain one vector of up to {MAX_EMBEDDING} finite numbers, as .npy or as a JSON list."
        )
        raise MillmError(message) from None


def _json_vector(data: bytes) -> list[float]:
    value = json.loads(data)
    if not isinstance(value, list) or not all(isinstance(each, int | float) for each in value):
        raise ValueError
    return _checked([float(each) for each in value])


def _npy_vector(data: bytes) -> list[float]:
    """Read an array of one row. Its header is checked first, because NumPy would allocate any size that it claims."""
    import numpy as np

    stream = BytesIO(data)
    major, _ = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if math.prod(shape) > MAX_EMBEDDING or dtype.kind not in "fiu":
        raise ValueError
    return _checked([float(each) for each in np.load(BytesIO(data), allow_pickle=False).reshape(-1)])


def _checked(vector: list[float]) -> list[float]:
    if not 0 < len(vector) <= MAX_EMBEDDING or not all(map(math.isfinite, vector)):
        raise ValueError
    return vector


def speakers_of(model: str) -> tuple[str, ...]:
    """Return the speakers of a speech model, or nothing if it is not loaded."""
    facts = get_registry().media_facts(model)
    return facts.speakers if isinstance(facts, ModelFacts) else ()
