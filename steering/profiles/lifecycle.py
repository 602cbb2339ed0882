"""Rolls back, archives and unarchives profiles; manages policies and default profiles. Every change is audited."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from audit.models import AuditEvent
from audit.record import record
from inference.models import LanguageModel
from inference.services import save_model
from steering.errors import InUseError, InvalidProfileError, NothingToPublishError
from steering.models import ProfileVersion, SteeringPolicy, SteeringProfile, VersionSAE, VersionVector
from steering.profiles.draft_checks import check_sae_files
from steering.profiles.drafts import draft_edits
from steering.profiles.snapshot import published_profiles
from steering.services import new_draft_from
from steering.spec.errors import InvalidSpecError
from steering.spec.rendering import fingerprint

Action = AuditEvent.Action
FREE_NORMALIZATIONS = ("none", "expected_average_only_in")  # the second is folded into the weights


@transaction.atomic
def roll_back(
    *, version: ProfileVersion, user: User | None = None, note: str = "", replaces_draft: bool | None = None
) -> ProfileVersion:
    """Publish the content of ``version`` again, as the newest version.

    ``replaces_draft`` replaces the draft too, so that the next publish does not undo the rollback; by default, this
    happens if the draft has no unpublished changes.

    Raises NothingToPublishError if the newest version has the same effect, and SAEUnavailableError if weights are
    missing.
    """
    profile = SteeringProfile.objects.select_for_update().get(pk=version.profile_id)
    latest = profile.latest_version
    assert latest is not None
    if latest.fingerprint == version.fingerprint:
        raise NothingToPublishError(f"{latest} has the same effect as {version}; there is nothing to roll back.")
    if replaces_draft is None:
        replaces_draft = not has_unpublished_changes(profile=profile)
    saes = [check_sae_files(sae) for sae in version.saes.all()]
    again = ProfileVersion.objects.create(
        profile=profile,
        number=latest.number + 1,
        edits=version.edits,
        fingerprint=version.fingerprint,
        note=note or f"Rolled back to {version}.",
        published_by=user,
    )
    VersionSAE.objects.bulk_create([VersionSAE(version=again, sae=sae) for sae in saes])
    links = version.vector_links.select_related("vector")
    VersionVector.objects.bulk_create([VersionVector(version=again, vector=link.vector) for link in links])
    record(Action.ROLL_BACK, again, user=user, model=profile.model.name, detail=f"to {version}; {again.note}")
    if replaces_draft:
        new_draft_from(version=again)
    published_profiles.invalidate()
    return again


def has_unpublished_changes(*, profile: SteeringProfile) -> bool:
    """Return whether the draft's effect differs from the newest version's; True if the draft is invalid."""
    latest = profile.latest_version
    try:
        return latest is None or fingerprint(draft_edits(profile)) != latest.fingerprint
    except InvalidSpecError:
        return True


@transaction.atomic
def archive_profile(*, profile: SteeringProfile, user: User | None = None) -> None:
    """Archive the profile: requests can't use it. Raises InUseError if it is its model's default or a policy."""
    profile = SteeringProfile.objects.select_for_update().get(pk=profile.pk)
    if profile.archived_at is not None:
        return
    check_profile_is_unused(profile=profile)
    profile.archived_at = timezone.now()
    profile.save(update_fields=["archived_at"])
    record(Action.ARCHIVE, profile, user=user, model=profile.model.name)
    published_profiles.invalidate()


@transaction.atomic
def unarchive_profile(*, profile: SteeringProfile, user: User | None = None) -> None:
    profile = SteeringProfile.objects.select_for_update().get(pk=profile.pk)
    if profile.archived_at is None:
        return
    profile.archived_at = None
    profile.save(update_fields=["archived_at"])
    record(Action.UNARCHIVE, profile, user=user, model=profile.model.name)
    published_profiles.invalidate()


def check_profile_is_unused(*, profile: SteeringProfile) -> None:
    """Raise InUseError if the profile is its model's default or a policy."""
    if profile.model.default_profile.partition("@")[0] == profile.name:
        raise InUseError(f"{profile} is the default of the model {profile.model}; choose another default first.")
    if policy := SteeringPolicy.objects.filter(version__profile=profile).select_related("version__profile").first():
        raise InUseError(f"{policy.version} is a policy of the model {profile.model}; remove the policy first.")


