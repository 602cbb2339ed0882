"""Watch rules as operators write them: checked, in the trail, and taken up by all processes."""

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
    """Adds a rule or changes one. InvalidProfileError where it could not act."""
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
    """Its events stay."""
    _record(rule, f"removed; it was for: {rule.reason}", user)
    rule.delete()


def check_rule(*, rule: WatchRule) -> None:
    """InvalidProfileError says what would not work."""
    raw, sae = raw_threshold(rule), rule.feature.sae
    if not math.isfinite(raw) or raw < 0:
        raise InvalidProfileError(f"The threshold comes to {raw:g}; it must be a finite number from 0.")
    if sae.architecture.endswith("transcoder"):
        raise InvalidProfileError(f"{sae} is a transcoder: it does not read the site where it writes.")
    if rule.action == WatchRule.Action.CAP and sae.normalization not in FREE_NORMALIZATIONS:
        raise InvalidProfileError(
            f"{sae} normalises its input ({sae.normalization}), so what a cap would write depends on the request's own"
            " steering; choose an alert."
        )


def raw_threshold(rule: WatchRule) -> float:
    """As an activation; InvalidProfileError where the unit refers to a number that is not known."""
    try:
        return EditSpec(feature_target(rule.feature), "at_most", rule.threshold, cast("Unit", rule.unit)).raw
    except MissingScaleError:
        raise InvalidProfileError(f"The largest activation of {rule.feature} is not known; use the unit raw.") from None


def record_matches(findings: list[WatchMatch]) -> None:
    """Events of them; those that are there already stay as they are."""
    WatchEvent.objects.bulk_create([_event(finding) for finding in findings], ignore_conflicts=True)


def prune_events(*, before: datetime) -> int:
    """Delete older events; returns how many."""
    return WatchEvent.objects.filter(at__lt=before).delete()[0]


def _event(finding: WatchMatch) -> WatchEvent:
    rule = finding.rule
    labels = Feature.objects.filter(sae__name=rule.sae, index=rule.index).values_list("label", flat=True)
    return WatchEvent(
        at=finding.at,
        rule=rule.name,
        action=rule.action,
        model=finding.model,
        sae=rule.sae,
        feature=rule.index,
        label=labels.first() or "",
        threshold=rule.threshold,
        value=finding.value,
        num_tokens=finding.num_tokens,
        place=finding.place,
        in_prompt=finding.in_prompt,
        profile=finding.profile,
        request_id=finding.request_id,
    )


def _record(rule: WatchRule, detail: str, user: User | None) -> None:
    model = rule.feature.sae.model.name
    record(AuditEvent.Action.WATCH, rule, user=user, model=model, detail=detail)
    watched_models.invalidate()
    published_profiles.invalidate()
