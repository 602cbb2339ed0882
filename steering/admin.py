"""Imports the admin classes of steering, so that Django's autodiscovery registers them."""

from __future__ import annotations

from steering.evaluation.admin import EvaluationAdmin
from steering.features.admin import FeatureAdmin
from steering.profiles.admin import SteeringProfileAdmin
from steering.profiles.policy_admin import GovernedModelAdmin, SteeringPolicyAdmin
from steering.profiles.version_admin import ProfileVersionAdmin
from steering.sae_registry.admin import SAEAdmin
from steering.vectors.admin import PlainVectorAdmin, VectorSetAdmin
from steering.watch.admin import WatchEventAdmin, WatchRuleAdmin

__all__ = [
    "EvaluationAdmin",
    "FeatureAdmin",
    "GovernedModelAdmin",
    "PlainVectorAdmin",
    "ProfileVersionAdmin",
    "SAEAdmin",
    "SteeringPolicyAdmin",
    "SteeringProfileAdmin",
    "VectorSetAdmin",
    "WatchEventAdmin",
    "WatchRuleAdmin",
]
