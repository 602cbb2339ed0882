"""Reviews of drafts before publishing, required by MILLM_PROFILE_REVIEW: users cannot review their own requests.

An approval applies to one effect, by its fingerprint. It lapses when anyone changes the draft.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from audit.models import AuditEvent
from audit.record import record
from steering.errors import ReviewError
from steering.models import ProfileReview, SteeringProfile
from steering.profiles.draft_checks import publishable_edits
from steering.profiles.drafts import draft_edits
from steering.spec.edit import EditSpec
from steering.spec.errors import InvalidSpecError
from steering.spec.rendering import fingerprint

PERMISSION = "steering.review_steeringprofile"
State = ProfileReview.State


def is_needed() -> bool:
    return bool(settings.MILLM_PROFILE_REVIEW)


@transaction.atomic
def request_review(*, profile: SteeringProfile, user: User, note: str = "") -> ProfileReview:
    """Request a review, replacing an open request. Raises InvalidProfileError if the draft cannot be published."""
    profile = SteeringProfile.objects.select_for_update().get(pk=profile.pk)
    edits = publishable_edits(profile)
    profile.reviews.filter(state=State.OPEN).update(state=State.WITHDRAWN)
    review = ProfileReview.objects.create(profile=profile, fingerprint=fingerprint(edits), note=note, requested_by=user)
    _record(review, user, f"requested; {note}")
    return review


@transaction.atomic
def decide_review(*, review: ProfileReview, user: User, is_approved: bool, note: str = "") -> ProfileReview:
    """Approve or reject a review. Raises ReviewError if ``user`` may not decide it, or a rejection has no note."""
    profile = SteeringProfile.objects.select_for_update().get(pk=review.profile_id)
    review = ProfileReview.objects.select_related("profile__model").get(pk=review.pk)
    check_may_decide(review=review, user=user)
    if current_fingerprint(profile) != review.fingerprint:
        raise ReviewError(f"The draft of {profile} has changed since the review was requested; request a new one.")
    if not is_approved and not note.strip():
        raise ReviewError("A rejection needs a note about what should change.")
    review.state = State.APPROVED if is_approved else State.REJECTED
    review.decided_by, review.decided_at, review.decision_note = user, timezone.now(), note
    review.save()
    _record(review, user, f"{review.get_state_display()}; {note}")
    return review


def check_may_decide(*, review: ProfileReview, user: User) -> None:
    """Raise ReviewError if ``user`` may not decide the review."""
    if review.state != State.OPEN:
        raise ReviewError(f"The {review}; it can no longer be decided.")
    if review.requested_by_id == user.pk:
        raise ReviewError("You can't decide a review that you requested; another user must.")
    if not user.has_perm(PERMISSION):
        raise ReviewError(f"{user} does not have permission to review profiles ({PERMISSION}).")


def check_reviewed(*, profile: SteeringProfile, edits: Sequence[EditSpec]) -> ProfileReview:
    """Return the approval of these edits, or raise ReviewError."""
    review = profile.reviews.first()
    if review is not None and review.state == State.APPROVED and review.fingerprint == fingerprint(edits):
        return review
    raise ReviewError(f"{profile} needs a review before it is published: {state_text(review, fingerprint(edits))}")


def state_text(review: ProfileReview | None, draft: str | None) -> str:
    """Describe the state of a review; ``draft`` is the draft's fingerprint, None if the draft is invalid."""
    if review is None or review.state in (State.PUBLISHED, State.WITHDRAWN):
        return "no review was requested."
    if review.fingerprint != draft:
        return f"the draft has changed since the review of {review.requested_by} ({review.get_state_display()})."
    if review.state == State.OPEN:
        return "the requested review is still open."
    by = f"{review.get_state_display()} by {review.decided_by}"
    return f"{by}: {review.decision_note}" if review.decision_note else f"{by}."


def current_fingerprint(profile: SteeringProfile) -> str | None:
    """Return the fingerprint of the current draft, or None if it is invalid."""
    try:
        return fingerprint(draft_edits(profile))
    except InvalidSpecError:
        return None


def _record(review: ProfileReview, user: User, detail: str) -> None:
    model = review.profile.model.name
    record(AuditEvent.Action.REVIEW, review.profile, user=user, model=model, detail=detail.removesuffix("; "))
