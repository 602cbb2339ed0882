"""HTML fragments that show versions, their edits and their differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from steering.models import ProfileVersion, SteeringProfile
from steering.spec.edit import EditSpec
from steering.spec.parsing import parse_edits
from steering.spec.units import STRONG_PUSH
from steering.spec.wording import Change, changes, describe_edit


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One line of a profile's list of versions, newest first."""

    version: ProfileVersion
    changes: SafeString | str
    requests: SafeString | str


def problem_text(problem: str) -> SafeString | str:
    return format_html('<span class="steering-warning">{}</span>', problem) if problem else "–"


def version_rows(profile: SteeringProfile) -> list[VersionRow]:
    versions = list(profile.versions.select_related("published_by", "profile__model").order_by("-number"))
    older = [*versions, None][1:]
    return [
        VersionRow(version, changes_between(before, version), requests_link(version))
        for version, before in zip(versions, older, strict=True)
    ]


def changes_since_previous(version: ProfileVersion) -> SafeString | str:
    before = ProfileVersion.objects.filter(profile_id=version.profile_id, number__lt=version.number).first()
    return changes_between(before, version)


def changes_between(before: ProfileVersion | None, version: ProfileVersion) -> SafeString | str:
    return changes_html(changes(_edits(before) if before else (), _edits(version)))


def changes_from_latest(profile: SteeringProfile, edits: Sequence[EditSpec]) -> SafeString | str:
    """Return the changes that publishing these edits would make, as HTML."""
    latest = profile.latest_version
    return changes_html(changes(_edits(latest) if latest else (), edits))


def changes_html(lines: Sequence[Change]) -> SafeString | str:
    if not lines:
        return "No change in effect."
    marks = {"added": "+", "removed": "−", "changed": "~"}
    rows = ((line.kind, marks[line.kind], line.text) for line in lines)
    return format_html_join("", '<div class="steering-{}">{} {}</div>', rows)


def edits_table(version: ProfileVersion) -> SafeString:
    return edits_html(_edits(version))


def edits_html(edits: Sequence[EditSpec]) -> SafeString:
    """Return a table of the edits: description, raw strength and relative size."""
    rows = ((describe_edit(edit), coefficient_text(edit), push_text(edit.push)) for edit in edits)
    return format_html(
        '<table class="steering-edits"><thead><tr><th>Edit</th><th>Raw strength</th><th>Relative size</th></tr></thead>'
        "{}</table>",
        format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td></tr>", rows),
    )


def requests_link(version: ProfileVersion) -> SafeString | str:
    """Return a link to the version's requests in the log."""
    try:
        url = reverse("admin:openai_api_requestlog_changelist")
    except NoReverseMatch:  # a project without the API
        return ""
    query = urlencode({"profile": str(version), "model": version.profile.model.name})
    return format_html('<a href="{}?{}">requests with {}</a>', url, query, version)


def coefficient_text(edit: EditSpec) -> str:
    match edit.operation:
        case "norm_preserving" | "reconstruct":
            return "–"
        case "scale" | "orthogonal":
            return f"factor {edit.raw:.4g}"
        case "projection_cap":
            return f"{'' if edit.raw_lower is None else f'{edit.raw_lower:.4g} to '}{edit.raw:.4g}"
        case "add":
            return f"{edit.raw:+.4g}"
        case _:
            return f"{edit.raw:.4g}"


def push_text(push: float | None) -> SafeString | str:
    """Return the relative size, marked if text tends to break down at it."""
    if push is None:
        return "unknown"
    if push <= STRONG_PUSH:
        return f"{push:.2f}"
    return format_html(
        '<span class="steering-warning" title="Above {} of the residual norm, text tends to break down.">{} ⚠</span>',
        STRONG_PUSH,
        f"{push:.2f}",
    )


def _edits(version: ProfileVersion) -> tuple[EditSpec, ...]:
    return parse_edits(version.edits)
