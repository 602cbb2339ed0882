from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.apps import AppConfig

REPLAY = "steering.replay"
PRUNE_KEPT = "openai_api.prune_kept"
PRUNE = "openai_api.prune_log"


class OpenaiApiConfig(AppConfig):
    name = "openai_api"
    verbose_name = "OpenAI API"

    def ready(self) -> None:
        from django.contrib.auth import get_user_model
        from django.contrib.auth.models import Group
        from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete

        from jobs.kinds import JobKind, register
        from jobs.lanes import Lane
        from jobs.periodic import Periodic, register_periodic
        from storage.batches import BATCH_KIND, MEDIA_BATCH_KIND

        register(JobKind(BATCH_KIND, "Batch", "openai_api.endpoints.batch_job:run_batch", lane=Lane.BULK))
        register(JobKind(MEDIA_BATCH_KIND, "Media batch", "openai_api.endpoints.batch_job:run_batch", lane=Lane.MEDIA))
        register(JobKind(PRUNE_KEPT, "Delete expired objects", "openai_api.retention:run_prune", lane=Lane.SYSTEM))
        register(
            JobKind(
                REPLAY,
                "Replay of a request",
                run="openai_api.request_log.replay:run_replay",
                result_permission="openai_api.view_prompt_text",
                show="openai_api.request_log.pages.replay:replayed_html",
                lane=Lane.INTERACTIVE,
            )
        )
        register(
            JobKind(PRUNE, "Prune the request log", "openai_api.request_log.retention:run_prune", lane=Lane.SYSTEM)
        )
        register_periodic(Periodic(PRUNE, timedelta(hours=1), "openai_api.request_log.retention:is_due"))
        register_periodic(Periodic(PRUNE_KEPT, timedelta(hours=1), "openai_api.retention:is_due"))
        user = get_user_model()
        post_save.connect(_reread_keys_of_user, sender=user, dispatch_uid="openai_api.reread_keys")
        post_delete.connect(_reread_keys, sender=user, dispatch_uid="openai_api.reread_keys.user")
        for name, relation in _rights(user):
            m2m_changed.connect(_reread_keys, sender=relation, dispatch_uid=f"openai_api.reread_keys.{name}")
        pre_delete.connect(_reread_keys, sender=Group, dispatch_uid="openai_api.reread_keys.group")
        pre_delete.connect(
            _forget_their_examples, sender=get_user_model(), dispatch_uid="openai_api.forget_their_examples"
        )

        from openai_api.request_log.traffic_corpus import NAME, traffic_corpus
        from steering.corpora.corpus_registry import register_corpus

        register_corpus(NAME, traffic_corpus)


def _rights(user: Any) -> tuple[tuple[str, Any], ...]:
    """Return the relations from which a user's permissions come."""
    from django.contrib.auth.models import Group

    return (
        ("groups", user.groups.through),
        ("user_permissions", user.user_permissions.through),
        ("permissions", Group.permissions.through),
    )


def _reread_keys_of_user(instance: Any, *, update_fields: frozenset[str] | None = None, **_: Any) -> None:
    """Reload a user's keys after a change of the user. Logins, which only touch ``last_login``, are ignored.

    A superuser without keys may be the first, who will own the static key: that is created when all keys are loaded.
    """
    from openai_api.keys.authentication import snapshot

    if update_fields is None or set(update_fields) != {"last_login"}:
        keys = list(instance.api_keys.values_list("pk", flat=True))
        if keys:
            snapshot.invalidate(keys)
        elif instance.is_superuser:
            snapshot.invalidate()


def _reread_keys(*, action: str = "", **_: Any) -> None:
    """Reload all keys after a change of permissions: groups give them to users, and users to their keys."""
    from openai_api.keys.authentication import snapshot

    if not action.startswith("pre_"):
        snapshot.invalidate()


def _forget_their_examples(instance: Any, **_: Any) -> None:
    """Delete traffic examples when a user with sharing keys is deleted, since the keys go too."""
    from steering.features.traffic_examples import delete_traffic_examples

    if instance.api_keys.filter(shares_examples=True).exists():
        delete_traffic_examples()


def start_request_tracing() -> None:
    """Start sending traces if OTEL_EXPORTER_OTLP_ENDPOINT is set. Called by serving processes."""
    from openai_api.request_log.tracing import start_tracing

    start_tracing()


def stop_request_tracing() -> None:
    """Send what is left of the traces; called at the server's shutdown."""
    from openai_api.request_log.tracing import stop_tracing

    stop_tracing()


def start_log_writer() -> None:
    """Start the log writer, which first recovers rows of killed processes. Called by serving processes."""
    from openai_api.request_log.writer import get_log_writer

    get_log_writer()


def stop_log_writer(timeout_s: float = 5.0) -> None:
    """Flush the request log; called at the server's shutdown."""
    from openai_api.request_log import writer as log_writer

    log_writer.stop(timeout_s)
