"""What steering did to a request, as responses and log rows say it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inference.client import SiteEffect, SteeringReceipt
from openai_api.schemas.bodies import SiteEffectBody, SteeringBody


def steering_body(receipts: Sequence[SteeringReceipt]) -> SteeringBody:
    """Of all sequences of a request, which have one profile."""
    body: SteeringBody = {
        "expected": sum(receipt.expected for receipt in receipts),
        "applied": sum(receipt.applied for receipt in receipts),
        "sites": site_bodies(receipts),
    }
    joint = receipts[0].removals if receipts else ()
    if joint:
        body["removed_together"] = [
            {"site": str(one.site), "directions": one.num_directions, "dimensions": one.rank} for one in joint
        ]
    inert = receipts[0].inert if receipts else ()
    if inert:
        body["without_effect"] = [{"edit": one.number, "reason": one.reason} for one in inert]
    return body


def site_bodies(receipts: Sequence[SteeringReceipt]) -> list[SiteEffectBody]:
    by_site: dict[str, list[SiteEffect]] = {}
    for effect in (effect for receipt in receipts for effect in receipt.effects):
        by_site.setdefault(str(effect.site), []).append(effect)
    return [_site_body(site, effects) for site, effects in by_site.items()]


def _site_body(site: str, effects: Sequence[SiteEffect]) -> SiteEffectBody:
    num_tokens = sum(effect.num_tokens for effect in effects)
    mean = sum(effect.change for effect in effects) / num_tokens
    return {
        "site": site,
        "tokens": num_tokens,
        "changed_share": round(sum(effect.num_changed for effect in effects) / num_tokens, 4),
        "mean_change": float(f"{mean:.4g}") if math.isfinite(mean) else None,
    }
