"""Checks whether the SAE files of published versions are still available."""

from __future__ import annotations

from core.errors import MillmError
from inference.files.sources import local_directory
from inference.steering_refs import PublishedVersion, SAESource
from steering.models import ProfileVersion, SteeringProfile
from steering.profiles.snapshot import published_profiles
from steering.saes.place import sae_place
from steering.saes.preview import recognise


def profile_problem(profile: SteeringProfile) -> str:
    """Return why requests that name the profile are refused, or an empty text."""
    versions = published_profiles.get().versions(profile.model_id, profile.name)
    return _problem(versions[max(versions)]) if versions else ""


def version_problem(version: ProfileVersion) -> str:
    """Return why requests that name the version are refused, or an empty text."""
    profile = version.profile
    found = published_profiles.get().versions(profile.model_id, profile.name).get(version.number)
    return _problem(found) if found is not None else ""


def _problem(version: PublishedVersion) -> str:
    return " ".join(filter(None, map(_missing, version.saes)))


def _missing(sae: SAESource) -> str:
    """Check that the files exist, without opening them. Files of a Hub repository are downloaded on demand."""
    try:
        folder = local_directory(sae.source)
        if folder is not None:
            place = sae_place(folder, sae.subfolder)
            place.path(recognise(place).weights_file(place))
    except MillmError as error:
        return f"Requests are refused: the SAE {sae.name} cannot be used. {error}"
    return ""
