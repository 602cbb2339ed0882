"""The kinds of jobs of this app. Their functions are named by path, so that torch is imported only when they run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from jobs.kinds import JobKind, register
from jobs.lanes import Lane
from jobs.periodic import Periodic, register_periodic

PRUNE_UPLOADS = "steering.prune_uploads"
_UNLABELLED = (("failed", "requests failed"), ("edited", "labelled by somebody meanwhile"))


def register_kinds() -> None:
    register(
        JobKind(
            "steering.health",
            "Measure an SAE",
            "steering.sae_registry.jobs:run_health",
            show=_show_measurement,
            lane=Lane.BULK,
        )
    )
    register(
        JobKind(
            "steering.effects",
            "Measure effects of features",
            "steering.effects.job:run_effects",
            show=_show_effects,
            lane=Lane.BULK,
        )
    )
    register(
        JobKind(
            "steering.vector_effects",
            "Measure effects of vectors",
            "steering.effects.job:run_vector_effects",
            show=_show_vector_effects,
            lane=Lane.BULK,
        )
    )
    register(JobKind("steering.add_sae", "Add an SAE", "steering.sae_registry.jobs:run_add_sae", lane=Lane.BULK))
    register(
        JobKind(
            PRUNE_UPLOADS, "Delete unused uploads", "steering.sae_registry.uploads:run_prune_uploads", lane=Lane.SYSTEM
        )
    )
    register_periodic(
        Periodic(PRUNE_UPLOADS, timedelta(hours=1), "steering.sae_registry.uploads:has_abandoned_uploads")
    )
    register(
        JobKind(
            "steering.train_sae",
            "Train an SAE",
            "steering.training.services:run_train_sae",
            show=_show_measurement,
            lane=Lane.BULK,
        )
    )
    register(
        JobKind(
            "steering.interpret",
            "Label features",
            "steering.interpretation.job:run_interpretation",
            show=_show_labels,
            lane=Lane.BULK,
        )
    )
    register(
        JobKind(
            "steering.embed_labels",
            "Embed labels",
            "steering.features.semantic_search:run_embed_labels",
            lane=Lane.SYSTEM,
        )
    )
    register(
        JobKind(
            "steering.extract",
            "Extract vectors from prompt pairs",
            "steering.vectors.extraction:run_extraction",
            lane=Lane.INTERACTIVE,
        )
    )
    register(
        JobKind(
            "steering.sweep",
            "Strength sweep",
            "steering.evaluation.sweep:run_sweep",
            show=_show_evaluation,
            lane=Lane.BULK,
        )
    )
    register(
        JobKind(
            "steering.calibrate",
            "Calibration",
            "steering.evaluation.calibration:run_calibration",
            show=_show_evaluation,
            lane=Lane.BULK,
        )
    )
    register(
        JobKind(
            "steering.compare",
            "Comparison",
            "steering.evaluation.comparison:run_comparison",
            show=_show_evaluation,
            lane=Lane.INTERACTIVE,
        )
    )
    register(
        JobKind(
            "steering.headline",
            "Headline KL",
            "steering.evaluation.headline:run_headline",
            show=_show_headline,
            lane=Lane.INTERACTIVE,
        )
    )


def _show_headline(result: Mapping[str, Any]) -> SafeString:
    if result["profile"] is None:
        return format_html("<p>Headline KL of {}: {}</p>", result["version"], result["text"])
    url = reverse("admin:steering_steeringprofile_change", args=[result["profile"]])
    return format_html(
        '<p>Headline KL of {}: {} <a href="{}">View profile</a></p>', result["version"], result["text"], url
    )


def _show_evaluation(result: Mapping[str, Any]) -> SafeString:
    url = reverse("admin:steering_evaluation_change", args=[result["evaluation"]])
    return format_html('<p><a class="button" href="{}">Open the report</a></p>', url)


def _show_measurement(result: Mapping[str, Any]) -> SafeString:
    figures = format_html("L0 {}, FVU {}, on {} tokens.", *(_figure(result[name]) for name in ("l0", "fvu", "tokens")))
    if "sae" not in result:  # the job ran before results named the SAE
        return format_html("<p>{}</p>", figures)
    return format_html(
        '<p>{} <a href="{}">View SAE</a>, <a href="{}?sae__id__exact={}">view features</a></p>',
        figures,
        reverse("admin:steering_sae_change", args=[result["sae"]]),
        reverse("admin:steering_feature_changelist"),
        result["sae"],
    )


def _show_effects(result: Mapping[str, Any]) -> SafeString:
    return format_html(
        '<p>{} features measured, {} skipped. <a href="{}?sae__id__exact={}">View features</a></p>',
        _figure(result["measured"]),
        _figure(result["skipped"]),
        reverse("admin:steering_feature_changelist"),
        result["sae"],
    )


def _show_vector_effects(result: Mapping[str, Any]) -> SafeString:
    return format_html(
        '<p>{} vectors measured, {} skipped. <a href="{}">View vectors</a></p>',
        _figure(result["measured"]),
        _figure(result["skipped"]),
        reverse("admin:steering_vectorset_change", args=[result["vector_set"]]),
    )


def _show_labels(result: Mapping[str, Any]) -> SafeString:
    outcomes = [
        f"{_figure(result['labelled'])} features labelled",
        f"{_figure(result['nonsense'])} answers were no labels",
    ]
    outcomes += [f"{_figure(result[name])} {words}" for name, words in _UNLABELLED if result[name]]
    return format_html(
        '<p>{}. <a href="{}?sae__id__exact={}">View features</a></p>',
        ", ".join(outcomes),
        reverse("admin:steering_feature_changelist"),
        result["sae"],
    )


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}" if isinstance(value, float) else f"{value:,}"
