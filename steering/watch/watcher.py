"""Watch rules on the request path: the snapshot of rules, their captures in the engine, and matches for the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache

from core.database import own_connection
from core.snapshots import Snapshot
from inference.captures import ActivationCapture, CaptureSpec, FeatureValues, Projections, Stage
from inference.interventions import Site
from inference.registry.records import model_table
from steering.errors import SteeringError
from steering.models import SAE, WatchRule
from steering.sae_registry.loaded_sae import LoadedSAE, load_registered_sae
from steering.vectors.probes import LinearProbe

logger = logging.getLogger(__name__)

RETRY_S = 30.0  # before loading a missing SAE is retried


@dataclass(frozen=True, slots=True)
class WatchedFeature:
    """A feature, by the name of its SAE."""

    sae: str
    index: int

    def value(self, captured: float) -> float:
        return captured

    def captured(self, value: float) -> float:
        """Return the captured number that has this value."""
        return value


@dataclass(frozen=True, slots=True)
class WatchedVector:
    """A vector at a site; ``name`` is that of its set with the site, ``data`` its values in float32."""

    name: str
    site: Site
    data: bytes
    probe: LinearProbe

    def value(self, captured: float) -> float:
        return self.probe.value(captured)

    def captured(self, value: float) -> float:
        """Return the product of residual and vector that has this value."""
        return self.probe.product(value)


@dataclass(frozen=True, slots=True)
class ActiveRule:
    """An active rule. ``threshold`` is a value of the target, in raw units."""

    pk: int
    name: str
    action: str
    target: WatchedFeature | WatchedVector
    threshold: float

    @property
    def stage(self) -> Stage:
        """The stage at which values are captured: after steering for alerts, before it for caps."""
        return "pre" if self.action == WatchRule.Action.CAP else "post"

    @property
    def limit(self) -> float:
        """The captured number above which the rule matches."""
        return self.target.captured(self.threshold)


WatchedModels = Mapping[int, tuple[ActiveRule, ...]]
"""Rules by their model's primary key."""


def _load() -> WatchedModels:
    watched: dict[int, tuple[ActiveRule, ...]] = {}
    rows = WatchRule.objects.filter(is_active=True)
    for row in rows.select_related("feature__sae__model", "vector__vector_set__model"):
        rule = ActiveRule(row.pk, row.name, row.action, _target(row), row.raw_threshold)
        watched[row.model.pk] = (*watched.get(row.model.pk, ()), rule)
    return watched


def _target(row: WatchRule) -> WatchedFeature | WatchedVector:
    if row.feature is not None:
        return WatchedFeature(row.feature.sae.name, row.feature.index)
    assert row.vector is not None, "a rule has a feature or a vector"
    return WatchedVector(str(row.vector), row.vector.place, bytes(row.vector.data), LinearProbe(row.bias, row.sigmoid))


watched_models: Snapshot[WatchedModels] = Snapshot("steering_watch_rules", _load)


