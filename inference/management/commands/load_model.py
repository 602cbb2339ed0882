"""``manage.py load_model NAME``: have the running server load a model."""

from __future__ import annotations

from inference.job_kinds import LOAD
from inference.management.model_command import ModelCommand


class Command(ModelCommand):
    help = "Have the running server load a model, and wait until it is loaded."
    kind = LOAD
    verb = "Load"
    done = "is loaded."
