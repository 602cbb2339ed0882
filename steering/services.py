"""All writes of SAEs and profiles, for the admin, commands and the API alike."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q

from audit.models import AuditEvent
from audit.record import record, record_deleted, record_saved, stored_fields
from inference.interventions import SiteKind
from inference.models import LanguageModel
from inference.services import absolute_source
from steering.errors import InUseError, InvalidProfileError
from steering.features.labels import FeatureLabel
from steering.models import (
    SAE,
    Feature,
    FeatureEdit,
    PlainVector,
    ProfileReview,
    ProfileVersion,
    SteeringProfile,
    VersionSAE,
    VersionVector,
    WatchRule,
)
from steering.profiles import reviews
from steering.profiles.draft_checks import needed_saes, publishable_edits
from steering.profiles.drafts import draft_words, record_draft, rows_of
from steering.profiles.snapshot import published_profiles, registered_saes
from steering.sae_registry.files import installed_place
from steering.sae_registry.registration import PreparedSAE, SAEHealth, SAELocation, inspect_sae, prepare_sae
from steering.sae_registry.uploads import delete_upload
from steering.spec.edit import EditSpec
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edits_to_json, fingerprint

_BATCH = 2000


def register_sae(
    *,
    name: str,
    model: LanguageModel,
    location: SAELocation,
    layer: int | None = None,
    site: SiteKind | None = None,
    labels: Sequence[FeatureLabel] = (),
    health: SAEHealth | None = None,
) -> SAE:
    """Check an SAE against its model, read its weights once, and add it with one row per feature.

    Raise InvalidSAEError, IncompatibleSAEError, ValidationError or SourceError if it is refused.
    """
    candidate = inspect_sae(location, model, layer=layer, site=site)
    return save_sae(prepared=prepare_sae(name, model, candidate, labels=labels, health=health))


@transaction.atomic
def save_sae(*, prepared: PreparedSAE) -> SAE:
    """Add an SAE that :func:`steering.sae_registry.registration.prepare_sae` has read and checked."""
    sae = prepared.sae
    sae.save()
    Feature.objects.bulk_create(prepared.features(), batch_size=_BATCH)
    record_saved(sae, before=None, model=sae.model.name)
    registered_saes.invalidate()
    return sae


@transaction.atomic
def rename_sae(*, sae: SAE) -> SAE:
    """Rename an SAE; its other fields describe its files and cannot be changed."""
    before = stored_fields(sae)
    sae.save(update_fields=["name"])
    record_saved(sae, before=before, model=sae.model.name)
    registered_saes.invalidate()
    return sae


@transaction.atomic
def move_sae(*, sae: SAE, location: SAELocation) -> SAE:
    """Update the location of the SAE's files. Raises InvalidSAEError if they are not the same files."""
    before = stored_fields(sae)
    sae.source = absolute_source(location.source)
    sae.revision, sae.subfolder = location.revision, location.subfolder
    installed_place(sae)
    sae.save(update_fields=["source", "revision", "subfolder"])
    record_saved(sae, before=before, model=sae.model.name)
    published_profiles.invalidate()
    registered_saes.invalidate()
    return sae


@transaction.atomic
def delete_sae(*, sae: SAE) -> None:
    """Delete an SAE. Raises InUseError if a version, a draft or a watch rule needs it."""
    check_sae_is_unused(sae=sae)
    record_deleted(sae, model=sae.model.name, detail=f"from {sae.source} {sae.subfolder}".strip())
    source = sae.source
    sae.delete()
    if not SAE.objects.filter(source=source).exists():
        transaction.on_commit(lambda: delete_upload(source))
    registered_saes.invalidate()


def check_sae_is_unused(*, sae: SAE) -> None:
    """Raise InUseError if a version, a draft or a watch rule needs the SAE."""
    if version := ProfileVersion.objects.filter(saes=sae).select_related("profile").first():
        raise InUseError(f"The SAE {sae} is used by the published profile {version}, so it cannot be deleted.")
    place = {"checksum": sae.checksum, "layer": sae.layer, "site": sae.site}
    reconstructed = Q(profile__model=sae.model, vector__contains={"sae": place})
    uses = Q(feature__sae=sae) | Q(gate_feature__sae=sae) | reconstructed
    if edit := FeatureEdit.objects.filter(uses).select_related("profile").first():
        raise InUseError(f"The SAE {sae} is used by the draft of {edit.profile}; remove those edits first.")
    if rule := WatchRule.objects.filter(feature__sae=sae).first():
        raise InUseError(f"The SAE {sae} is used by the watch rule {rule}; remove the rule first.")


