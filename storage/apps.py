from __future__ import annotations

from django.apps import AppConfig


class StorageConfig(AppConfig):
    name = "storage"
    verbose_name = "Files and vector stores"

    def ready(self) -> None:
        from jobs.kinds import JobKind, register
        from jobs.lanes import Lane
        from storage.vector_stores import INGESTION_KIND

        register(
            JobKind(
                name=INGESTION_KIND,
                title="Add files to a vector store",
                run="storage.ingestion:run_ingestion",
                lane=Lane.SYSTEM,
            )
        )
