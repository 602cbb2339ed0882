"""``manage.py install_demo``: the demo's model, SAE and profiles, as the project ships them."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from steering.demo.install import DemoError, install_demo


class Command(BaseCommand):
    help = "Install the included demo. Does nothing if it is already installed; your edits stay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--measure", action="store_true", help="queue a job that measures its SAE")

    def handle(self, **options: Any) -> None:
        try:
            demo = install_demo(measures=options["measure"])
        except DemoError as error:
            raise CommandError(str(error)) from error
        if options["verbosity"] > 0:
            published = ", ".join(demo.published) or "nothing new"
            self.stdout.write(f"Model {demo.model}, SAE {demo.sae}; published: {published}.")
