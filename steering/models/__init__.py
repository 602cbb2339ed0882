"""The tables of steering: SAEs and features, vectors, profiles, watch rules and evaluations.

Import every model from here; start with ``profiles`` for what requests name.
"""

from __future__ import annotations

from steering.models.effects import FeatureEffect, VectorEffect
from steering.models.evaluations import Evaluation, HeadlineKL
from steering.models.profiles import (
    VERSION_IS_IMMUTABLE,
    FeatureEdit,
    ProfileReview,
    ProfileVersion,
    ProfileVersionQuerySet,
    SteeringPolicy,
    SteeringProfile,
    VersionSAE,
)
from steering.models.saes import SAE, ExplanationVote, Feature, FeatureExplanation, LabelEmbedding
from steering.models.vectors import PlainVector, VectorSet, VersionVector
from steering.models.watch import WatchEvent, WatchRule

__all__ = [
    "SAE",
    "VERSION_IS_IMMUTABLE",
    "Evaluation",
    "ExplanationVote",
    "Feature",
    "FeatureEdit",
    "FeatureEffect",
    "FeatureExplanation",
    "HeadlineKL",
    "LabelEmbedding",
    "PlainVector",
    "ProfileReview",
    "ProfileVersion",
    "ProfileVersionQuerySet",
    "SteeringPolicy",
    "SteeringProfile",
    "VectorEffect",
    "VectorSet",
    "VersionSAE",
    "VersionVector",
    "WatchEvent",
    "WatchRule",
]
