"""The published versions of all profiles, and the registered SAEs, as snapshots in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from core.snapshots import Snapshot
from inference.steering_refs import PublishedVersion, SAESource
from steering.models import SAE, ProfileVersion, SteeringPolicy, SteeringProfile, WatchRule
from steering.profiles.drafts import feature_target, vector_target
from steering.spec.edit import EditSpec
from steering.spec.rendering import edits_to_json, fingerprint
from steering.vectors.probes import LinearProbe

MAX_RECENT = 256
MAX_RECENT_VALUES = 1 << 21  # of vectors: 64 MiB
WATCH = "watch:"
DRAFT = "@draft"
"""Suffix of the name of a draft that is tried out, in place of a version's @number."""


@dataclass(frozen=True, slots=True)
class PublishedProfiles:
    """All published versions by model (primary key), profile name and number; ``policies`` by model, in order."""

    by_model: Mapping[int, Mapping[str, Mapping[int, PublishedVersion]]]
    archived: frozenset[tuple[int, str]] = frozenset()
    policies: Mapping[int, tuple[PublishedVersion, ...]] = field(default_factory=dict)

    def versions(self, model: int, name: str) -> Mapping[int, PublishedVersion]:
        return self.by_model.get(model, {}).get(name, {})

    def is_of_other_model(self, model: int, name: str) -> bool:
        return any(name in profiles for pk, profiles in self.by_model.items() if pk != model)

    def is_archived(self, model: int, name: str) -> bool:
        return (model, name) in self.archived

    def newest(self, model: int) -> list[tuple[str, int]]:
        """Return name and newest number of each profile that is not archived, sorted by name."""
        profiles = self.by_model.get(model, {}).items()
        return sorted((name, max(versions)) for name, versions in profiles if not self.is_archived(model, name))


def _load() -> PublishedProfiles:
    by_model: dict[int, dict[str, dict[int, PublishedVersion]]] = {}
    for row in ProfileVersion.objects.select_related("profile").prefetch_related("saes"):
        versions = by_model.setdefault(row.profile.model_id, {}).setdefault(row.profile.name, {})
        versions[row.number] = version_of(row)
    archived = SteeringProfile.objects.filter(archived_at__isnull=False).values_list("model_id", "name")
    return PublishedProfiles(by_model, frozenset(archived), _policies())


def _policies() -> dict[int, tuple[PublishedVersion, ...]]:
    policies: dict[int, tuple[PublishedVersion, ...]] = {}
    rows = SteeringPolicy.objects.filter(is_active=True).select_related("version__profile")
    for row in rows.prefetch_related("version__saes"):
        model = row.version.profile.model_id
        policies[model] = (*policies.get(model, ()), version_of(row.version))
    caps = WatchRule.objects.filter(is_active=True, action=WatchRule.Action.CAP)
    for rule in caps.select_related("feature__sae__model", "vector__vector_set__model"):
        policies[rule.model.pk] = (*policies.get(rule.model.pk, ()), _cap(rule))
    return policies


def _cap(rule: WatchRule) -> PublishedVersion:
    """Return the edit of a capping watch rule, as a version that applies after all policies."""
    edits = (cap_edit(rule),)
    sources = () if rule.feature is None else (source_of(rule.feature.sae),)
    return PublishedVersion(f"{WATCH}{rule.name}", 0, fingerprint(edits), edits_to_json(edits), sources)


def cap_edit(rule: WatchRule) -> EditSpec:
    """Return the edit that limits the rule's value to its raw threshold."""
    if rule.feature is not None:
        return EditSpec(feature_target(rule.feature), "at_most", rule.raw_threshold, "raw", sink_tokens=True)
    assert rule.vector is not None, "a rule has a feature or a vector"
    product = LinearProbe(rule.bias, rule.sigmoid).product(rule.raw_threshold)
    return EditSpec(vector_target(rule.vector), "projection_cap", product / rule.vector.norm, "raw", sink_tokens=True)


def version_of(row: ProfileVersion) -> PublishedVersion:
    """Convert a row (with its ``profile``) to the form that requests use."""
    saes = tuple(source_of(sae) for sae in row.saes.all())
    return PublishedVersion(row.profile.name, row.number, row.fingerprint, row.edits, saes)


def source_of(sae: SAE) -> SAESource:
    return SAESource(sae.name, sae.checksum, sae.source, sae.revision, sae.subfolder)


def num_values(version: PublishedVersion) -> int:
    """Return how many numbers the vectors of a version have, which is most of its size in memory."""
    edits = version.edits if isinstance(version.edits, list) else []
    return sum(len(edit["vector"]["values"]) for edit in edits if "vector" in edit)


class RecentVersions:
    """A thread-safe LRU cache of inline edits that were parsed to versions, with a limit on the size of vectors."""

    def __init__(self, size: int, max_values: int = MAX_RECENT_VALUES) -> None:
        self._size = size
        self._max_values = max_values
        self._num_values = 0
        self._versions: OrderedDict[tuple[int, str], PublishedVersion] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, model: int, text: str) -> PublishedVersion | None:
        with self._lock:
            if (version := self._versions.get((model, text))) is not None:
                self._versions.move_to_end((model, text))
            return version

    def keep(self, model: int, text: str, version: PublishedVersion) -> None:
        with self._lock:
            if (model, text) not in self._versions:
                self._num_values += num_values(version)
            self._versions[model, text] = version
            while len(self._versions) > self._size or (self._num_values > self._max_values and self._versions):
                _, dropped = self._versions.popitem(last=False)
                self._num_values -= num_values(dropped)


@dataclass(frozen=True, slots=True)
class RegisteredSAEs:
    """All SAEs by model (primary key) and name, as read-only rows.

    ``recent`` caches inline edits for these rows: it is dropped with them when an SAE or its features' figures change.
    """

    by_model: Mapping[int, Mapping[str, SAE]]
    recent: RecentVersions

    def of(self, model: int) -> Mapping[str, SAE]:
        return self.by_model.get(model, {})


def _load_saes() -> RegisteredSAEs:
    by_model: dict[int, dict[str, SAE]] = {}
    for sae in SAE.objects.order_by("pk"):
        by_model.setdefault(sae.model_id, {})[sae.name] = sae
    return RegisteredSAEs(by_model, RecentVersions(MAX_RECENT))


registered_saes: Snapshot[RegisteredSAEs] = Snapshot("steering_saes", _load_saes)
published_profiles: Snapshot[PublishedProfiles] = Snapshot("steering_profiles", _load)
