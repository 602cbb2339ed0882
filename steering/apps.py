from __future__ import annotations

from django.apps import AppConfig


class SteeringConfig(AppConfig):
    name = "steering"
    verbose_name = "Steering"

    def ready(self) -> None:
        from steering.job_kinds import register_kinds

        register_kinds()