@transaction.atomic
def create_profile(
    *,
    name: str,
    model: LanguageModel,
    description: str = "",
    owner: User | None = None,
    edits: Sequence[EditSpec] = (),
) -> SteeringProfile:
    """Create a profile with these edits as its draft."""
    profile = SteeringProfile(name=name, model=model, description=description, owner=owner)
    profile.full_clean(exclude=["owner"])
    profile.save()
    _write_draft(profile, edits)
    record_saved(profile, before=None, user=owner, model=model.name)
    record_draft(profile=profile, before=(), user=owner)
    return profile


@transaction.atomic
def save_profile(*, profile: SteeringProfile, user: User | None = None) -> SteeringProfile:
    """Save a new profile, or the name and description of an existing one. Edits are saved separately."""
    before = stored_fields(profile)
    profile.save()
    record_saved(profile, before=before, user=user, model=profile.model.name, leave_out={"updated_at"})
    return profile


@transaction.atomic
def delete_profile(*, profile: SteeringProfile, user: User | None = None) -> None:
    """Delete a profile. Raises ProtectedError if it has versions."""
    record_deleted(profile, user=user, model=profile.model.name)
    profile.delete()


@transaction.atomic
def replace_draft(*, profile: SteeringProfile, edits: Sequence[EditSpec]) -> None:
    """Replace the draft by these edits. Raises InvalidProfileError if the model lacks their features."""
    before = draft_words(profile)
    _write_draft(profile, edits)
    record_draft(profile=profile, before=before)


def _write_draft(profile: SteeringProfile, edits: Sequence[EditSpec]) -> None:
    try:
        rows = rows_of(profile, edits)
    except InvalidSpecError as error:
        raise InvalidProfileError.from_spec(error) from error
    profile.edits.all().delete()
    FeatureEdit.objects.bulk_create(rows)
    profile.save(update_fields=["updated_at"])


@transaction.atomic
def duplicate_profile(*, profile: SteeringProfile, name: str, user: User | None = None) -> SteeringProfile:
    """Create a profile of the same model with the same draft and no versions."""
    copy = SteeringProfile(name=name, model=profile.model, description=profile.description, owner=user)
    copy.full_clean(exclude=["owner"])
    copy.save()
    edits = list(profile.edits.all())
    for edit in edits:
        edit.pk, edit.profile = None, copy
    FeatureEdit.objects.bulk_create(edits)
    record_saved(copy, before=None, user=user, model=copy.model.name, detail=f"a copy of {profile}")
    return copy


@transaction.atomic
def new_draft_from(*, version: ProfileVersion) -> SteeringProfile:
    """Replace the profile's draft by the version."""
    replace_draft(profile=version.profile, edits=parse_edits(version.edits))
    return version.profile


@transaction.atomic
def publish_profile(
    *, profile: SteeringProfile, user: User | None = None, note: str = "", needs_review: bool | None = None
) -> ProfileVersion:
    """Publish the draft as the newest version, which new requests that name the profile use.

    Raises InvalidProfileError if the draft is invalid, SAEUnavailableError if weights are missing, and, with
    ``needs_review`` (by default the setting MILLM_PROFILE_REVIEW), ReviewError without an approval of these edits.
    """
    profile = SteeringProfile.objects.select_for_update().get(pk=profile.pk)
    edits = publishable_edits(profile)
    if reviews.is_needed() if needs_review is None else needs_review:
        approval = reviews.check_reviewed(profile=profile, edits=edits)
        ProfileReview.objects.filter(pk=approval.pk).update(state=ProfileReview.State.PUBLISHED)
    saes = needed_saes(profile, edits)
    latest = profile.latest_version
    version = ProfileVersion(
        profile=profile,
        number=latest.number + 1 if latest else 1,
        edits=edits_to_json(edits),
        fingerprint=fingerprint(edits),
        note=note,
        published_by=user,
    )
    version.save()
    VersionSAE.objects.bulk_create([VersionSAE(version=version, sae=sae) for sae in saes])
    vectors = PlainVector.objects.filter(edits__profile=profile).distinct()
    VersionVector.objects.bulk_create([VersionVector(version=version, vector=vector) for vector in vectors])
    record(AuditEvent.Action.PUBLISH, version, user=user, model=profile.model.name, detail=note)
    published_profiles.invalidate()
    return version
