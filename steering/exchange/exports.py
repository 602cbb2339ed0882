"""Export profiles in miLLM's own format."""

from __future__ import annotations

from typing import Any

from inference.files.sources import is_local
from inference.models import LanguageModel
from steering.errors import InvalidProfileError
from steering.exchange.own import FORMAT_VERSION, KIND
from steering.models import ProfileVersion, SteeringProfile
from steering.profiles.drafts import draft_edits
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edits_to_json, fingerprint


def draft_document(profile: SteeringProfile) -> dict[str, Any]:
    """Return the draft, with the current values that its strengths refer to. Raise InvalidProfileError if it is
    invalid."""
    try:
        edits = draft_edits(profile)
        content = {"version": None, "fingerprint": fingerprint(edits), "edits": edits_to_json(edits)}
    except InvalidSpecError as error:
        raise InvalidProfileError.from_spec(error) from error
    return _document(profile, content)


def version_document(version: ProfileVersion) -> dict[str, Any]:
    """Return a published version, exactly as requests use it."""
    edits = parse_edits(version.edits)
    published = {"number": version.number, "note": version.note, "published_at": version.published_at.isoformat()}
    content = {"version": published, "fingerprint": version.fingerprint, "edits": edits_to_json(edits)}
    return _document(version.profile, content)


def file_name(profile: SteeringProfile, number: int | None = None) -> str:
    return f"{profile.name}{'-draft' if number is None else f'@{number}'}.json"


def _document(profile: SteeringProfile, content: dict[str, Any]) -> dict[str, Any]:
    about = {"name": profile.name, "description": profile.description, "model": _model(profile.model)}
    return {"format": KIND, "format_version": FORMAT_VERSION, "profiles": [about | content]}


def _model(model: LanguageModel) -> dict[str, str]:
    """Return the source of the model, unless it is a local directory."""
    return {"name": model.name} | ({} if is_local(model.source) else {"source": model.source})
