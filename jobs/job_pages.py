"""Parts of the pages that show a job. What changes while it runs is marked for live.js, which fetches it anew."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobs.errors import UnknownKindError
from jobs.kinds import find_kind
from jobs.models import Job

MAX_SHOWN_LINES = 500
MAX_SHOWN_JSON = 20_000


def state_label(job: Job) -> SafeString:
    text = "will stop" if job.cancel_requested and not job.has_ended else job.get_state_display().lower()
    return _live(job, "state", format_html('<span class="job-state job-{}">{}</span>', job.state, text))


def progress_bar(job: Job) -> SafeString:
    """A bar where the total is known, and what the job says."""
    counts = f"{job.done:,} of {job.total:,}" if job.total else ""
    bar = format_html('<progress class="job-bar" max="{}" value="{}"></progress>', job.total, job.done)
    parts = (bar if job.total else "", counts, job.message)
    return _live(job, "progress", format_html_join(" ", "{}", ((part,) for part in parts if part)))


def error_text(job: Job) -> SafeString:
    return _live(job, "error", format_html('<span class="job-error">{}</span>', job.error))


def recent_lines(job: Job) -> SafeString:
    """The newest lines, in the order in which they came."""
    lines = list(job.lines.order_by("-pk")[:MAX_SHOWN_LINES])[::-1]
    rows = ((timezone.localtime(line.at).strftime("%H:%M:%S"), line.text) for line in lines)
    text = format_html_join("\n", "{} {}", rows)
    return _live(job, "log", format_html('<pre class="job-log" tabindex="0">{}</pre>', text))


def took_text(job: Job) -> str:
    """From its first start to its end, or until now."""
    if job.started_at is None:
        return "–"
    end = job.finished_at or timezone.now()
    return str(timedelta(seconds=round((end - job.started_at).total_seconds())))


def pretty_json(value: Any) -> SafeString:
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    cut = f"\n… {len(text) - MAX_SHOWN_JSON:,} more characters" if len(text) > MAX_SHOWN_JSON else ""
    return format_html('<pre class="job-json" tabindex="0">{}{}</pre>', text[:MAX_SHOWN_JSON], cut)


def result_html(job: Job) -> SafeString:
    """As its kind tells it, with the JSON below for those who want all of it."""
    if not job.result:
        return SafeString("–")
    told = _told(job)
    if told is None:
        return pretty_json(job.result)
    return format_html("{}<details><summary>As JSON</summary>{}</details>", told, pretty_json(job.result))


def _figures(result: dict[str, Any]) -> SafeString | None:
    """Names and values, where there is nothing else in it."""
    if any(isinstance(value, dict | list) for value in result.values()):
        return None
    rows = ((name.replace("_", " ").capitalize(), _value(value)) for name, value in result.items())
    return format_html('<dl class="job-figures">{}</dl>', format_html_join("", "<dt>{}</dt><dd>{}</dd>", rows))


def _value(value: Any) -> str:
    """Of JSON, neither a list nor an object."""
    if value in (None, ""):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _told(job: Job) -> SafeString | None:
    """None of a job that has not succeeded, or whose kind nobody here knows."""
    if job.state != Job.State.SUCCEEDED or not job.result:
        return None
    try:
        show = find_kind(job.kind).load_show()
    except UnknownKindError:
        return None
    return show(job.result) if show else _figures(job.result)


def _live(job: Job, part: str, content: SafeString) -> SafeString:
    """Content that live.js replaces for as long as the job has not ended: when told of ``job:<id>``, or by itself."""
    html = '<span id="job-{}-{}" data-job-live="{}" data-live-topic="job:{}">{}</span>'
    if job.has_ended:
        return format_html('<span id="job-{}-{}" data-job-live="">{}</span>', job.pk, part, content)
    return format_html(html, job.pk, part, "1", job.pk, content)
