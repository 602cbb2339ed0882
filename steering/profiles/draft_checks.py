"""Checks of a draft before it is published or tried out."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import MillmError
from steering.errors import InvalidProfileError, NothingToPublishError, SAEUnavailableError
from steering.model_shape import ModelShape, read_model_shape
from steering.models import SAE, FeatureEdit, SteeringProfile
from steering.profiles.drafts import draft_rows, edits_of
from steering.sae_registry.files import installed_place
from steering.spec.edit import DIRECTION_OPERATIONS, EditSpec, FeatureTarget, SAEIdentity, VectorTarget
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.rendering import edits_to_json
from steering.spec.units import MAX_PUSH


def usable_edits(profile: SteeringProfile, rows: Sequence[FeatureEdit]) -> tuple[EditSpec, ...]:
    """Convert the rows, saved or not, to edits that may steer. Raises InvalidProfileError; does not open SAE files."""
    try:
        edits = edits_of(profile.model_id, rows)
    except InvalidSpecError as error:
        raise InvalidProfileError.from_spec(error) from error
    if not edits:
        raise InvalidProfileError(f"The draft of {profile} has no edits; add at least one.")
    _check_places(profile, edits)
    problems = [
        problem
        for number, edit in enumerate(edits)
        for check in (_check_push, _check_direction)
        if (problem := check(edit, f"edits[{number}]"))
    ]
    if problems:
        raise InvalidProfileError.from_spec(InvalidSpecError(problems))
    return edits


def publishable_edits(profile: SteeringProfile) -> tuple[EditSpec, ...]:
    """Return the draft's edits if they may be published. Raises InvalidProfileError; does not open SAE files."""
    edits = usable_edits(profile, draft_rows(profile))
    latest = profile.latest_version
    if latest is not None and latest.edits == edits_to_json(edits):
        raise NothingToPublishError(f"The draft is the same as {latest}; there is nothing to publish.")
    return edits


def needed_saes(profile: SteeringProfile, edits: Sequence[EditSpec]) -> list[SAE]:
    """Return the SAEs of the edits. Raises an error if one is not of the profile's model or lacks its files."""
    targets = {sae for edit in edits for sae in edit.saes}
    return [_usable_sae(profile, target) for target in sorted(targets, key=lambda target: (target.site, target.name))]


def _usable_sae(profile: SteeringProfile, target: SAEIdentity) -> SAE:
    place = {"layer": target.site.layer, "site": target.site.kind}
    sae = SAE.objects.filter(model_id=profile.model_id, checksum=target.checksum, **place).first()
    if sae is None:
        raise InvalidProfileError(f"The SAE {target.name} does not belong to the model {profile.model}.")
    return check_sae_files(sae)


def check_sae_files(sae: SAE) -> SAE:
    """Return the SAE, or raise SAEUnavailableError if its files are missing or changed."""
    try:
        installed_place(sae)
    except MillmError as error:
        raise SAEUnavailableError(f"The SAE {sae} cannot be used: {error}") from error
    return sae


def _check_places(profile: SteeringProfile, edits: Sequence[EditSpec]) -> None:
    """Raise InvalidProfileError if a vector or site does not fit the model. SAEs were checked when they were added."""
    places = [(number, edit) for number, edit in enumerate(edits) if not isinstance(edit.target, FeatureTarget)]
    if not places:
        return
    try:
        shape = read_model_shape(profile.model)
    except MillmError as error:
        raise InvalidProfileError(f"The draft's vectors could not be checked against the model: {error}") from error
    problems = [problem for number, edit in places if (problem := _misfit(edit, shape, f"edits[{number}]"))]
    if problems:
        raise InvalidProfileError.from_spec(InvalidSpecError(problems))


def _misfit(edit: EditSpec, shape: ModelShape, path: str) -> Problem | None:
    site = edit.target.site
    if site.layer >= shape.num_layers:
        return Problem(path, f"The model has layers 0 to {shape.num_layers - 1}, got layer {site.layer}.")
    if isinstance(edit.target, VectorTarget) and shape.width(site) != len(edit.target.values):
        found, width = len(edit.target.values), shape.width(site)
        return Problem(path, f"The vector has {found} values, but the model has {width} at {site.label}.")
    return None


def _check_direction(edit: EditSpec, path: str) -> Problem | None:
    """Refuse a direction that is known to be zero without the weights; the compiler checks the weights."""
    if edit.operation not in DIRECTION_OPERATIONS or edit.target.scales.direction_norm != 0:
        return None
    message = f"The feature's decoder row is zero, so `{edit.operation}` has no direction; remove this edit."
    return Problem(f"{path}.feature.index", message, "invalid_feature")


def _check_push(edit: EditSpec, path: str) -> Problem | None:
    push = edit.push
    if push is None or push <= MAX_PUSH:
        return None
    message = f"The edit would change the residual by {push:.3g} times its norm; the limit is {MAX_PUSH:g}."
    return Problem(f"{path}.strength", message)
