"""``manage.py install_demo``: the demo's model, SAE and profiles, as the project ships them."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from inference.sources import SourceError
from steering.demo.install import install_demo
from steering.errors import SteeringError
from steering.saes.errors import InvalidSAEError
from steering.spec.errors import InvalidSpecError


class Command(BaseCommand):
    help = "Install the demo that comes with miLLM. Does nothing where it is installed; your own edits stay."

    def handle(self, **options: Any) -> None:
        try:
            demo = install_demo()
        except (FileNotFoundError, SourceError, SteeringError, InvalidSAEError, InvalidSpecError) as error:
            raise CommandError(str(error)) from error
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        if options["verbosity"] > 0:
            published = ", ".join(demo.published) or "nothing new"
            self.stdout.write(f"Model {demo.model}, SAE {demo.sae}; published: {published}.")
