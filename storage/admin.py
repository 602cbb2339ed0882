"""Admin pages of files, batches and vector stores: view and delete. Only clients create them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import localize
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timesince import timeuntil

from storage.files import delete_files, used_bytes
from storage.models import Batch, StoredFile, VectorStore, VectorStoreFile


def file_link(file: StoredFile) -> SafeString:
    return format_html('<a href="{}">{}</a>', reverse("admin:storage_storedfile_change", args=[file.pk]), file.filename)


NOTHING = "–"


def named_file(public_id: str) -> str | SafeString:
    """Return the file's name, or only its id if it was deleted or has expired."""
    if not public_id:
        return NOTHING
    file = StoredFile.objects.filter(public_id=public_id).first()
    if file is None:
        return f"{public_id} (deleted)"
    return file_link(file)


def job_link(batch: Batch) -> str | SafeString:
    if batch.job_id is None:
        return NOTHING
    return format_html('<a href="{}">View job</a>', reverse("admin:jobs_job_change", args=[batch.job_id]))


def progress_text(batch: Batch) -> str:
    if not batch.total:
        return NOTHING
    failed = f", {batch.failed:,} failed" if batch.failed else ""
    return f"{batch.completed:,} of {batch.total:,} completed{failed}"


def usage_text(batch: Batch) -> str:
    """Return the numbers of tokens as in the request log ("14 → 12"), with those cached and those of reasoning."""
    usage = batch.usage
    if not usage:
        return NOTHING
    parts = [f"{usage.get('input_tokens', 0):,} → {usage.get('output_tokens', 0):,}"]
    if cached := usage.get("cached_tokens"):
        parts.append(f"{cached:,} cached")
    if reasoning := usage.get("reasoning_tokens"):
        parts.append(f"{reasoning:,} reasoning")
    return ", ".join(parts)


def problems_html(batch: Batch) -> str | SafeString:
    """Return the errors of the input file."""
    rows = ((_problem(error),) for error in batch.errors)
    return format_html("<ul>{}</ul>", format_html_join("", "<li>{}</li>", rows)) if batch.errors else NOTHING


def usage_of_quota(used: int) -> str:
    """Describe how much of their quota an owner uses."""
    quota: int = settings.MILLM_STORAGE_QUOTA_BYTES
    if not quota:
        return f"{filesizeformat(used)}, no limit"
    return f"{filesizeformat(used)} of {filesizeformat(quota)} ({used / quota:.0%})"


def timeline_html(batch: Batch) -> SafeString:
    """Return the states of the batch with their times, in order."""
    rows = ((localize(at), words) for at, words in sorted(_timeline(batch)))
    return format_html('<ul class="plain">{}</ul>', format_html_join("", "<li>{} {}</li>", rows))


def _timeline(batch: Batch) -> Iterator[tuple[object, str]]:
    yield batch.created_at, "created"
    for status in Batch.Status:
        at = getattr(batch, f"{status.value}_at", None)
        if at is not None:
            yield at, status.label.lower()


def _problem(error: dict[str, object]) -> str:
    line = error.get("line")
    return f"Line {line}: {error.get('message')}" if line else str(error.get("message"))


class ClientObjectAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    list_select_related = ("owner",)
    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(StoredFile)
