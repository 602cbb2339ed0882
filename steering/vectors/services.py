"""Read, check, save and delete vector sets; called by the admin, commands and jobs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from django.contrib.auth.models import User
from django.db import transaction

from audit.models import AuditEvent
from audit.record import record, record_saved, stored_fields
from inference.interventions import Site
from inference.models import LanguageModel
from steering.errors import IncompatibleSAEError, InUseError
from steering.model_shape import read_model_shape
from steering.models import FeatureEdit, PlainVector, VectorSet, VersionVector, WatchRule
from steering.spec.units import MAX_STRENGTH

if TYPE_CHECKING:
    from steering.saes.vector_files import VectorFile


@dataclass(frozen=True, slots=True)
class NewVector:
    """A vector ``[d]`` to be saved. ``reference_norm`` is the mean residual norm at the site, None if unknown."""

    site: Site
    values: tuple[float, ...]
    reference_norm: float | None = None


def read_vector_file(path: Path, *, layer: int | None = None) -> tuple[NewVector, ...]:
    """Return the vectors of a file, or only the one of a layer.

    Raise InvalidSAEError if the file holds no usable vectors, or names no layer and none is given.
    """
    from steering.saes.errors import InvalidSAEError
    from steering.saes.vector_files import read_vectors  # numpy and torch come with it

    file: VectorFile = read_vectors(path)
    vectors = (file.at(layer),) if layer is not None else file.vectors
    found = []
    for vector in vectors:
        if vector.site is None:
            raise InvalidSAEError(f"{path.name} does not name the layer of its vector; give the layer.")
        found.append(NewVector(vector.site, tuple(vector.values.tolist())))
    return tuple(found)


def check_vectors(model: LanguageModel, vectors: Sequence[NewVector]) -> None:
    """Raise IncompatibleSAEError if layer, width or values do not fit the model."""
    shape = read_model_shape(model)
    for vector in vectors:
        if not 0 <= vector.site.layer < shape.num_layers:
            raise IncompatibleSAEError(
                f"{model} has layers 0 to {shape.num_layers - 1}, got layer {vector.site.layer}."
            )
        found, width = len(vector.values), shape.width(vector.site)
        if found != width:
            raise IncompatibleSAEError(
                f"The vector has {found} values, but {model} has {width} at {vector.site.label}."
            )
        if not all(abs(value) <= MAX_STRENGTH for value in vector.values):  # false for NaN too
            raise IncompatibleSAEError(
                f"The vector at {vector.site.label} contains values that are not finite or too large."
            )


@transaction.atomic
def save_vectors(
    *,
    name: str,
    model: LanguageModel,
    vectors: Sequence[NewVector],
    origin: str,
    checksum: str = "",
    description: str = "",
    user: User | None = None,
) -> VectorSet:
    """Save a new set. Raise ValidationError for an invalid or taken name, IncompatibleSAEError for another model."""
    check_vectors(model, vectors)
    rows = VectorSet(
        name=name, model=model, origin=origin[:300], description=description, created_by=user,
        checksum=checksum or digest(vectors),
    )  # fmt: skip
    rows.full_clean(exclude=["created_by"])
    rows.save()
    PlainVector.objects.bulk_create([_row(rows, vector) for vector in vectors])
    detail = f"added: {len(vectors)} from {origin}"
    record(AuditEvent.Action.VECTORS, rows, user=user, model=model.name, detail=detail)
    return rows


@transaction.atomic
def describe_vectors(*, vector_set: VectorSet, user: User | None = None) -> None:
    """Save the description of a set."""
    before = stored_fields(vector_set)
    vector_set.save(update_fields=["description"])
    record_saved(vector_set, before=before, user=user, model=vector_set.model.name)


@transaction.atomic
def delete_vectors(*, vector_set: VectorSet, user: User | None = None) -> None:
    """Delete a set. Raise InUseError if a version, a draft or a watch rule uses one of its vectors."""
    check_vectors_are_unused(vector_set=vector_set)
    record(AuditEvent.Action.VECTORS, vector_set, user=user, model=vector_set.model.name, detail="deleted")
    vector_set.delete()


def check_vectors_are_unused(*, vector_set: VectorSet) -> None:
    """Raise InUseError if a version, a draft or a watch rule uses one of the vectors; the message names it."""
    link = VersionVector.objects.filter(vector__vector_set=vector_set).select_related("version__profile").first()
    if link is not None:
        message = (
            f"The vectors {vector_set} are used by the published profile {link.version}, so they cannot be deleted."
        )
        raise InUseError(message)
    edit = FeatureEdit.objects.filter(plain_vector__vector_set=vector_set).select_related("profile").first()
    if edit is not None:
        raise InUseError(f"The vectors {vector_set} are used by the draft of {edit.profile}; remove those edits first.")
    if rule := WatchRule.objects.filter(vector__vector_set=vector_set).first():
        raise InUseError(f"The vectors {vector_set} are used by the watch rule {rule}; remove the rule first.")


def digest(vectors: Sequence[NewVector]) -> str:
    """Return the SHA-256 of sites and values."""
    parts = (str(vector.site).encode() + PlainVector.pack(vector.values) for vector in vectors)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _row(rows: VectorSet, vector: NewVector) -> PlainVector:
    return PlainVector(
        vector_set=rows, layer=vector.site.layer, site=vector.site.kind, data=PlainVector.pack(vector.values),
        norm=math.hypot(*vector.values), reference_norm=vector.reference_norm,
    )  # fmt: skip
