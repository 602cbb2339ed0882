"""Parts of the pages that show a batch: its files by name, how far it is, when it entered which state."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls import reverse
from django.utils.formats import localize
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from storage.file_link import file_link
from storage.models import Batch, StoredFile

NOTHING = "–"


def named_file(public_id: str) -> str | SafeString:
    """By its name; the id alone where the file was deleted or has expired."""
    if not public_id:
        return NOTHING
    file = StoredFile.objects.filter(public_id=public_id).first()
    if file is None:
        return f"{public_id}, which is not kept any more"
    return file_link(file)


def job_link(batch: Batch) -> str | SafeString:
    if batch.job_id is None:
        return NOTHING
    return format_html('<a href="{}">Its job</a>', reverse("admin:jobs_job_change", args=[batch.job_id]))


def progress_text(batch: Batch) -> str:
    if not batch.total:
        return NOTHING
    failed = f", {batch.failed:,} failed" if batch.failed else ""
    return f"{batch.completed:,} of {batch.total:,} answered{failed}"


def usage_text(batch: Batch) -> str:
    """Tokens, in words: “14 → 12”, as in the request log, and what of them came from the cache or was reasoning."""
    usage = batch.usage
    if not usage:
        return NOTHING
    parts = [f"{usage.get('input_tokens', 0):,} → {usage.get('output_tokens', 0):,}"]
    if cached := usage.get("cached_tokens"):
        parts.append(f"{cached:,} from the cache")
    if reasoning := usage.get("reasoning_tokens"):
        parts.append(f"{reasoning:,} of reasoning")
    return ", ".join(parts)


def problems_html(batch: Batch) -> str | SafeString:
    """What was wrong with the input file."""
    rows = ((_problem(error),) for error in batch.errors)
    return format_html("<ul>{}</ul>", format_html_join("", "<li>{}</li>", rows)) if batch.errors else NOTHING


def course_html(batch: Batch) -> SafeString:
    """The states that it has entered, in order."""
    rows = ((localize(at), words) for at, words in sorted(_course(batch)))
    return format_html('<ul class="plain">{}</ul>', format_html_join("", "<li>{} {}</li>", rows))


def _course(batch: Batch) -> Iterator[tuple[object, str]]:
    yield batch.created_at, "created"
    for status in Batch.Status:
        at = getattr(batch, f"{status.value}_at", None)
        if at is not None:
            yield at, status.label.lower()


def _problem(error: dict[str, object]) -> str:
    line = error.get("line")
    return f"Line {line}: {error.get('message')}" if line else str(error.get("message"))
