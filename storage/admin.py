"""Files, batches and vector stores in the admin: looked at and deleted; clients make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat

from storage.files import delete_files
from storage.models import Batch, StoredFile, VectorStore, VectorStoreFile


class MadeByClients(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    list_select_related = ("owner",)
    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(StoredFile)
class StoredFileAdmin(MadeByClients):
    empty_words = "No files yet. Clients upload them to /v1/files."
    list_display = ("filename", "purpose", "shown_size", "owner", "created_at", "expires_at", "public_id")
    list_filter = ("purpose", ("owner", admin.RelatedOnlyFieldListFilter))
    search_fields = ("public_id", "filename")
    fields = ("public_id", "filename", "purpose", "shown_size", "sha256", "owner", "created_at", "expires_at")

    @admin.display(description="size", ordering="size")
    def shown_size(self, file: StoredFile) -> str:
        return filesizeformat(file.size)

    def delete_model(self, request: HttpRequest, obj: StoredFile) -> None:
        delete_files(files=StoredFile.objects.filter(pk=obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[StoredFile]) -> None:
        delete_files(files=StoredFile.objects.filter(pk__in=list(queryset.values_list("pk", flat=True))))


@admin.register(Batch)
class BatchAdmin(MadeByClients):
    """Its job is among the jobs, where it can be cancelled."""

    empty_words = "No batches yet. Clients begin them at /v1/batches."
    list_display = ("public_id", "endpoint", "model", "status", "total", "completed", "failed", "owner", "created_at")
    list_filter = ("status", "endpoint", ("owner", admin.RelatedOnlyFieldListFilter))
    search_fields = ("public_id", "input_file", "output_file")

    def has_delete_permission(self, request: HttpRequest, obj: Batch | None = None) -> bool:
        return False


class VectorStoreFileInline(admin.TabularInline):  # type: ignore[type-arg]  # it takes none at run time
    model = VectorStoreFile
    fields = readonly_fields = ("file", "status", "error_message", "usage_bytes", "attributes", "created_at")
    can_delete = False
    max_num = 0

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class EmbeddingModelFilter(admin.AllValuesFieldListFilter):
    """Also of stores that have none yet: a link needs words."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        for choice in super().choices(changelist):
            yield {**choice, "display": choice["display"] or "(none)"}


@admin.register(VectorStore)
class VectorStoreAdmin(MadeByClients):
    empty_words = "No vector stores yet. Clients make them at /v1/vector_stores."
    list_display = ("public_id", "name", "embedding_model", "num_files", "owner", "last_active_at", "created_at")
    list_filter = (("embedding_model", EmbeddingModelFilter), ("owner", admin.RelatedOnlyFieldListFilter))
    search_fields = ("public_id", "name")
    inlines = (VectorStoreFileInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[VectorStore]:
        stores: QuerySet[VectorStore] = super().get_queryset(request)
        return stores.annotate(count=Count("files"))

    @admin.display(description="files", ordering="count")
    def num_files(self, store: Any) -> int:
        count: int = store.count
        return count
