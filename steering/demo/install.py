"""Installs the included demo: model, SAE with labelled features, published profiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import connection, transaction

from core.errors import MillmError
from inference.models import LanguageModel
from inference.services import absolute_source, register_model, save_model
from steering import services
from steering.features.label_files import read_labels
from steering.models import SAE, SteeringProfile
from steering.profiles.drafts import draft_edits, feature_target
from steering.profiles.snapshot import registered_saes
from steering.sae_registry.files import locate_sae, place_checksum
from steering.sae_registry.jobs import AddedSAE, add_sae
from steering.sae_registry.registration import SAELocation, inspect_sae, prepare_sae, read_health
from steering.spec.edit import EditSpec
from steering.spec.errors import InvalidSpecError
from steering.spec.rendering import fingerprint

ARTIFACTS = Path(__file__).with_name("artifacts")
MODEL_NAME = "demo"
SAE_NAME = "demo-sae"
SAMPLING = {"temperature": 0.8}
_LOCK = 0x6D694C44  # "miLD": an arbitrary number that no other program uses on this database


@dataclass(frozen=True, slots=True)
class InstalledDemo:
    """The result of an installation. ``published`` lists the profile versions that this run published; it is empty if
    all existed already."""

    model: LanguageModel
    sae: SAE
    published: tuple[str, ...]


class DemoError(MillmError):
    """The demo could not be installed; the message says why."""


def install_demo(artifacts: Path = ARTIFACTS, *, measures: bool = False, owner: User | None = None) -> InstalledDemo:
    """Install the demo from ``artifacts``. Fast, and without loading torch, if it is already installed.

    Users' changes are kept: settings of the model, labels, and profiles whose draft was edited or that were published.
    Concurrent runs take turns. Raise DemoError without any changes. With ``measures``, a job of ``owner`` computes
    histograms and top examples of a newly installed SAE.
    """
    if not (artifacts / "profiles.json").is_file():
        raise DemoError(f"The demo's files are missing in {artifacts}. Run `manage.py train_demo` to create them.")
    try:
        return _install(artifacts, partial(add_sae, measures=measures, owner=owner))
    except ValidationError as error:
        raise DemoError(" ".join(error.messages)) from error
    except MillmError as error:
        raise DemoError(str(error)) from error


@transaction.atomic
def _install(artifacts: Path, add: Callable[..., AddedSAE]) -> InstalledDemo:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    model = _install_model(artifacts / "model")
    sae = _install_sae(model, artifacts, add)
    entries = json.loads((artifacts / "profiles.json").read_text("utf-8"))
    published = [label for entry in entries if (label := _install_profile(model, sae, entry))]
    return InstalledDemo(model, sae, tuple(published))


def _install_model(folder: Path) -> LanguageModel:
    model = LanguageModel.objects.filter(name=MODEL_NAME).first()
    if model is None:
        return register_model(
            name=MODEL_NAME,
            source=str(folder),
            is_default=not LanguageModel.objects.filter(kind=LanguageModel.Kind.GENERATION, is_default=True).exists(),
            autoload=True,
            default_sampling=SAMPLING,
        )
    if model.source != absolute_source(str(folder)):  # the project's folder was moved
        model.source = absolute_source(str(folder))
        save_model(model)
    return model


def _install_sae(model: LanguageModel, artifacts: Path, add: Callable[..., AddedSAE]) -> SAE:
    location = SAELocation(str(artifacts / "sae"))
    sae = SAE.objects.filter(name=SAE_NAME).first()
    if sae is not None and sae.checksum == place_checksum(locate_sae(str(artifacts / "sae"))):
        moved = sae.source != absolute_source(location.source)
        return services.move_sae(sae=sae, location=location) if moved else sae
    if sae is not None:
        _retire(sae)
    candidate = inspect_sae(location, model)
    labels = read_labels(artifacts / "features.json", candidate.config.math.d_sae)
    health = read_health(artifacts / "health.json")
    prepared = prepare_sae(SAE_NAME, model, candidate, labels=labels, health=health)
    return add(prepared=prepared).sae


def _retire(sae: SAE) -> None:
    """Rename an older SAE of the demo. Profile versions that use it can no longer be applied."""
    sae.name = f"{SAE_NAME}-{sae.checksum[:8]}"
    sae.save(update_fields=["name"])
    registered_saes.invalidate()


def _install_profile(model: LanguageModel, sae: SAE, entry: Mapping[str, Any]) -> str | None:
    """Install a profile and return the label of the published version; None if nothing changed."""
    edits = _edits(sae, entry)
    profile = SteeringProfile.objects.filter(model=model, name=entry["name"]).first()
    if profile is None:
        profile = services.create_profile(
            name=entry["name"], model=model, description=entry.get("description", ""), edits=edits
        )
    elif _is_touched(profile) or _has_effect(profile, edits):
        return None
    else:
        services.replace_draft(profile=profile, edits=edits)
    # The included profiles were reviewed with the project.
    return str(services.publish_profile(profile=profile, note=entry.get("note", ""), needs_review=False))


def _edits(sae: SAE, entry: Mapping[str, Any]) -> list[EditSpec]:
    indices = {edit["feature"] for edit in entry["edits"]}
    features = {feature.index: feature for feature in sae.features.filter(index__in=indices).select_related("sae")}
    return [
        EditSpec(
            target=feature_target(features[edit["feature"]]),
            operation=edit["operation"],
            strength=edit["strength"],
            unit=edit["unit"],
            phase=edit["phase"],
        )
        for edit in entry["edits"]
    ]


def _is_touched(profile: SteeringProfile) -> bool:
    """Return whether a user edited the draft or published a version since the installation."""
    latest = profile.latest_version
    if latest is None or profile.versions.filter(published_by__isnull=False).exists():
        return True
    try:
        return fingerprint(draft_edits(profile)) != latest.fingerprint
    except InvalidSpecError:
        return True


def _has_effect(profile: SteeringProfile, edits: list[EditSpec]) -> bool:
    latest = profile.latest_version
    return latest is not None and latest.fingerprint == fingerprint(edits)
