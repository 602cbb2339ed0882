from __future__ import annotations

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    name = "openai_api.responses"
    label = "responses"
    verbose_name = "Responses"

    def ready(self) -> None:
        from jobs.kinds import JobKind, register
        from jobs.lanes import Lane
        from openai_api.responses.background import KIND

        register(
            JobKind(
                KIND,
                "Background response",
                "openai_api.responses.background_job:generate_response",
                lane=Lane.INTERACTIVE,
                is_async=True,
            )
        )
