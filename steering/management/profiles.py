"""Look up profiles and versions by the names that commands accept."""

from __future__ import annotations

from django.core.management.base import CommandError

from steering.models import ProfileVersion, SteeringProfile


def find_profile(name: str, model: str) -> SteeringProfile:
    """Return the profile. Raise CommandError if the model has none of that name."""
    profile = SteeringProfile.objects.filter(name=name, model__name=model).select_related("model").first()
    if profile is None:
        raise CommandError(f"The model {model} has no profile {name}.")
    return profile


def find_version(reference: str, model: str) -> ProfileVersion:
    """Return the version ``name@number``, or the latest of ``name``. Raise CommandError if there is none."""
    name, _, number = reference.partition("@")
    profile = find_profile(name, model)
    versions = profile.versions.select_related("profile__model").order_by("-number")
    if number:
        versions = versions.filter(number=int(number) if number.isdecimal() and len(number) < 10 else 0)
    version = versions.first()
    if version is None:
        raise CommandError(f"The profile {name} has no published version{f' {number}' if number else ' yet'}.")
    return version
