"""Describe a draft on the pages of its profile: its state, what publishing would do, and who may review it."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from steering.errors import InvalidProfileError, NothingToPublishError, ReviewError
from steering.models import SAE, FeatureEdit, ProfileReview, SteeringProfile
from steering.profiles import reviews
from steering.profiles.display import changes_from_latest, edits_html
from steering.profiles.draft_checks import publishable_edits
from steering.spec.rendering import fingerprint


def free_name(profile: SteeringProfile) -> str:
    """Return a name for a copy that no profile of the model has."""
    taken = set(SteeringProfile.objects.filter(model_id=profile.model_id).values_list("name", flat=True))
    stem = profile.name[:90]
    number = next(number for number in range(1, len(taken) + 2) if _copy_name(stem, number) not in taken)
    return _copy_name(stem, number)


def _copy_name(stem: str, number: int) -> str:
    return f"{stem}-copy" if number == 1 else f"{stem}-copy-{number}"


def draft_state(profile: SteeringProfile) -> str:
    """Describe which version is live and whether the draft differs from it."""
    if profile.archived_at is not None:
        return "Archived. Requests can't use it."
    latest = profile.latest_version
    if latest is None:
        return "Not published yet. Requests can't use it."
    live = f"Live: v{latest.number}."
    try:
        edits = publishable_edits(profile)
    except NothingToPublishError:
        return f"{live} No unpublished changes."
    except InvalidProfileError as error:
        return f"{live} The draft can't be published: {error.message}"
    if fingerprint(edits) == latest.fingerprint:  # labels or measured numbers are newer than the version
        return f"{live} The draft has the same effect."
    return f"{live} The draft has unpublished changes."


def publish_context(profile: SteeringProfile) -> dict[str, Any]:
    """Return what would be published, or the reason why it cannot be."""
    try:
        edits = publishable_edits(profile)
    except InvalidProfileError as error:
        return {"problems": error.problems or (error.message,)}
    context = {
        "edits": edits_html(edits),
        "latest": profile.latest_version,
        "changes": changes_from_latest(profile, edits),
    }
    if reviews.is_needed():
        try:
            reviews.check_reviewed(profile=profile, edits=edits)
        except ReviewError as error:
            return context | {"problems": (error.message,)}
    return context


def may_decide(user: User, profile: SteeringProfile, review: ProfileReview | None) -> bool:
    if review is None or reviews.current_fingerprint(profile) != review.fingerprint:
        return False
    try:
        reviews.check_may_decide(review=review, user=user)
    except ReviewError:
        return False
    return True


def readable_sae(profile: SteeringProfile | None) -> str:
    """Return the name of the SAE that a preview captures features with: one that the draft uses, if possible."""
    if profile is None:
        return ""
    saes = SAE.objects.filter(model=profile.model_id).order_by("pk")
    edited = FeatureEdit.objects.filter(profile=profile, feature__isnull=False).values("feature__sae")
    sae = saes.filter(pk__in=edited).first() or saes.first()
    return sae.name if sae else ""
