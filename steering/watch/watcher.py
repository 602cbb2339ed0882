"""Watch rules on the request path: the snapshot of rules, their captures in the engine, and matches for the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

from django.db import close_old_connections, connection

from core.snapshots import Snapshot
from inference.captures import ActivationCapture, CaptureSpec, FeatureValues, Stage
from inference.registry.records import model_table
from steering.errors import SteeringError
from steering.models import SAE, WatchRule
from steering.sae_registry.loaded_sae import LoadedSAE, load_registered_sae

logger = logging.getLogger(__name__)

RETRY_S = 30.0  # before loading a missing SAE is retried


@dataclass(frozen=True, slots=True)
class ActiveRule:
    """An active rule. ``threshold`` is an activation; ``sae`` is the name of the feature's SAE."""

    pk: int
    name: str
    action: str
    sae: str
    index: int
    threshold: float

    @property
    def stage(self) -> Stage:
        """The stage at which activations are captured: after steering for alerts, before it for caps."""
        return "pre" if self.action == WatchRule.Action.CAP else "post"


WatchedModels = Mapping[int, tuple[ActiveRule, ...]]
"""Rules by their model's primary key."""


def _load() -> WatchedModels:
    watched: dict[int, tuple[ActiveRule, ...]] = {}
    for row in WatchRule.objects.filter(is_active=True).select_related("feature__sae"):
        sae = row.feature.sae
        rule = ActiveRule(row.pk, row.name, row.action, sae.name, row.feature.index, row.raw_threshold)
        watched[sae.model_id] = (*watched.get(sae.model_id, ()), rule)
    return watched


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
    """A rule whose feature exceeded its threshold in a request: the largest value, and the number of tokens."""

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
            values = reading.values[:, column].tolist()
            for place, value in zip(reading.places, values, strict=True):
                if value > rule.threshold:
                    self._note(rule, value, place, in_prompt=place < num_prompt, now=now)

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
    close_old_connections()
    try:
        groups: dict[tuple[str, Stage], list[ActiveRule]] = {}
        for rule in rules:
            groups.setdefault((rule.sae, rule.stage), []).append(rule)
        made = [
            (tuple(group), _read(_loaded(name, group), group, stage, special_token_ids))
            for (name, stage), group in groups.items()
        ]
    finally:
        if not connection.in_atomic_block:
            connection.close()
    whole = [(group, read) for group, read in made if read is not None]
    return Watch(tuple(read for _, read in whole), tuple(group for group, _ in whole))


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


def _read(
    sae: LoadedSAE | None, rules: list[ActiveRule], stage: Stage, special_token_ids: frozenset[int]
) -> CaptureSpec | None:
    if sae is None:
        return None
    return CaptureSpec(
        site=sae.read_site,
        probe=FeatureValues(sae.ref, tuple(rule.index for rule in rules), tuple(rule.threshold for rule in rules)),
        stage=stage,
        skip_token_ids=special_token_ids,
        passes_over_cached=True,
    )


@cache
def get_watcher() -> Watcher:
    """Return the watcher of this process."""
    return Watcher()


async def watch(model: str, *, special_token_ids: frozenset[int]) -> Watch:
    """See :meth:`Watcher.watch`."""
    return await get_watcher().watch(model, special_token_ids)
