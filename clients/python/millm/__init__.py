"""Python client of miLLM: steer language models, read their activations, and measure what steering does.

Start with :class:`Millm`.
"""

from __future__ import annotations

from millm.activations import Activations, TextActivations
from millm.analyses import Attribution, FeatureNode, LayerPrediction, LogitLens, TokenLens
from millm.answers import Answer, AnswerStream, Receipt, SiteEffect
from millm.client import Millm
from millm.directions import Method
from millm.features import Cofiring, Example, ExampleBand, Feature, FeatureEffect, Neighbour
from millm.jobs import JobFailedError, Progress
from millm.management import SAE, Corpus, Version
from millm.places import Site
from millm.residuals import Residuals
from millm.steering import Edit
from millm.sweep import Sweep, SweepRow
from millm.vectors import FittedVectors, LayerFit, SteeringVector, load_vectors, save_vectors

__version__ = "0.1.0"

__all__ = [
    "SAE",
    "Activations",
    "Answer",
    "AnswerStream",
    "Attribution",
    "Cofiring",
    "Corpus",
    "Edit",
    "Example",
    "ExampleBand",
    "Feature",
    "FeatureEffect",
    "FeatureNode",
    "FittedVectors",
    "JobFailedError",
    "LayerFit",
    "LayerPrediction",
    "LogitLens",
    "Method",
    "Millm",
    "Neighbour",
    "Progress",
    "Receipt",
    "Residuals",
    "Site",
    "SiteEffect",
    "SteeringVector",
    "Sweep",
    "SweepRow",
    "TextActivations",
    "TokenLens",
    "Version",
    "load_vectors",
    "save_vectors",
]
