from __future__ import annotations

from django.apps import AppConfig


class SteeringConfig(AppConfig):
    name = "steering"
    verbose_name = "Steering"

    def ready(self) -> None:
        from inference.steering_refs import STEERING_COMPILER
        from steering.job_kinds import register_kinds
        from steering.profiles.compilation import ProfileCompiler

        register_kinds()
        STEERING_COMPILER.make = ProfileCompiler
