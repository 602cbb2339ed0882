"""Which profiles, versions, evaluations, policies and vectors a user may see, in the admin and in the API.

The *name* of a published profile is public, because requests name it. Its draft, versions and reports are visible to
its owner, unless they are shared.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet

from inference.permissions import Viewer, seen_by
from steering.models import Evaluation, PlainVector, ProfileVersion, SteeringPolicy, SteeringProfile, VectorSet

SEE_ALL_PROFILES = "steering.see_all_steeringprofiles"
SEE_ALL_VECTORS = "steering.see_all_vectorsets"


def visible_profiles(user: Viewer, rows: QuerySet[SteeringProfile] | None = None) -> QuerySet[SteeringProfile]:
    found = SteeringProfile.objects.all() if rows is None else rows
    return seen_by(found, user, owner="owner", see_all=SEE_ALL_PROFILES)


def visible_versions(user: Viewer, rows: QuerySet[ProfileVersion] | None = None) -> QuerySet[ProfileVersion]:
    found: QuerySet[ProfileVersion] = ProfileVersion.objects.all() if rows is None else rows
    if user.has_perm(SEE_ALL_PROFILES):
        return found
    return found.filter(profile__in=_keys_of_profiles(user))


def visible_evaluations(user: Viewer, rows: QuerySet[Evaluation] | None = None) -> QuerySet[Evaluation]:
    """Return evaluations whose profiles are all visible; a comparison has two. Those of inline edits are visible to
    the user who created them.
    """
    found = Evaluation.objects.all() if rows is None else rows
    if user.has_perm(SEE_ALL_PROFILES):
        return found
    profiles = _keys_of_profiles(user)
    other = Q(other=None) | Q(other__profile__in=profiles)
    own = Q(version=None, profile=None, created_by=user.pk) if user.pk is not None else Q(pk=None)
    return found.filter(other, Q(version__profile__in=profiles) | Q(profile__in=profiles) | own)


def visible_policies(user: Viewer, rows: QuerySet[SteeringPolicy] | None = None) -> QuerySet[SteeringPolicy]:
    found = SteeringPolicy.objects.all() if rows is None else rows
    if user.has_perm(SEE_ALL_PROFILES):
        return found
    return found.filter(version__profile__in=_keys_of_profiles(user))


def visible_vector_sets(user: Viewer, rows: QuerySet[VectorSet] | None = None) -> QuerySet[VectorSet]:
    found = VectorSet.objects.all() if rows is None else rows
    return seen_by(found, user, owner="created_by", see_all=SEE_ALL_VECTORS)


def visible_vectors(user: Viewer, rows: QuerySet[PlainVector] | None = None) -> QuerySet[PlainVector]:
    found = PlainVector.objects.all() if rows is None else rows
    if user.has_perm(SEE_ALL_VECTORS):
        return found
    return found.filter(vector_set__in=visible_vector_sets(user).order_by().values("pk"))


def _keys_of_profiles(user: Viewer) -> QuerySet[SteeringProfile, Any]:
    return visible_profiles(user).order_by().values("pk")
