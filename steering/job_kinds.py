"""The kinds of jobs that steering brings. What they import is imported when they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobs.kinds import JobKind, register

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

    from jobs.running_job import RunningJob


def register_kinds() -> None:
    register(JobKind("steering.health", "Measure an SAE", _health, show=_measured))
    register(JobKind("steering.add_sae", "Add an SAE", _add_sae))
    register(JobKind("steering.embed_labels", "Embed labels", _embed_labels))
    register(JobKind("steering.extract", "Find vectors in pairs of prompts", _extract))


def _health(job: RunningJob) -> dict[str, Any]:
    from steering.health_job import run_health

    return run_health(job)


def _measured(result: Mapping[str, Any]) -> SafeString:
    from django.urls import reverse
    from django.utils.html import format_html

    figures = format_html("L0 {}, FVU {}, on {} tokens.", *(_figure(result[name]) for name in ("l0", "fvu", "tokens")))
    if "sae" not in result:  # of a job that ran before results named it
        return format_html("<p>{}</p>", figures)
    return format_html(
        '<p>{} <a href="{}">The SAE</a>, <a href="{}?sae__id__exact={}">its features</a></p>',
        figures,
        reverse("admin:steering_sae_change", args=[result["sae"]]),
        reverse("admin:steering_feature_changelist"),
        result["sae"],
    )


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}" if isinstance(value, float) else f"{value:,}"


def _add_sae(job: RunningJob) -> dict[str, Any]:
    from steering.registration_job import run_add_sae

    return run_add_sae(job)


def _embed_labels(job: RunningJob) -> dict[str, Any]:
    from steering.meaning_job import run_embed_labels

    return run_embed_labels(job)


def _extract(job: RunningJob) -> dict[str, Any]:
    from steering.extraction_job import run_extraction

    return run_extraction(job)
