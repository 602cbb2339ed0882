"""``manage.py unload_model NAME``: have the running server unload a model."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from inference.job_kinds import UNLOAD
from inference.management.model_command import ModelCommand


class Command(ModelCommand):
    help = "Have the running server unload a model after its running requests finish. The next request loads it again."
    kind = UNLOAD
    verb = "Unload"
    done = "is unloaded."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--now", action="store_true", help="cancel running requests (error code model_unloaded)")

    def params(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"now": True} if options["now"] else {}