class StoredFileAdmin(ClientObjectAdmin):
    empty_words = "No files yet. Clients upload them to /v1/files."
    list_display = ("filename", "purpose", "shown_size", "owner", "storage_used", "created_at", "expires", "public_id")
    list_filter = ("purpose", ("owner", admin.RelatedOnlyFieldListFilter))
    search_fields = ("public_id", "filename")
    fields = (
        *("public_id", "filename", "purpose", "shown_size", "sha256", "owner", "storage_used", "created_at"),
        "expires_at",
    )

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Count the storage of each owner on the page once."""
        found = super().get_changelist_instance(request)
        used = {owner_id: used_bytes(owner_id) for owner_id in {file.owner_id for file in found.result_list}}
        for file in found.result_list:
            file.owner_used = used[file.owner_id]
        return found

    @admin.display(description="size", ordering="size")
    def shown_size(self, file: StoredFile) -> str:
        return filesizeformat(file.size)

    @admin.display(description="owner's storage")
    def storage_used(self, file: Any) -> str:
        used = getattr(file, "owner_used", None)
        return usage_of_quota(used_bytes(file.owner_id) if used is None else used)

    @admin.display(description="expires", ordering="expires_at")
    def expires(self, file: StoredFile) -> str:
        if file.expires_at is None:
            return "never"
        return f"in {timeuntil(file.expires_at, depth=1)}" if file.expires_at > timezone.now() else "expired"

    def delete_model(self, request: HttpRequest, obj: StoredFile) -> None:
        delete_files(files=StoredFile.objects.filter(pk=obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[StoredFile]) -> None:
        delete_files(files=StoredFile.objects.filter(pk__in=list(queryset.values_list("pk", flat=True))))


@admin.register(Batch)
class BatchAdmin(ClientObjectAdmin):
    """Admin of batches. A batch is cancelled by cancelling its job."""

    empty_words = "No batches yet. Clients create them at /v1/batches."
    list_display = ("public_id", "input_name", "endpoint", "model", "status", "progress", "owner", "created_at")
    list_filter = ("status", "endpoint", ("owner", admin.RelatedOnlyFieldListFilter))
    search_fields = ("public_id", "input_file", "output_file")
    readonly_fields = ("progress", "tokens", "job", "given", "answers", "refusals", "problems", "timeline")
    fieldsets = (
        (None, {"fields": ("public_id", "status", "progress", "tokens", "endpoint", "model", "owner", "job")}),
        ("Files", {"fields": ("given", "answers", "refusals", "problems")}),
        ("Time", {"fields": ("timeline", "completion_window", "expires_at")}),
        ("Metadata", {"fields": ("metadata",)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Batch]:
        batches: QuerySet[Batch] = super().get_queryset(request)
        names = StoredFile.objects.filter(public_id=OuterRef("input_file")).values("filename")[:1]
        return batches.annotate(input_filename=Subquery(names))

    def has_delete_permission(self, request: HttpRequest, obj: Batch | None = None) -> bool:
        return False

    @admin.display(description="input file")
    def input_name(self, batch: Any) -> str:
        return batch.input_filename or "–"

    @admin.display(description="requests")
    def progress(self, batch: Batch) -> str:
        return progress_text(batch)

    @admin.display(description="tokens")
    def tokens(self, batch: Batch) -> str:
        return usage_text(batch)

    @admin.display(description="job")
    def job(self, batch: Batch) -> str | SafeString:
        return job_link(batch)

    @admin.display(description="input file")
    def given(self, batch: Batch) -> str | SafeString:
        return named_file(batch.input_file)

    @admin.display(description="output file")
    def answers(self, batch: Batch) -> str | SafeString:
        return named_file(batch.output_file)

    @admin.display(description="error file")
    def refusals(self, batch: Batch) -> str | SafeString:
        return named_file(batch.error_file)

    @admin.display(description="input errors")
    def problems(self, batch: Batch) -> str | SafeString:
        return problems_html(batch)

    @admin.display(description="history")
    def timeline(self, batch: Batch) -> SafeString:
        return timeline_html(batch)


class VectorStoreFileInline(admin.TabularInline):  # type: ignore[type-arg]  # not generic at run time
    model = VectorStoreFile
    fields = readonly_fields = ("named_file", "status", "error_message", "shown_size", "attributes_text", "created_at")
    can_delete = False
    max_num = 0
    verbose_name_plural = "files"

    def get_queryset(self, request: HttpRequest) -> QuerySet[VectorStoreFile]:
        rows: QuerySet[VectorStoreFile] = super().get_queryset(request)
        return rows.select_related("file")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="file")
    def named_file(self, row: VectorStoreFile) -> SafeString:
        return file_link(row.file)

    @admin.display(description="size")
    def shown_size(self, row: VectorStoreFile) -> str:
        return filesizeformat(row.usage_bytes)

    @admin.display(description="attributes")
    def attributes_text(self, row: VectorStoreFile) -> str:
        return ", ".join(f"{name}: {value}" for name, value in row.attributes.items()) or "–"


class EmbeddingModelFilter(admin.AllValuesFieldListFilter):
    """Filter by embedding model, with a text for stores that have none yet, because a link must not be empty."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        for choice in super().choices(changelist):
            yield {**choice, "display": choice["display"] or "(none)"}


@admin.register(VectorStore)
class VectorStoreAdmin(ClientObjectAdmin):
    empty_words = "No vector stores yet. Clients create them at /v1/vector_stores."
    list_display = ("named", "public_id", "embedding_model", "num_files", "owner", "last_active_at", "created_at")
    list_filter = (("embedding_model", EmbeddingModelFilter), ("owner", admin.RelatedOnlyFieldListFilter))
    search_fields = ("public_id", "name")
    inlines = (VectorStoreFileInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[VectorStore]:
        stores: QuerySet[VectorStore] = super().get_queryset(request)
        return stores.annotate(count=Count("files"))

    @admin.display(description="name", ordering="name")
    def named(self, store: VectorStore) -> str:
        return store.name or "unnamed"

    @admin.display(description="files", ordering="count")
    def num_files(self, store: Any) -> int:
        count: int = store.count
        return count
