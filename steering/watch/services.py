"""Saves watch rules, with validation and audit, and stores their events."""

from __future__ import annotations

import math
from datetime import datetime
from typing import cast

from django.contrib.auth.models import User
from django.db import transaction

from audit.models import AuditEvent
from audit.record import record
from steering.errors import InvalidProfileError
from steering.models import Feature, WatchEvent, WatchRule
from steering.profiles.drafts import feature_target
from steering.profiles.lifecycle import FREE_NORMALIZATIONS
from steering.profiles.snapshot import published_profiles
from steering.spec.edit import EditSpec
from steering.spec.errors import MissingScaleError
from steering.spec.units import Unit
from steering.watch.watcher import WatchMatch, watched_models


@transaction.atomic
def save_rule(*, rule: WatchRule, user: User | None = None) -> WatchRule:
    """Create or update a rule. Raises InvalidProfileError if it could not be applied."""
    check_rule(rule=rule)
    is_new = rule._state.adding
    if is_new:
        rule.created_by = user
    rule.raw_threshold, rule.problem = raw_threshold(rule), ""
    rule.save()
    state = "active" if rule.is_active else "inactive"
    detail = f"{'added' if is_new else 'changed'}: {state}, {rule.action} {rule.feature} above {rule.raw_threshold:g};"
    _record(rule, f"{detail} {rule.reason}", user)
    return rule


@transaction.atomic
def remove_rule(*, rule: WatchRule, user: User | None = None) -> None:
    """Delete a rule; its events remain."""
    _record(rule, f"removed; its reason was: {rule.reason}", user)
    rule.delete()


def check_rule(*, rule: WatchRule) -> None:
    """Raise InvalidProfileError if the rule could not be applied."""
    raw, sae = raw_threshold(rule), rule.feature.sae
    if not math.isfinite(raw) or raw < 0:
        raise InvalidProfileError(f"The threshold must be a finite number of at least 0, got {raw:g}.")
    if rule.action == WatchRule.Action.CAP and sae.normalization not in FREE_NORMALIZATIONS:
        raise InvalidProfileError(
            f"{sae} normalises its input ({sae.normalization}), so the effect of a cap would depend on each request's "
            "own steering; choose an alert."
        )


def raw_threshold(rule: WatchRule) -> float:
    """Return the threshold as an activation. Raises InvalidProfileError if its unit refers to an unknown figure."""
    try:
        return EditSpec(feature_target(rule.feature), "at_most", rule.threshold, cast("Unit", rule.unit)).raw
    except MissingScaleError as error:
        raise InvalidProfileError(f"{rule.feature}: {error}") from None


def record_matches(matches: list[WatchMatch]) -> None:
    """Store an event per match. Idempotent: existing events are not changed."""
    WatchEvent.objects.bulk_create([_event(match) for match in matches], ignore_conflicts=True)


def prune_events(*, before: datetime) -> int:
    """Delete older events and return their number."""
    return WatchEvent.objects.filter(at__lt=before).delete()[0]


def _event(match: WatchMatch) -> WatchEvent:
    rule = match.rule
    labels = Feature.objects.filter(sae__name=rule.sae, index=rule.index).values_list("label", flat=True)
    return WatchEvent(
        at=match.at,
        rule=rule.name,
        action=rule.action,
        model=match.model,
        sae=rule.sae,
        feature=rule.index,
        label=labels.first() or "",
        threshold=rule.threshold,
        value=match.value,
        num_tokens=match.num_tokens,
        place=match.place,
        in_prompt=match.in_prompt,
        profile=match.profile,
        request_id=match.request_id,
    )


def _record(rule: WatchRule, detail: str, user: User | None) -> None:
    model = rule.feature.sae.model.name
    record(AuditEvent.Action.WATCH, rule, user=user, model=model, detail=detail)
    watched_models.invalidate()
    published_profiles.invalidate()
