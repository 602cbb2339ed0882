"""Saves watch rules, with validation and audit, and stores their events."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, cast

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet

from audit.models import AuditEvent
from audit.record import record
from jobs.webhooks.models import EventType
from jobs.webhooks.outbox import Event, queue_events
from steering.errors import InvalidWatchRuleError
from steering.models import Feature, WatchEvent, WatchRule
from steering.profiles.drafts import feature_target
from steering.profiles.lifecycle import FREE_NORMALIZATIONS
from steering.profiles.snapshot import cap_edit, published_profiles
from steering.spec.edit import EditSpec
from steering.spec.errors import MissingScaleError
from steering.spec.units import MAX_STRENGTH, Unit
from steering.watch.watcher import WatchedFeature, WatchMatch, watched_models


@transaction.atomic
def save_rule(*, rule: WatchRule, user: User | None = None) -> WatchRule:
    """Create or update a rule. Raises InvalidWatchRuleError if it could not be applied."""
    check_rule(rule=rule)
    is_new = rule._state.adding
    if is_new:
        rule.created_by = user
    rule.problem = ""
    rule.save()
    state = "active" if rule.is_active else "inactive"
    detail = f"{'added' if is_new else 'changed'}: {state}, {rule.action} {rule.subject} above {rule.raw_threshold:g};"
    _record(rule, f"{detail} {rule.reason}", user)
    return rule


@transaction.atomic
def remove_rule(*, rule: WatchRule, user: User | None = None) -> None:
    """Delete a rule; its events remain."""
    _record(rule, f"removed; its reason was: {rule.reason}", user)
    rule.delete()


def rules_of(model: int, rows: QuerySet[WatchRule]) -> QuerySet[WatchRule]:
    """Return the rules that monitor a model, given by its primary key."""
    return rows.filter(Q(feature__sae__model=model) | Q(vector__vector_set__model=model))


def default_unit(rule: WatchRule) -> str:
    """Return the unit of a threshold without one."""
    return WatchRule.Unit.RAW if rule.feature is None else WatchRule.Unit.MAX_ACT


def check_rule(*, rule: WatchRule) -> None:
    """Set the raw threshold. Raise InvalidWatchRuleError, with the field, if the rule could not be applied."""
    if rule.feature is None and rule.vector is None:
        raise InvalidWatchRuleError("A rule needs a `feature` or a `vector`.", code="missing_required_parameter")
    if rule.feature is not None and rule.vector is not None:
        raise InvalidWatchRuleError("A rule has either a `feature` or a `vector`, got both.", param="vector")
    if rule.feature is not None:
        _check_feature(rule, rule.feature)
    else:
        _check_vector(rule)
    limit = cap_edit(rule).strength
    if not abs(limit) <= MAX_STRENGTH:
        raise InvalidWatchRuleError(
            f"The threshold is {limit:g} in units of the direction; the limit is {MAX_STRENGTH:g}.", param="threshold"
        )


def _check_feature(rule: WatchRule, feature: Feature) -> None:
    if rule.bias or rule.sigmoid:
        param = "bias" if rule.bias else "sigmoid"
        raise InvalidWatchRuleError(f"`{param}` belongs to a vector; a feature has none.", param=param)
    try:
        raw = EditSpec(feature_target(feature), "at_most", rule.threshold, cast("Unit", rule.unit)).raw
    except MissingScaleError as error:
        raise InvalidWatchRuleError(f"{feature}: {error}", param="unit") from None
    if not math.isfinite(raw) or raw < 0:
        message = f"The threshold must be a finite number of at least 0, got {raw:g}."
        raise InvalidWatchRuleError(message, param="threshold")
    if rule.action == WatchRule.Action.CAP and feature.sae.normalization not in FREE_NORMALIZATIONS:
        raise InvalidWatchRuleError(
            f"{feature.sae} normalises its input ({feature.sae.normalization}), so the effect of a cap would depend on "
            "each request's own steering; choose an alert.",
            param="action",
        )
    rule.raw_threshold = raw


def _check_vector(rule: WatchRule) -> None:
    assert rule.vector is not None, "the caller checks it"
    if not rule.vector.norm:
        raise InvalidWatchRuleError(f"{rule.vector} is zero, so it has no direction.", param="vector")
    if rule.unit != WatchRule.Unit.RAW:
        message = f"The threshold of a vector is `raw`, in the units of its value, got `{rule.unit}`."
        raise InvalidWatchRuleError(message, param="unit")
    if not math.isfinite(rule.bias):
        raise InvalidWatchRuleError(f"The bias must be a finite number, got {rule.bias:g}.", param="bias")
    if rule.sigmoid and not 0 < rule.threshold < 1:
        message = f"The threshold is a probability, between 0 and 1, got {rule.threshold:g}."
        raise InvalidWatchRuleError(message, param="threshold")
    if not math.isfinite(rule.threshold):
        message = f"The threshold must be a finite number, got {rule.threshold:g}."
        raise InvalidWatchRuleError(message, param="threshold")
    rule.raw_threshold = rule.threshold


@transaction.atomic
def record_matches(matches: list[WatchMatch]) -> None:
    """Store an event per match, and queue its webhooks. Idempotent: existing events are not changed."""
    if not matches:
        return
    of_requests = WatchEvent.objects.filter(request_id__in={match.request_id for match in matches})
    known = set(of_requests.values_list("pk", flat=True))
    WatchEvent.objects.bulk_create([_event(match) for match in matches], ignore_conflicts=True)
    new = of_requests.exclude(pk__in=known).order_by("pk")
    queue_events([_webhook(event) for event in new])


def _webhook(event: WatchEvent) -> Event:
    data = {"id": event.pk, "rule": event.rule, "model": event.model, "request_id": event.request_id}
    return Event(EventType.WATCH_TRIGGERED, data, permission="steering.view_watchevent")


def prune_events(*, before: datetime) -> int:
    """Delete older events and return their number."""
    return WatchEvent.objects.filter(at__lt=before).delete()[0]


def _event(match: WatchMatch) -> WatchEvent:
    rule, target = match.rule, match.rule.target
    if isinstance(target, WatchedFeature):
        labels = Feature.objects.filter(sae__name=target.sae, index=target.index).values_list("label", flat=True)
        subject: dict[str, Any] = {"sae": target.sae, "feature": target.index, "label": labels.first() or ""}
    else:
        subject = {"vector": target.name}
    return WatchEvent(
        at=match.at,
        rule=rule.name,
        action=rule.action,
        model=match.model,
        **subject,
        threshold=rule.threshold,
        value=match.value,
        num_tokens=match.num_tokens,
        place=match.place,
        in_prompt=match.in_prompt,
        profile=match.profile,
        request_id=match.request_id,
    )


def _record(rule: WatchRule, detail: str, user: User | None) -> None:
    record(AuditEvent.Action.WATCH, rule, user=user, model=rule.model.name, detail=detail)
    watched_models.invalidate()
    published_profiles.invalidate()
