"""Whether requests can use what was published: the files of its SAEs have to be there still."""

from __future__ import annotations

from inference.files.sources import SourceError, local_directory
from steering.models import ProfileVersion, SteeringProfile
from steering.profiles.snapshot import PublishedVersion, SAESource, published_profiles
from steering.saes.errors import InvalidSAEError
from steering.saes.place import sae_place
from steering.saes.preview import recognise


def profile_problem(profile: SteeringProfile) -> str:
    """Why requests that name the profile are refused; empty where nothing is known against it."""
    versions = published_profiles.get().versions(profile.model_id, profile.name)
    return _problem(versions[max(versions)]) if versions else ""


def version_problem(version: ProfileVersion) -> str:
    """The same of one version."""
    profile = version.profile
    found = published_profiles.get().versions(profile.model_id, profile.name).get(version.number)
    return _problem(found) if found is not None else ""


def _problem(version: PublishedVersion) -> str:
    return " ".join(filter(None, map(_missing, version.saes)))


def _missing(sae: SAESource) -> str:
    """Looks for the files, not into them. What is not here of a Hub repository is fetched when it is needed."""
    try:
        folder = local_directory(sae.source)
        if folder is not None:
            place = sae_place(folder, sae.subfolder)
            place.path(recognise(place).weights_file(place))
    except (InvalidSAEError, SourceError) as error:
        return f"Requests are refused: the SAE {sae.name} cannot be used. {error}"
    return ""
