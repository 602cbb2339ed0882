from __future__ import annotations

from datetime import timedelta

from django.apps import AppConfig

EXPIRE_KIND, ORPHANS_KIND = "storage.expire", "storage.orphans"


class StorageConfig(AppConfig):
    name = "storage"
    verbose_name = "Files and vector stores"

    def ready(self) -> None:
        from jobs.kinds import JobKind, register
        from jobs.lanes import Lane
        from jobs.periodic import Periodic, register_periodic
        from storage.vector_stores import INGESTION_KIND

        register(
            JobKind(
                name=INGESTION_KIND,
                title="Add files to a vector store",
                run="storage.ingestion:run_ingestion",
                lane=Lane.SYSTEM,
            )
        )
        register(JobKind(EXPIRE_KIND, "Delete expired files", run="storage.sweep:run_expire", lane=Lane.SYSTEM))
        register(JobKind(ORPHANS_KIND, "Delete orphaned files", run="storage.sweep:run_orphans", lane=Lane.SYSTEM))
        register_periodic(Periodic(EXPIRE_KIND, timedelta(minutes=10), "storage.sweep:has_expired"))
        register_periodic(Periodic(ORPHANS_KIND, timedelta(days=1), "storage.sweep:may_have_orphans"))