@transaction.atomic
def save_policy(*, policy: SteeringPolicy, user: User | None = None) -> SteeringPolicy:
    """Create or update a policy. Raises InvalidProfileError if its version cannot be composed after others."""
    check_can_be_policy(version=policy.version)
    is_new = policy._state.adding
    if is_new:
        policy.created_by = user
    policy.save()
    state = "active" if policy.is_active else "inactive"
    detail = f"{'added' if is_new else 'changed'}: {state}, position {policy.position}; {policy.reason}"
    model = policy.version.profile.model.name
    record(Action.POLICY, policy.version, user=user, model=model, detail=detail)
    published_profiles.invalidate()
    return policy


@transaction.atomic
def remove_policy(*, policy: SteeringPolicy, user: User | None = None) -> None:
    model = policy.version.profile.model.name
    record(Action.POLICY, policy.version, user=user, model=model, detail=f"removed; its reason was: {policy.reason}")
    policy.delete()
    published_profiles.invalidate()


def check_can_be_policy(*, version: ProfileVersion) -> None:
    """Raise InvalidProfileError if the version cannot apply after other steering; see :mod:`steering.composition`."""
    if version.profile.archived_at is not None:
        raise InvalidProfileError(f"{version.profile} is archived; unarchive it first.")
    if sae := version.saes.exclude(normalization__in=FREE_NORMALIZATIONS).first():
        raise InvalidProfileError(
            f"{version} cannot be a policy: the SAE {sae} normalises its input ({sae.normalization}), so its effect "
            "would depend on each request's own steering."
        )
    if any(edit.get("operation") == "reconstruct" for edit in version.edits):
        raise InvalidProfileError(f"{version} cannot be a policy: it replaces a residual by its reconstruction.")
    if any(edit.get("special_tokens") for edit in version.edits):
        raise InvalidProfileError(f"{version} cannot be a policy: it steers special tokens.")


@transaction.atomic
def set_default_profile(*, model: LanguageModel, reference: str, user: User | None = None) -> LanguageModel:
    """Set the profile (name, name@number, or empty) of requests that name none."""
    model = LanguageModel.objects.select_for_update().get(pk=model.pk)
    check_reference(model=model, reference=reference)
    before, model.default_profile = model.default_profile, reference
    save_model(model)
    record_default(model=model, before=before, user=user)
    return model


def record_default(*, model: LanguageModel, before: str, user: User | None) -> None:
    if before != model.default_profile:
        detail = f"{before or 'none'} → {model.default_profile or 'none'}"
        record(Action.DEFAULT, f"default of {model}", user=user, model=model.name, detail=detail)


def default_choices(*, model: LanguageModel) -> list[tuple[str, str]]:
    """Return the choices of the model's default profile, including the current one if it is no longer usable."""
    versions = ProfileVersion.objects.filter(profile__model=model, profile__archived_at=None)
    rows = versions.order_by("profile__name", "-number").values_list("profile__name", "number")
    choices = [("", "none")]
    for name, number in rows:
        if (name, f"{name}: the newest version") not in choices:
            choices.append((name, f"{name}: the latest version"))
        choices.append((f"{name}@{number}", f"{name}@{number}: always this version"))
    if model.default_profile not in dict(choices):
        choices.append((model.default_profile, f"{model.default_profile}: no longer available"))
    return choices


def check_reference(*, model: LanguageModel, reference: str) -> None:
    """Raise ValidationError unless requests to the model can name the profile."""
    if not reference:
        return
    name, _, number = reference.partition("@")
    versions = ProfileVersion.objects.filter(profile__model=model, profile__name=name, profile__archived_at=None)
    if number:
        versions = versions.filter(number=int(number) if number.isdecimal() else 0)
    if not versions.exists():
        raise ValidationError(f"The model {model} has no published profile {reference} that is not archived.")
