from __future__ import annotations

from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "jobs.webhooks"
    label = "webhooks"
    verbose_name = "Webhooks"

    def ready(self) -> None:
        from jobs.kinds import JobKind, register
        from jobs.lanes import Lane
        from jobs.webhooks.outbox import DELIVER

        register(
            JobKind(
                DELIVER,
                "Webhook delivery",
                "jobs.webhooks.delivery:run_delivery",
                lane=Lane.WEBHOOKS,
                keeps_succeeded=False,  # the delivery's row is the record
            )
        )