@dataclass(frozen=True, slots=True)
class Watch:
    """The captures of a model's rules: ``rules[i]`` are those of ``captures[i]``, by the place of their values."""

    captures: tuple[CaptureSpec, ...] = ()
    rules: tuple[tuple[ActiveRule, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.captures)


NO_WATCH = Watch()


@dataclass(frozen=True, slots=True)
class WatchMatch:
    """A rule whose value exceeded its threshold in a request: the largest value, and the number of tokens."""

    rule: ActiveRule
    value: float
    num_tokens: int
    place: int
    in_prompt: bool
    at: datetime
    model: str = ""
    profile: str = ""
    request_id: str = ""


@dataclass(slots=True)
class WatchMatches:
    """Collects the matches of a request's sequences."""

    watch: Watch
    _found: dict[str, WatchMatch] = field(default_factory=dict)

    def note(self, number: int, reading: ActivationCapture, *, num_prompt: int, now: datetime) -> None:
        """Add the values of one capture; ``number`` is its index in the watch."""
        assert reading.places is not None, "watch rules do not pool"
        for column, rule in enumerate(self.watch.rules[number]):
            values, limit = reading.values[:, column].tolist(), rule.limit
            for place, captured in zip(reading.places, values, strict=True):
                if captured > limit:
                    self._note(rule, rule.target.value(captured), place, in_prompt=place < num_prompt, now=now)

    @property
    def findings(self) -> tuple[WatchMatch, ...]:
        return tuple(self._found.values())

    def _note(self, rule: ActiveRule, value: float, place: int, *, in_prompt: bool, now: datetime) -> None:
        before = self._found.get(rule.name)
        count = 1 if before is None else before.num_tokens + 1
        if before is None or value > before.value:
            self._found[rule.name] = WatchMatch(rule, value, count, place, in_prompt, now)
        else:
            self._found[rule.name] = WatchMatch(rule, before.value, count, before.place, before.in_prompt, before.at)


@dataclass(frozen=True, slots=True)
class _CachedWatch:
    """A cached watch for its rules; if an SAE was missing, it expires at ``retry_at`` (monotonic seconds)."""

    rules: tuple[ActiveRule, ...]
    watch: Watch
    retry_at: float


class Watcher:
    """Builds the captures of each model's rules, and caches them until the rules change."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._cached: dict[tuple[int, frozenset[int]], _CachedWatch] = {}

    async def watch(self, model: str, special_token_ids: frozenset[int]) -> Watch:
        """Return the watch of a registered model. Rules whose SAE is missing are skipped, and their rows say why."""
        pk = model_table.get().find(model).pk
        rules = (await watched_models.aget()).get(pk, ())
        if not rules:
            return NO_WATCH
        made = self._cached.get((pk, special_token_ids))
        if made is None or made.rules != rules or self._now() >= made.retry_at:
            watch = await asyncio.to_thread(_build_watch, rules, special_token_ids)
            is_whole = sum(map(len, watch.rules)) == len(rules)
            made = _CachedWatch(rules, watch, float("inf") if is_whole else self._now() + RETRY_S)
            self._cached[pk, special_token_ids] = made
        return made.watch


def _build_watch(rules: tuple[ActiveRule, ...], special_token_ids: frozenset[int]) -> Watch:
    """Capture the features of each SAE, and the vectors of each site, together."""
    features: dict[tuple[str, Stage], list[ActiveRule]] = {}
    vectors: dict[tuple[Site, Stage], list[ActiveRule]] = {}
    for rule in rules:
        if isinstance(rule.target, WatchedFeature):
            features.setdefault((rule.target.sae, rule.stage), []).append(rule)
        else:
            vectors.setdefault((rule.target.site, rule.stage), []).append(rule)
    specs = [(_vector_capture(site, group), stage, group) for (site, stage), group in vectors.items()]
    with own_connection():
        for (name, stage), group in features.items():
            if (sae := _loaded(name, group)) is not None:
                specs.append((_feature_capture(sae, group), stage, group))
    captures = tuple(
        replace(spec, stage=stage, skip_token_ids=special_token_ids, passes_over_cached=True)
        for spec, stage, _ in specs
    )
    return Watch(captures, tuple(tuple(group) for _, _, group in specs))


def _loaded(name: str, rules: Iterable[ActiveRule]) -> LoadedSAE | None:
    problem, sae = "", None
    try:
        sae = load_registered_sae(SAE.objects.get(name=name))
    except (SteeringError, SAE.DoesNotExist) as error:
        problem = f"The rule is not active: {error}"
        logger.error("The watch rules of the SAE %s are not active: %s", name, error)
    stale = WatchRule.objects.filter(pk__in=[rule.pk for rule in rules]).exclude(problem=problem[:500])
    stale.update(problem=problem[:500])
    return sae


def _feature_capture(sae: LoadedSAE, rules: list[ActiveRule]) -> CaptureSpec:
    indices = tuple(rule.target.index for rule in rules if isinstance(rule.target, WatchedFeature))
    probe = FeatureValues(sae.ref, indices, tuple(rule.limit for rule in rules))
    return CaptureSpec(site=sae.read_site, probe=probe)


def _vector_capture(site: Site, rules: list[ActiveRule]) -> CaptureSpec:
    data = b"".join(rule.target.data for rule in rules if isinstance(rule.target, WatchedVector))
    return CaptureSpec(site=site, probe=Projections(data, len(rules), tuple(rule.limit for rule in rules)))


@cache
def get_watcher() -> Watcher:
    """Return the watcher of this process."""
    return Watcher()


async def watch(model: str, *, special_token_ids: frozenset[int]) -> Watch:
    """See :meth:`Watcher.watch`."""
    return await get_watcher().watch(model, special_token_ids)
