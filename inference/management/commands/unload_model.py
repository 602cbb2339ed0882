"""``manage.py unload_model NAME``: the running server unloads a model."""

from __future__ import annotations

from inference.job_kinds import UNLOAD
from inference.model_command import ModelCommand


class Command(ModelCommand):
    help = "Have the running server unload a model; the next request loads it again."
    kind = UNLOAD
    verb = "Unload"
    done = "is unloaded."
